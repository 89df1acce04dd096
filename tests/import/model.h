/* model.h -- ONNX models for tests, written as text.
 *
 *     w = f32[4,2] 1 2 3 4 5 6 7 8 | /h.0/fc/MatMul: y = MatMul(x, w) | z = Clip(y, , hi)
 *
 * Statements are separated by '|'. A tensor is TYPE[dims] and its elements; "~7" instead of
 * elements gives them by formula, "^7" the same made positive. A node is OUT,OUT =
 * Op(in, in) and attributes: axis=1 alpha=0.5 axes=[0,-1] how="tanh" value=<i64[1] 7>
 * then_branch={statements -> result}; "com.example::Op" has a domain. A name and a colon
 * before the statement is the node's name.
 *
 * tests/golden/import/make_ops.py reads the same text.
 */
#ifndef EFFICC_MODEL_H
#define EFFICC_MODEL_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/onnx_int.h"

typedef struct model {
    ef_arena *a;
    Onnx__ModelProto *p;
    const char *s;    /* rest of the text */
    const char *path; /* of the file; NULL: not written yet */
} model;

#define MODEL_NEW(m, Type, INIT, v) \
    Type *v = EF_NEW((m)->a, Type); \
    *v = (Type)INIT

/* Appends to one of protobuf-c's arrays. */
#define MODEL_PUSH(m, array, n, x)                      \
    do {                                                \
        void **more = EF_NEWN((m)->a, void *, (n) + 1); \
        if (n)                                          \
            memcpy(more, array, sizeof *more *(n));     \
        more[(n)++] = (x);                              \
        array = (void *)more;                           \
    } while (0)

static inline void
model_blank(model *m)
{
    while (*m->s == ' ')
        m->s++;
}

static inline bool
model_take(model *m, char c)
{
    model_blank(m);
    if (*m->s != c)
        return false;
    m->s++;
    model_blank(m);
    return true;
}

/* Characters up to one of `stop`, without blanks around them. */
static inline char *
model_word(model *m, const char *stop)
{
    model_blank(m);
    size_t n = strcspn(m->s, stop);
    char *w = ef_strndup(m->a, m->s, n);
    m->s += n;
    while (n && w[n - 1] == ' ')
        w[--n] = '\0';
    return w;
}

static inline double
model_formula(int64_t i, long seed, bool positive)
{
    double x = (double)((i * 7919 + seed * 104729) % 101 - 50) / 32;
    return positive ? (x < 0 ? -x : x) + 0.5 : x;
}

static inline void
model_element(Onnx__TensorProto *t, int64_t i, double x)
{
    switch (t->data_type) {
    case 1:
        ((float *)(void *)t->raw_data.data)[i] = (float)x;
        break;
    case 6:
        ((int32_t *)(void *)t->raw_data.data)[i] = (int32_t)x;
        break;
    case 7:
        ((int64_t *)(void *)t->raw_data.data)[i] = x >= 0x1p63    ? INT64_MAX
                                                   : x <= -0x1p63 ? INT64_MIN
                                                                  : (int64_t)x;
        break;
    case 2:
    case 3:
        t->raw_data.data[i] = (uint8_t)(int)x;
        break;
    default:
        t->raw_data.data[i] = x != 0;
    }
}

/* "i64[2,3] 1 2 3 4 5 6" */
static inline Onnx__TensorProto *
model_tensor(model *m, const char *name)
{
    static const struct {
        const char *name;
        int type, bytes;
    } types[] = {{"f32", 1, 4},  {"i32", 6, 4}, {"i64", 7, 8},
                 {"bool", 9, 1}, {"u8", 2, 1},  {"i8", 3, 1}};
    MODEL_NEW(m, Onnx__TensorProto, ONNX__TENSOR_PROTO__INIT, t);
    const char *type = model_word(m, "[");
    int bytes = 1;
    for (size_t k = 0; k < EF_COUNT(types); k++)
        if (!strcmp(types[k].name, type)) {
            t->data_type = types[k].type;
            bytes = types[k].bytes;
        }
    t->has_data_type = 1;
    t->name = ef_strdup(m->a, name);
    t->dims = EF_NEWN(m->a, int64_t, 8);
    int64_t n = 1;
    m->s++;
    while (!model_take(m, ']')) {
        t->dims[t->n_dims] = strtoll(model_word(m, ",]"), NULL, 10);
        n *= t->dims[t->n_dims++];
        model_take(m, ',');
    }
    t->has_raw_data = 1;
    t->raw_data.len = (size_t)(n * bytes);
    t->raw_data.data = ef_alloc(m->a, t->raw_data.len + 1);
    model_blank(m);
    bool positive = *m->s == '^', formula = positive || *m->s == '~';
    long seed = formula ? strtol(m->s + 1, (char **)&m->s, 10) : 0;
    for (int64_t i = 0; i < n; i++)
        model_element(t, i,
                      formula ? model_formula(i, seed, positive)
                              : strtod(m->s, (char **)&m->s));
    model_blank(m);
    return t;
}

static inline void model_statements(model *m, Onnx__GraphProto *g);

static inline void
model_number(Onnx__AttributeProto *a, const char *word)
{
    bool real = strpbrk(word, ".e") != NULL;
    a->type = real ? 1 : 2;
    a->has_i = !real;
    a->has_f = real;
    a->i = real ? 0 : strtoll(word, NULL, 10);
    a->f = strtof(word, NULL);
}

static inline void
model_list(model *m, Onnx__AttributeProto *a)
{
    a->ints = EF_NEWN(m->a, int64_t, 16);
    a->floats = EF_NEWN(m->a, float, 16);
    while (!model_take(m, ']')) {
        const char *word = model_word(m, ",]");
        if (strpbrk(word, ".e"))
            a->floats[a->n_floats++] = strtof(word, NULL);
        else
            a->ints[a->n_ints++] = strtoll(word, NULL, 10);
        model_take(m, ',');
    }
    a->type = a->n_floats ? 6 : 7;
}

static inline void
model_branch(model *m, Onnx__AttributeProto *a)
{
    MODEL_NEW(m, Onnx__GraphProto, ONNX__GRAPH_PROTO__INIT, g);
    MODEL_NEW(m, Onnx__ValueInfoProto, ONNX__VALUE_INFO_PROTO__INIT, out);
    model_statements(m, g);
    m->s += 2; /* -> */
    out->name = model_word(m, "}");
    m->s++;
    MODEL_PUSH(m, g->output, g->n_output, out);
    g->name = a->name;
    a->type = 5;
    a->g = g;
}

static inline Onnx__AttributeProto *
model_attr(model *m)
{
    MODEL_NEW(m, Onnx__AttributeProto, ONNX__ATTRIBUTE_PROTO__INIT, a);
    a->name = model_word(m, "=");
    a->has_type = 1;
    m->s++;
    if (model_take(m, '[')) {
        model_list(m, a);
    } else if (model_take(m, '{')) {
        model_branch(m, a);
    } else if (model_take(m, '<')) {
        a->type = 4;
        a->t = model_tensor(m, "");
        model_take(m, '>');
    } else if (model_take(m, '"')) {
        a->type = 3;
        a->has_s = 1;
        a->s.data = (uint8_t *)model_word(m, "\"");
        a->s.len = strlen((char *)a->s.data);
        m->s++;
    } else {
        model_number(a, model_word(m, " |}"));
    }
    model_blank(m);
    return a;
}

static inline void
model_node(model *m, Onnx__GraphProto *g, char *name, char *outs)
{
    MODEL_NEW(m, Onnx__NodeProto, ONNX__NODE_PROTO__INIT, n);
    n->name = name;
    for (char *w; (w = strsep(&outs, ","));) {
        w += strspn(w, " ");
        w[strcspn(w, " ")] = '\0';
        MODEL_PUSH(m, n->output, n->n_output, w);
    }
    char *op = model_word(m, "("), *colon = strstr(op, "::");
    if (colon) {
        n->domain = ef_strndup(m->a, op, (size_t)(colon - op));
        op = colon + 2;
    }
    n->op_type = op;
    m->s++;
    while (!model_take(m, ')')) {
        MODEL_PUSH(m, n->input, n->n_input, model_word(m, ",)"));
        if (model_take(m, ',') && *m->s == ')')
            MODEL_PUSH(m, n->input, n->n_input, ef_strdup(m->a, ""));
    }
    while (*m->s && *m->s != '|' && *m->s != '}' && strncmp(m->s, "->", 2))
        MODEL_PUSH(m, n->attribute, n->n_attribute, model_attr(m));
    MODEL_PUSH(m, g->node, g->n_node, n);
}

static inline void
model_statements(model *m, Onnx__GraphProto *g)
{
    do {
        char *head = model_word(m, "=");
        char *colon = strstr(head, ": "), *name = NULL;
        m->s++;
        if (colon) {
            name = ef_strndup(m->a, head, (size_t)(colon - head));
            head = colon + 2;
        }
        model_blank(m);
        size_t word = strcspn(m->s, "([");
        if (m->s[word] == '[') {
            Onnx__TensorProto *t = model_tensor(m, head);
            MODEL_PUSH(m, g->initializer, g->n_initializer, t);
        } else {
            model_node(m, g, name, head);
        }
    } while (model_take(m, '|'));
}

/* "b,s" or "2,8"; type as in TensorProto. NULL dims: no shape. */
static inline Onnx__ValueInfoProto *
model_value(model *m, const char *name, int type, const char *dims)
{
    MODEL_NEW(m, Onnx__ValueInfoProto, ONNX__VALUE_INFO_PROTO__INIT, v);
    MODEL_NEW(m, Onnx__TypeProto, ONNX__TYPE_PROTO__INIT, t);
    MODEL_NEW(m, Onnx__TypeProto__Tensor, ONNX__TYPE_PROTO__TENSOR__INIT, tensor);
    MODEL_NEW(m, Onnx__TensorShapeProto, ONNX__TENSOR_SHAPE_PROTO__INIT, shape);
    v->name = ef_strdup(m->a, name);
    v->type = t;
    t->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    t->tensor_type = tensor;
    tensor->has_elem_type = 1;
    tensor->elem_type = type;
    tensor->shape = dims ? shape : NULL;
    char *copy = ef_strdup(m->a, dims ? dims : "");
    for (char *save, *w = strtok_r(copy, ",", &save); w;
         w = strtok_r(NULL, ",", &save)) {
        MODEL_NEW(m, Onnx__TensorShapeProto__Dimension,
                  ONNX__TENSOR_SHAPE_PROTO__DIMENSION__INIT, d);
        bool number = isdigit((unsigned char)*w);
        d->value_case = number ? ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE
                               : ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
        if (number)
            d->dim_value = strtoll(w, NULL, 10);
        else
            d->dim_param = w;
        MODEL_PUSH(m, shape->dim, shape->n_dim, d);
    }
    return v;
}

static inline void
model_input(model *m, const char *name, int type, const char *dims)
{
    Onnx__GraphProto *g = m->p->graph;
    MODEL_PUSH(m, g->input, g->n_input, model_value(m, name, type, dims));
}

static inline void
model_output(model *m, const char *name)
{
    Onnx__GraphProto *g = m->p->graph;
    MODEL_PUSH(m, g->output, g->n_output, model_value(m, name, 1, NULL));
}

static inline model
model_new(int opset, const char *text)
{
    model m = {.a = ef_arena_new()};
    MODEL_NEW(&m, Onnx__ModelProto, ONNX__MODEL_PROTO__INIT, p);
    MODEL_NEW(&m, Onnx__GraphProto, ONNX__GRAPH_PROTO__INIT, g);
    MODEL_NEW(&m, Onnx__OperatorSetIdProto, ONNX__OPERATOR_SET_ID_PROTO__INIT, set);
    m.p = p;
    p->graph = g;
    p->has_ir_version = 1;
    p->ir_version = 8;
    p->producer_name = ef_strdup(m.a, "test");
    set->domain = ef_strdup(m.a, "");
    set->has_version = 1;
    set->version = opset;
    MODEL_PUSH(&m, p->opset_import, p->n_opset_import, set);
    static const char *const others[] = {"com.example", "com.microsoft"};
    for (size_t i = 0; i < EF_COUNT(others); i++) {
        MODEL_NEW(&m, Onnx__OperatorSetIdProto, ONNX__OPERATOR_SET_ID_PROTO__INIT, o);
        o->domain = ef_strdup(m.a, others[i]);
        o->has_version = 1;
        o->version = 1;
        MODEL_PUSH(&m, p->opset_import, p->n_opset_import, o);
    }
    g->name = ef_strdup(m.a, "test");
    m.s = text;
    model_statements(&m, g);
    return m;
}

/* Writes the model to a new file, which lives as long as the model. */
static inline const char *
model_save(model *m)
{
    char *path = ef_strdup(m->a, "/tmp/efficc-test-XXXXXX");
    int fd = mkstemp(path);
    size_t n = onnx__model_proto__get_packed_size(m->p);
    uint8_t *bytes = ef_alloc(m->a, n + 1);
    onnx__model_proto__pack(m->p, bytes);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || close(fd))
        abort();
    return m->path = path;
}

/* Statements that give x, p (positive): f32[b,s,4], xb: bool[b,s], from ids and mask. */
#define MODEL_BASE                                                                    \
    "emb.weight = f32[16,4] ~1 | pos.weight = f32[16,4] ^2 | x = Gather(emb.weight, " \
    "ids) "                                                                           \
    "| p = Gather(pos.weight, ids) | xb = Cast(mask) to=9 | "

/* Imports the model; NULL: refused. *f is to be unloaded. */
static inline ir_module *
model_import(ef_ctx *ctx, model *m, fe_model **f)
{
    const char *path = model_save(m);
    ctx->file = "model.onnx";
    *f = fe_load(ctx, path);
    ir_module *module = *f ? fe_import(ctx, *f) : NULL;
    if (module && ir_verify(module)) {
        ir_module_free(module);
        module = NULL;
    }
    return module;
}

static inline void
model_free(model *m)
{
    if (m->path)
        unlink(m->path);
    ef_arena_free(m->a);
}

#endif
