/* chain_bench.c -- how long the importer takes for chains of many nodes: nothing in it may be
 * superlinear.
 *
 *     chain_bench [NODES]      100000 as a rule
 *
 * One line a chain: operators without weights; the same in reversed order, so that they have
 * to be sorted; with a bias in every second node, in 12 layers; arithmetic that is computed.
 */
#include "frontend/frontend.h"
#include "frontend/onnx_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct chain {
    ef_arena *a;
    Onnx__GraphProto g;
    int n; /* nodes of the chain */
} chain;

static char *
number(chain *c, const char *stem, int i)
{
    return ef_printf(c->a, "%s%d", stem, i);
}

static Onnx__NodeProto *
node(chain *c, const char *op, const char *in, const char *more, char *out)
{
    Onnx__NodeProto *n = EF_NEW(c->a, Onnx__NodeProto);
    *n = (Onnx__NodeProto)ONNX__NODE_PROTO__INIT;
    n->op_type = ef_strdup(c->a, op);
    n->input = EF_NEWN(c->a, char *, 2);
    n->input[n->n_input++] = ef_strdup(c->a, in);
    if (more)
        n->input[n->n_input++] = ef_strdup(c->a, more);
    n->output = EF_NEWN(c->a, char *, n->n_output = 1);
    n->output[0] = out;
    return c->g.node[c->g.n_node++] = n;
}

static void
tensor(chain *c, const char *name, int type, int rows, int cols)
{
    Onnx__TensorProto *t = EF_NEW(c->a, Onnx__TensorProto);
    int n = rows * cols, size = type == 7 ? 8 : 4;
    *t = (Onnx__TensorProto)ONNX__TENSOR_PROTO__INIT;
    t->name = ef_strdup(c->a, name);
    t->has_data_type = t->has_raw_data = 1;
    t->data_type = type;
    t->dims = EF_NEWN(c->a, int64_t, 2);
    if (rows > 1)
        t->dims[t->n_dims++] = rows;
    t->dims[t->n_dims++] = cols;
    t->raw_data.len = (size_t)(n * size);
    t->raw_data.data = ef_alloc(c->a, t->raw_data.len);
    for (int i = 0; i < n; i++)
        if (type == 7)
            ((int64_t *)(void *)t->raw_data.data)[i] = 1;
        else
            ((float *)(void *)t->raw_data.data)[i] = (float)i / 8;
    c->g.initializer[c->g.n_initializer++] = t;
}

static Onnx__ValueInfoProto *
value(chain *c, const char *name, int type, const char *const *dim)
{
    Onnx__ValueInfoProto *v = EF_NEW(c->a, Onnx__ValueInfoProto);
    Onnx__TypeProto *t = EF_NEW(c->a, Onnx__TypeProto);
    Onnx__TypeProto__Tensor *x = EF_NEW(c->a, Onnx__TypeProto__Tensor);
    *v = (Onnx__ValueInfoProto)ONNX__VALUE_INFO_PROTO__INIT;
    *t = (Onnx__TypeProto)ONNX__TYPE_PROTO__INIT;
    *x = (Onnx__TypeProto__Tensor)ONNX__TYPE_PROTO__TENSOR__INIT;
    v->name = ef_strdup(c->a, name);
    v->type = t;
    t->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    t->tensor_type = x;
    x->has_elem_type = 1;
    x->elem_type = type;
    for (int i = 0; dim && i < 2; i++) {
        Onnx__TensorShapeProto *s = x->shape;
        if (!s) {
            x->shape = s = EF_NEW(c->a, Onnx__TensorShapeProto);
            *s = (Onnx__TensorShapeProto)ONNX__TENSOR_SHAPE_PROTO__INIT;
            s->dim = EF_NEWN(c->a, Onnx__TensorShapeProto__Dimension *, 2);
        }
        Onnx__TensorShapeProto__Dimension *d =
            EF_NEW(c->a, Onnx__TensorShapeProto__Dimension);
        *d = (Onnx__TensorShapeProto__Dimension)
            ONNX__TENSOR_SHAPE_PROTO__DIMENSION__INIT;
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
        d->dim_param = ef_strdup(c->a, dim[i]);
        s->dim[s->n_dim++] = d;
    }
    return v;
}

/* ---- chains ---- */

static void
plain(chain *c)
{
    node(c, "Gather", "emb.weight", "ids", number(c, "v", 0));
    for (int i = 1; i < c->n; i++)
        node(c, i % 2 ? "Relu" : "Tanh", number(c, "v", i - 1), NULL,
             number(c, "v", i));
}

static void
reversed(chain *c)
{
    plain(c);
    for (int i = 0, k = c->n - 1; i < k; i++, k--) {
        Onnx__NodeProto *n = c->g.node[i];
        c->g.node[i] = c->g.node[k];
        c->g.node[k] = n;
    }
}

static void
layers(chain *c)
{
    tensor(c, "h.bias", 1, 1, 4);
    node(c, "Gather", "emb.weight", "ids", number(c, "v", 0));
    for (int i = 1; i < c->n; i++)
        node(c, i % 2 ? "Add" : "Relu", number(c, "v", i - 1), i % 2 ? "h.bias" : NULL,
             number(c, "v", i))
            ->name = ef_printf(c->a, "/h.%d/n%d/Op", i * 12 / c->n, i);
}

static void
known(chain *c)
{
    tensor(c, "one", 7, 1, 3);
    node(c, "Gather", "emb.weight", "ids", ef_strdup(c->a, "x"));
    node(c, "Shape", "x", NULL, number(c, "v", 1));
    for (int i = 2; i < c->n - 2; i++)
        node(c, i % 2 ? "Add" : "Sub", number(c, "v", i - 1), "one", number(c, "v", i));
    node(c, "ReduceMax", number(c, "v", c->n - 3), NULL, ef_strdup(c->a, "k"));
    node(c, "Cast", "k", NULL, ef_strdup(c->a, "f"));
    Onnx__AttributeProto *to = EF_NEW(c->a, Onnx__AttributeProto);
    *to = (Onnx__AttributeProto)ONNX__ATTRIBUTE_PROTO__INIT;
    to->name = ef_strdup(c->a, "to");
    to->has_type = to->has_i = 1;
    to->type = 2;
    to->i = 1;
    Onnx__NodeProto *cast = c->g.node[c->g.n_node - 1];
    cast->attribute = EF_NEWN(c->a, Onnx__AttributeProto *, cast->n_attribute = 1);
    cast->attribute[0] = to;
    node(c, "Add", "x", "f", number(c, "v", c->n - 1));
}

/* ---- measuring ---- */

static double
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void
save(chain *c, char *path)
{
    Onnx__ModelProto p = ONNX__MODEL_PROTO__INIT;
    Onnx__OperatorSetIdProto set = ONNX__OPERATOR_SET_ID_PROTO__INIT, *sets = &set;
    set.has_version = p.has_ir_version = 1;
    set.version = 17;
    p.ir_version = 8;
    p.opset_import = &sets;
    p.n_opset_import = 1;
    p.graph = &c->g;
    size_t n = onnx__model_proto__get_packed_size(&p);
    uint8_t *bytes = ef_alloc(c->a, n);
    onnx__model_proto__pack(&p, bytes);
    int fd = mkstemp(path);
    EF_ASSERT(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static void
measure(const char *name, int n, void (*make)(chain *))
{
    static const char *const dims[] = {"b", "s"};
    char path[] = "/tmp/efficc-chain-XXXXXX";
    chain c = {.a = ef_arena_new(), .g = ONNX__GRAPH_PROTO__INIT, .n = n};
    c.g.node = EF_NEWN(c.a, Onnx__NodeProto *, n + 2);
    c.g.initializer = EF_NEWN(c.a, Onnx__TensorProto *, 4);
    c.g.input = EF_NEWN(c.a, Onnx__ValueInfoProto *, c.g.n_input = 1);
    c.g.output = EF_NEWN(c.a, Onnx__ValueInfoProto *, c.g.n_output = 1);
    c.g.input[0] = value(&c, "ids", 7, dims);
    c.g.output[0] = value(&c, number(&c, "v", n - 1), 1, NULL);
    tensor(&c, "emb.weight", 1, 16, 4);
    make(&c);
    save(&c, path);
    ef_arena_free(c.a);

    ef_ctx *ctx = ef_ctx_new();
    ef_config cfg = ef_config_default;
    cfg.batch = 2;
    cfg.seq = 4;
    ctx->cfg = &cfg;
    ctx->report = NULL;
    double start = now();
    fe_model *f = fe_load(ctx, path);
    double loaded = now();
    ir_module *m = f ? fe_import(ctx, f) : NULL;
    double imported = now();
    printf("%-10s %7d nodes: read in %4.0f ms, imported in %4.0f ms%s\n", name, n,
           1e3 * (loaded - start), 1e3 * (imported - loaded), m ? "" : ", REFUSED");
    ir_module_free(m);
    fe_unload(f);
    ef_ctx_free(ctx);
    unlink(path);
}

int
main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 100000;
    if (n < 16) {
        fputs("usage: chain_bench [NODES]\n", stderr);
        return 1;
    }
    measure("plain", n, plain);
    measure("reversed", n, reversed);
    measure("layers", n, layers);
    measure("known", n, known);
    return 0;
}
