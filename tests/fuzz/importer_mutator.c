/* importer_mutator.c -- inputs of the importer that are changed as models, not as bytes.
 *
 * Most bytes of a protobuf are lengths and tags, so a changed byte seldom leaves a model.
 * Here the input is unpacked, a few of its parts are changed into what the importer
 * understands but does not expect, and it is packed again: other operators, operands,
 * attributes, shapes. One input in four is changed as bytes all the same.
 */
#include "frontend/import_int.h"

#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed);

enum { CHANGES = 4 };

static uint64_t state;

/* splitmix64; below n, n > 0 */
static size_t
pick(size_t n)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (size_t)((z ^ z >> 31) % n);
}

static int64_t
number(void)
{
    static const int64_t odd[] = {INT64_MIN, INT64_MAX, -1,        -2,       0, 1,
                                  2,         3,         4,         7,        8, 16,
                                  1 << 20,   1ll << 31, 1ll << 40, 1ll << 62};
    size_t k = pick(EF_COUNT(odd) + 8);
    return k < EF_COUNT(odd) ? odd[k] : (int64_t)pick(12);
}

static void
set_string(char **s, const char *to)
{
    char *copy = strdup(to);
    if (*s != protobuf_c_empty_string)
        free(*s);
    *s = copy;
}

/* A name that some node, initializer or input of the graph gives; NULL: there is none. */
static const char *
some_name(const Onnx__GraphProto *g)
{
    size_t kind = pick(4), n;
    if (kind == 0 && g->n_initializer)
        return g->initializer[pick(g->n_initializer)]->name;
    if (kind == 1 && g->n_input)
        return g->input[pick(g->n_input)]->name;
    const Onnx__NodeProto *node = g->n_node ? g->node[pick(g->n_node)] : NULL;
    n = node ? node->n_output : 0;
    return n ? node->output[pick(n)] : NULL;
}

static void
change_tensor(Onnx__TensorProto *t)
{
    int64_t x = number();
    switch (pick(3)) {
    case 0:
        if (t->n_dims)
            t->dims[pick(t->n_dims)] = x;
        break;
    case 1:
        if (t->has_raw_data && t->raw_data.len >= sizeof x)
            memcpy(t->raw_data.data + pick(t->raw_data.len / sizeof x) * sizeof x, &x,
                   sizeof x);
        break;
    default:
        t->data_type = (int32_t)pick(18);
    }
}

static void
change_attribute(Onnx__AttributeProto *a)
{
    if (a->t)
        change_tensor(a->t);
    else if (a->n_ints)
        a->ints[pick(a->n_ints)] = number();
    else if (pick(4))
        a->i = number();
    else
        a->f = (float)number();
}

static void
change_node(Onnx__GraphProto *g, Onnx__NodeProto *n)
{
    const char *name = some_name(g);
    size_t at;
    switch (pick(6)) {
    case 0:
        set_string(&n->op_type, fe_rows[pick((size_t)fe_nrows)].name);
        break;
    case 1:
    case 2:
        if (n->n_input && name)
            set_string(&n->input[pick(n->n_input)], name);
        break;
    case 3: /* one operand fewer */
        if (n->n_input)
            free(n->input[--n->n_input]);
        break;
    case 4: /* one more reader */
        at = pick(g->n_node);
        if (n->n_output && g->node[at]->n_input)
            set_string(&g->node[at]->input[pick(g->node[at]->n_input)], n->output[0]);
        break;
    default:
        if (n->n_attribute)
            change_attribute(n->attribute[pick(n->n_attribute)]);
    }
}

static void
change_input(Onnx__ValueInfoProto *in)
{
    Onnx__TypeProto *type = in->type;
    if (!type || type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
        return;
    Onnx__TensorShapeProto *shape = type->tensor_type->shape;
    if (!pick(3))
        type->tensor_type->elem_type = (int32_t)pick(18);
    else if (shape && shape->n_dim) {
        Onnx__TensorShapeProto__Dimension *d = shape->dim[pick(shape->n_dim)];
        if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
            free(d->dim_param);
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        d->dim_value = number();
    }
}

static void
change(Onnx__ModelProto *m)
{
    Onnx__GraphProto *g = m->graph;
    size_t kind = pick(10);
    if (kind == 0 && m->n_opset_import)
        m->opset_import[0]->version = (int64_t)(7 + pick(20));
    else if (kind == 1 && g->n_input)
        change_input(g->input[pick(g->n_input)]);
    else if (kind == 2 && g->n_initializer)
        change_tensor(g->initializer[pick(g->n_initializer)]);
    else if (g->n_node)
        change_node(g, g->node[pick(g->n_node)]);
}

size_t
LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed)
{
    state = seed;
    Onnx__ModelProto *m = pick(4) ? onnx__model_proto__unpack(NULL, n, data) : NULL;
    size_t made = 0;
    if (m && m->graph) {
        for (size_t i = 0, k = 1 + pick(CHANGES); i < k; i++)
            change(m);
        made = onnx__model_proto__get_packed_size(m);
        if (made <= max)
            onnx__model_proto__pack(m, data);
    }
    if (m)
        onnx__model_proto__free_unpacked(m, NULL);
    return made && made <= max ? made : LLVMFuzzerMutate(data, n, max);
}
