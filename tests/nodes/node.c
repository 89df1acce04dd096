/* node.c -- reads tests of operators and turns each into ops.
 *
 * A test's inputs become params with values, so that the ops are built and run; where an
 * operator needs an operand while the model is compiled, that is given as known. Everything
 * behind the graph's nodes, as names and roles of inputs, is left out: these are no models.
 */
#include "node.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files ---- */

static void
read_file(ef_arena *a, const char *folder, const char *file, node_tests *to)
{
    size_t n, at = 0;
    const char *path = ef_printf(a, "%s/%s", folder, file);
    const char *all = ef_read_file(a, path, 1 << 24, &n);
    while (all && at + 4 <= n) {
        const uint8_t *b = (const uint8_t *)all + at;
        size_t len = b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16 | (size_t)b[3] << 24;
        Onnx__ModelProto *p = onnx__model_proto__unpack(NULL, len, b + 4);
        EF_ASSERT(p != NULL);
        node_test t = {ef_strndup(a, file, strlen(file) - strlen(".nodes")),
                       ef_strdup(a, p->producer_name), b + 4, len};
        onnx__model_proto__free_unpacked(p, NULL);
        ef_push(a, to->at, t);
        at += len + 4;
    }
}

static int
nodes_only(const struct dirent *d)
{
    const char *dot = strrchr(d->d_name, '.');
    return dot && !strcmp(dot, ".nodes");
}

node_tests
node_read(ef_arena *a, const char *folder)
{
    node_tests t = {0};
    struct dirent **file = NULL;
    int n = scandir(folder, &file, nodes_only, alphasort);
    for (int i = 0; i < n; i++) {
        read_file(a, folder, file[i]->d_name, &t);
        free(file[i]);
    }
    free(file);
    return t;
}

/* ---- the parts of a test's model ---- */

typedef struct import {
    fe_imp im;
    const node_test *t;
    node_known known;
    ir_pclass floats;
} import;

static ir_dtype
kind_of(ir_dtype d)
{
    return d == IR_BOOL ? IR_BOOL : ir_dtypes[d].is_float ? IR_F32 : IR_I64;
}

/* The elements, in the arena of the module; there may be none. */
static const double *
kept(ir_module *m, const fe_val *v)
{
    size_t n = (size_t)ir_type_count(v->type);
    double *x = EF_NEWN(m->arena, double, n + 1);
    memcpy(x, v->data, sizeof *x * n);
    return x;
}

/* Type and elements of an initializer, or of an input without elements. NULL: there is none.
 */
static fe_val *
data_of(import *x, const char *name, double *rounding)
{
    fe_imp *im = &x->im;
    fe_call c = {.im = im};
    const fe_tensor *t = ef_map_get(&im->f->inits, ef_intern(im->ctx, name));
    if (t) {
        *rounding = t->type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16    ? 0x1p-10
                    : t->type == ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16 ? 0x1p-7
                                                                         : 0;
        return fe_load_known(&c, t);
    }
    const Onnx__GraphProto *g = im->f->proto->graph;
    for (size_t i = 0; i < g->n_input; i++) {
        if (strcmp(g->input[i]->name, name))
            continue;
        const Onnx__TypeProto__Tensor *type = g->input[i]->type->tensor_type;
        int64_t dim[IR_MAX_RANK];
        for (size_t k = 0; k < type->shape->n_dim; k++)
            dim[k] = type->shape->dim[k]->dim_value;
        return fe_known_val(im,
                            ir_type_get(im->ctx, kind_of(fe_dtype(type->elem_type)),
                                        (int)type->shape->n_dim, dim),
                            EF_NEWN(im->arena, double, 1));
    }
    return NULL;
}

static void
add_input(import *x, const char *name, node_run *run)
{
    fe_imp *im = &x->im;
    double rounding;
    fe_val *v = data_of(x, name, &rounding);
    bool real = v && v->type->dtype == IR_F32;
    if (!v || !strncmp(name, "want.", 5))
        return;
    run->fractions |= real;
    if (x->known == NODE_NONE || (x->known == NODE_INTEGERS && real)) {
        ir_param *p =
            ir_param_new(im->m, name, v->type, real ? x->floats : IR_CONST, 0);
        p->init = IR_INIT_VALUES;
        p->values = kept(im->m, v);
        v = fe_ir_val(im, p->value);
    }
    ef_map_set(im->arena, &im->vals, ef_intern(im->ctx, name), v);
}

static void
add_inputs(import *x, node_run *run)
{
    const fe_model *f = x->im.f;
    for (int i = 0; i < f->inits.n; i++)
        add_input(x, f->inits.key[i], run);
    for (size_t i = 0; i < f->proto->graph->n_input; i++)
        if (!ef_map_has(&f->inits,
                        ef_intern(x->im.ctx, f->proto->graph->input[i]->name)))
            add_input(x, f->proto->graph->input[i]->name, run);
}

static bool
add_result(import *x, const char *name, node_run *run)
{
    fe_imp *im = &x->im;
    Onnx__NodeProto none = ONNX__NODE_PROTO__INIT;
    fe_node node = {.p = &none, .loc = "results"};
    fe_call c = {.im = im, .n = &node};
    node_result *r = &run->out[run->n++];
    fe_val *v = fe_by_name(&c, ef_intern(im->ctx, name));
    fe_val *want = data_of(x, ef_printf(im->arena, "want.%s", name), &r->rounding);
    if (!v || !want)
        return false;
    r->type = v->type;
    r->value = v->data ? NULL : v->v;
    r->want_type = want->type;
    r->got = v->data ? kept(im->m, v) : NULL;
    r->want = kept(im->m, want);
    return true;
}

static bool
run_graph(import *x, node_run *run)
{
    fe_imp *im = &x->im;
    const Onnx__GraphProto *g = im->f->proto->graph;
    im->main = fe_graph_new(im, im->f->proto->graph);
    fe_graph_order(im, im->main);
    if (!fe_graph_supported(im, im->main))
        return false;
    add_inputs(x, run);
    if (!fe_run(im, im->main))
        return false;
    EF_ASSERT(g->n_output <= NODE_OUTPUTS);
    for (size_t i = 0; i < g->n_output; i++)
        if (!add_result(x, g->output[i]->name, run))
            return false;
    run->fractions &= run->out[0].want_type->dtype == IR_F32;
    return true;
}

/* The loader reads files. */
static bool
save(const node_test *t, char *path)
{
    int fd = mkstemp(path);
    bool ok = fd >= 0 && write(fd, t->bytes, t->n) == (ssize_t)t->n;
    return fd >= 0 && !close(fd) && ok;
}

bool
node_import(ir_module *m, const node_test *t, node_known known, ir_pclass floats,
            node_run *run)
{
    char path[] = "/tmp/efficc-node-XXXXXX";
    bool ok = save(t, path);
    EF_ASSERT(ok);
    *run = (node_run){0};
    m->ctx->file = t->name;
    fe_model *f = fe_load(m->ctx, path);
    if (f) {
import x = {.im = {.ctx = m->ctx, .f = f, .m = m, .arena = ef_arena_new() }, .t = t, .known = known, .floats = floats };
        x.im.block = m->step->first;
        char *end;
        run->rtol = strtod(fe_str(f->proto->producer_version), &end);
        run->atol = strtod(end, NULL);
        ok = run_graph(&x, run);
        ef_arena_free(x.im.arena);
    }
    unlink(path);
    fe_unload(f);
    return f && ok;
}

/* ---- modules ---- */

ir_module *
node_module(ef_ctx *ctx)
{
    ir_module *m = ir_module_new(ctx);
    ir_unit_new(m, "all");
    ir_block_new(ir_func_new(m, "step"), "all.fwd", IR_FWD, 0);
    return m;
}

void
node_finish(ir_module *m, int n, ir_value *const *value)
{
    ir_builder b = ir_end(m->step->first, NULL);
    ir_insert(&b, IR_OP_ret, NULL, n, value, 0, NULL, NULL, 0);
}

const char *
node_compare(ef_arena *a, const node_run *run, const node_result *r, const double *x)
{
    double rtol = run->rtol + 2 * r->rounding;
    double atol = run->atol + 1e-6 + r->rounding;
    if (r->type->rank != r->want_type->rank ||
        memcmp(r->type->dim, r->want_type->dim,
               sizeof *r->type->dim * (size_t)r->type->rank))
        return "another shape";
    if (r->type->dtype != r->want_type->dtype)
        return "another type";
    for (int64_t i = 0; i < ir_type_count(r->type); i++) {
        double got = x[i], want = r->want[i];
        bool same = got == want || (isnan(got) && isnan(want));
        if (!same && !(fabs(got - want) <= atol + rtol * fabs(want)))
            return ef_printf(a, "element %lld is %.9g, not %.9g", (long long)i, got,
                             want);
    }
    return NULL;
}
