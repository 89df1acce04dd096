/* onnx_head.c -- additions to a model's graph: initializers, and a classifier's head.
 *
 * The head computes what pass task computes: pool the hidden states, then one linear
 * layer. Several operators took their axes as an attribute before some opset and take them
 * as an input since; both forms are written.
 */
#include "onnx_int.h"

#include <stdlib.h>
#include <string.h>

enum { AXES_ARE_INPUT = 13, MEAN_AXES_ARE_INPUT = 18, IR_FREE_INITIALIZERS = 4 };

/* Appends to an array of protobuf-c that lies in the arena. */
static void
append(ef_arena *a, size_t *n, void *array, void *item)
{
    void **old, **grown = EF_NEWN(a, void *, *n + 1);
    memcpy(&old, array, sizeof(old));
    if (*n)
        memcpy(grown, old, sizeof(void *) * *n);
    grown[(*n)++] = item;
    memcpy(array, &grown, sizeof(grown));
}

static bool
is_taken(const Onnx__GraphProto *g, const char *name)
{
    for (size_t i = 0; i < g->n_initializer; i++)
        if (!strcmp(fe_str(g->initializer[i]->name), name))
            return true;
    for (size_t i = 0; i < g->n_input; i++)
        if (!strcmp(fe_str(g->input[i]->name), name))
            return true;
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_output; k++)
            if (!strcmp(g->node[i]->output[k], name))
                return true;
    return false;
}

static char *
fresh(const fe_model *m, const char *name)
{
    char *s = ef_strdup(m->arena, name);
    for (int i = 1; is_taken(m->proto->graph, s); i++)
        s = ef_printf(m->arena, "%s.%d", name, i);
    return s;
}

Onnx__TensorProto *
fe_new_initializer(fe_model *m, const char *name, int type, int rank,
                   const int64_t *dim)
{
    Onnx__GraphProto *g = m->proto->graph;
    Onnx__TensorProto *t = EF_NEW(m->arena, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    t->name = fresh(m, name);
    t->has_data_type = true;
    t->data_type = type;
    t->n_dims = (size_t)rank;
    t->dims = ef_dup(m->arena, dim, sizeof(*dim) * (size_t)rank);
    append(m->arena, &g->n_initializer, &g->initializer, t);
    if (m->proto->ir_version <
        IR_FREE_INITIALIZERS) /* else it had to be an input, too */
        m->proto->ir_version = IR_FREE_INITIALIZERS;
    return t;
}

typedef struct head {
    fe_model *m;
    int type;   /* of the hidden states */
    int serial; /* of node names */
} head;

/* An int64 constant: a scalar if rank is 0, else one element. */
static char *
whole(head *h, int rank, int64_t value)
{
    const int64_t one = 1;
    Onnx__TensorProto *t = fe_new_initializer(
        h->m, "head.index", ONNX__TENSOR_PROTO__DATA_TYPE__INT64, rank, &one);
    t->n_int64_data = 1;
    t->int64_data = ef_dup(h->m->arena, &value, sizeof(value));
    return t->name;
}

static Onnx__NodeProto *
node(head *h, const char *op, const char *out, char *a, char *b)
{
    ef_arena *arena = h->m->arena;
    Onnx__GraphProto *g = h->m->proto->graph;
    Onnx__NodeProto *n = EF_NEW(arena, Onnx__NodeProto);
    onnx__node_proto__init(n);
    n->op_type = ef_strdup(arena, op);
    n->name = ef_printf(arena, "/head/%s_%d", op, ++h->serial);
    append(arena, &n->n_input, &n->input, a);
    if (b)
        append(arena, &n->n_input, &n->input, b);
    append(arena, &n->n_output, &n->output, fresh(h->m, out));
    append(arena, &g->n_node, &g->node, n);
    return n;
}

static Onnx__AttributeProto *
attribute(head *h, Onnx__NodeProto *n, const char *name,
          Onnx__AttributeProto__AttributeType type)
{
    Onnx__AttributeProto *a = EF_NEW(h->m->arena, Onnx__AttributeProto);
    onnx__attribute_proto__init(a);
    a->name = ef_strdup(h->m->arena, name);
    a->has_type = true;
    a->type = type;
    append(h->m->arena, &n->n_attribute, &n->attribute, a);
    return a;
}

static void
attribute_int(head *h, Onnx__NodeProto *n, const char *name, int64_t v)
{
    Onnx__AttributeProto *a =
        attribute(h, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    a->has_i = true;
    a->i = v;
}

/* A node that works along one axis, which is an input since opset `since`. */
static Onnx__NodeProto *
along(head *h, const char *op, char *x, int64_t axis, int since)
{
    bool input = h->m->opset >= since;
    Onnx__NodeProto *n =
        node(h, op, "head.pooled", x, input ? whole(h, 1, axis) : NULL);
    if (!input) {
        Onnx__AttributeProto *a =
            attribute(h, n, "axes", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
        a->n_ints = 1;
        a->ints = ef_dup(h->m->arena, &axis, sizeof(axis));
    }
    if (strcmp(op, "Unsqueeze"))
        attribute_int(h, n, "keepdims", 0);
    return n;
}

/* Mean of x [B,S,H] over the positions where mask [B,S] is not 0. */
static char *
masked_mean(head *h, char *x, char *mask)
{
    Onnx__NodeProto *is_on = node(h, "Cast", "head.mask", mask, NULL);
    attribute_int(h, is_on, "to", ONNX__TENSOR_PROTO__DATA_TYPE__BOOL);
    Onnx__NodeProto *number = node(h, "Cast", "head.mask", is_on->output[0], NULL);
    attribute_int(h, number, "to", h->type);
    Onnx__NodeProto *wide = along(h, "Unsqueeze", number->output[0], 2, AXES_ARE_INPUT);
    Onnx__NodeProto *kept = node(h, "Mul", "head.pooled", x, wide->output[0]);
    Onnx__NodeProto *sum = along(h, "ReduceSum", kept->output[0], 1, AXES_ARE_INPUT);
    Onnx__NodeProto *n = along(h, "ReduceSum", wide->output[0], 1, AXES_ARE_INPUT);
    Onnx__NodeProto *one = node(h, "Cast", "head.one", whole(h, 0, 1), NULL);
    attribute_int(h, one, "to", h->type);
    Onnx__NodeProto *count = node(h, "Max", "head.count", n->output[0], one->output[0]);
    return node(h, "Div", "head.pooled", sum->output[0], count->output[0])->output[0];
}

static char *
pooled(head *h, const ir_module *module, char *x)
{
    const char *how = ir_meta_get(module, "pool"),
               *mask = ir_meta_get(module, "pool.mask");
    if (!strcmp(how, "pooler"))
        return x;
    if (!strcmp(how, "mean") && mask)
        return masked_mean(h, x, ef_strdup(h->m->arena, mask));
    if (!strcmp(how, "mean"))
        return along(h, "ReduceMean", x, 1, MEAN_AXES_ARE_INPUT)->output[0];
    EF_ASSERT(!strcmp(how, "first"));
    Onnx__NodeProto *n = node(h, "Gather", "head.pooled", x, whole(h, 0, 0));
    attribute_int(h, n, "axis", 1);
    return n->output[0];
}

/* Output `name` [batch of like, classes], in front of the others. */
static void
add_output(head *h, char *name, const Onnx__ValueInfoProto *like, int64_t classes)
{
    ef_arena *a = h->m->arena;
    Onnx__GraphProto *g = h->m->proto->graph;
    Onnx__TensorShapeProto *shape = EF_NEW(a, Onnx__TensorShapeProto);
    Onnx__TensorShapeProto__Dimension *dim[2];
    onnx__tensor_shape_proto__init(shape);
    for (int i = 0; i < 2; i++) {
        dim[i] = EF_NEW(a, Onnx__TensorShapeProto__Dimension);
        onnx__tensor_shape_proto__dimension__init(dim[i]);
        append(a, &shape->n_dim, &shape->dim, dim[i]);
    }
    const Onnx__TypeProto__Tensor *t = like->type ? like->type->tensor_type : NULL;
    if (t && t->shape && t->shape->n_dim)
        *dim[0] = *t->shape->dim[0];
    dim[1]->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    dim[1]->dim_value = classes;
    Onnx__TypeProto__Tensor *tensor = EF_NEW(a, Onnx__TypeProto__Tensor);
    onnx__type_proto__tensor__init(tensor);
    tensor->has_elem_type = true;
    tensor->elem_type = h->type;
    tensor->shape = shape;
    Onnx__TypeProto *type = EF_NEW(a, Onnx__TypeProto);
    onnx__type_proto__init(type);
    type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    type->tensor_type = tensor;
    Onnx__ValueInfoProto *v = EF_NEW(a, Onnx__ValueInfoProto);
    onnx__value_info_proto__init(v);
    v->name = name;
    v->type = type;
    append(a, &g->n_output, &g->output, v);
    memmove(g->output + 1, g->output, sizeof(*g->output) * (g->n_output - 1));
    g->output[0] = v;
}

static const Onnx__ValueInfoProto *
output_named(const Onnx__GraphProto *g, const char *name)
{
    for (size_t i = 0; name && i < g->n_output; i++)
        if (!strcmp(fe_str(g->output[i]->name), name))
            return g->output[i];
    return NULL;
}

bool
fe_add_head(fe_model *m, const ir_module *module, const ir_param *weight,
            const ir_param *bias, Onnx__TensorProto *made[2])
{
    const Onnx__ValueInfoProto *in =
        output_named(m->proto->graph, ir_meta_get(module, "head.input"));
    EF_ASSERT(in);
    head h = {.m = m, .type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT};
    if (in->type)
        h.type = in->type->tensor_type->elem_type;
    const ir_param *param[2] = {weight, bias};
    Onnx__NodeProto *gemm = NULL;
    for (int i = 0; i < 2; i++) {
        if (!param[i])
            continue;
        const ir_type *t = param[i]->value->type;
        made[i] = fe_new_initializer(m, param[i]->value->name, h.type, t->rank, t->dim);
        if (i)
            append(m->arena, &gemm->n_input, &gemm->input, made[i]->name);
        else
            gemm =
                node(&h, "Gemm", "logits", pooled(&h, module, in->name), made[i]->name);
    }
    attribute_int(&h, gemm, "transB", 1);
    add_output(&h, gemm->output[0], in, weight->value->type->dim[0]);
    return true;
}
