/* cudnn_graph.c -- attention and its gradient as graphs of cuDNN's operations.
 *
 * cuDNN knows attention by its parts: a graph of two (of the gradient, five) products with the
 * softmax between them, in the order that cuDNN's own C++ frontend writes it (cudnn-frontend,
 * scaled_dot_product_flash_attention.h), is matched as a whole and becomes one kernel, which is
 * compiled when the plan is finalised. Nothing of its inner tensors is ever stored.
 *
 * A graph is of [batch, heads, seq, d] with strides, so that packed q, k and v are as good as
 * others, and keys and values may have fewer heads. Masked keys get a bias. Rows are the same
 * graph with ragged tensors: sample b begins at an offset of its own, in elements, and has a
 * length, behind which queries and keys are masked.
 */
#include "cudnn_api.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNED = 16, OPS = 40, CONFIGS = 4, FIRST_INNER = 1000 };

typedef struct build {
    const rtc_dnn_api *api;
    const rtc_dnn_shape *s;
    rtc_dnn_plan *p;
    void *op[OPS];
    int64_t nops, inner; /* inner: uid of the next tensor that is not stored */
    void *lengths;
    int status; /* of the first call that failed */
    int attribute;
} build;

typedef struct dims {
    int64_t n[4];
} dims;

/* ---- descriptors ---- */

static void
note(build *b, int status, int attribute)
{
    if (!status || b->status)
        return;
    b->status = status;
    b->attribute = attribute;
}

static void *
create(build *b, int type)
{
    void *d = NULL;
    if (b->status || b->p->nparts == RTC_DNN_PARTS)
        return NULL;
    note(b, b->api->BackendCreateDescriptor(type, &d), type);
    if (d)
        b->p->part[b->p->nparts++] = d;
    return d;
}

static void
set(build *b, void *d, int attribute, int type, int64_t n, const void *value)
{
    if (!b->status)
        note(b, b->api->BackendSetAttribute(d, attribute, type, n, value), attribute);
}

static void
set_int(build *b, void *d, int attribute, int64_t x)
{
    set(b, d, attribute, DNN_TYPE_INT64, 1, &x);
}

/* An enumeration's constant; those of cuDNN are ints. */
static void
set_enum(build *b, void *d, int attribute, int type, int x)
{
    set(b, d, attribute, type, 1, &x);
}

static void
set_part(build *b, void *d, int attribute, void *part)
{
    if (part)
        set(b, d, attribute, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static void *
finish(build *b, void *d)
{
    if (!b->status)
        note(b, b->api->BackendFinalize(d), -1);
    return d;
}

static void
add_op(build *b, void *d)
{
    finish(b, d);
    if (b->nops < OPS)
        b->op[b->nops++] = d;
}

/* ---- tensors ---- */

static dims
dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    (void)a;
    return (dims){{b * c * d, c * d, d, 1}};
}

/* uid 0: an inner one. ragged: NULL, or where samples begin. */
static void *
tensor(build *b, int64_t uid, int type, dims n, dims step, void *ragged)
{
    void *d = create(b, DNN_BACKEND_TENSOR_DESCRIPTOR);
    bool inner = uid == 0, value = uid >= DNN_SCALE && uid <= DNN_ONE;
    if (!inner)
        b->p->has[uid] = true;
    set_int(b, d, DNN_ATTR_TENSOR_UNIQUE_ID, inner ? b->inner++ : uid);
    set_enum(b, d, DNN_ATTR_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, type);
    set(b, d, DNN_ATTR_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, n.n);
    set(b, d, DNN_ATTR_TENSOR_STRIDES, DNN_TYPE_INT64, 4, step.n);
    set_int(b, d, DNN_ATTR_TENSOR_BYTE_ALIGNMENT, value ? 4 : ALIGNED);
    set(b, d, DNN_ATTR_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &inner);
    if (value)
        set(b, d, DNN_ATTR_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 1, &value);
    set_part(b, d, DNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged);
    return finish(b, d);
}

static void *
value(build *b, int64_t uid)
{
    dims one = {{1, 1, 1, 1}};
    return tensor(b, uid, DNN_DATA_FLOAT, one, one, NULL);
}

/* [batch, ..] of whole numbers: lengths, offsets. */
static void *
counts(build *b, int64_t uid, int type, int64_t n)
{
    return tensor(b, uid, type, (dims){{n, 1, 1, 1}}, (dims){{1, 1, 1, 1}}, NULL);
}

static void *
offsets(build *b, int64_t uid)
{
    return b->s->rows ? counts(b, uid, DNN_DATA_INT64, b->s->batch + 1) : NULL;
}

static void *
inner(build *b, int type, int64_t rows, int64_t cols)
{
    const rtc_dnn_shape *s = b->s;
    return tensor(b, 0, type, (dims){{s->batch, s->heads, rows, cols}},
                  dense(s->batch, s->heads, rows, cols), NULL);
}

static void *
scores(build *b, int type)
{
    return inner(b, type, b->s->seq, b->s->seq);
}

static int
low(const build *b)
{
    return b->s->type == RT_BF16 ? DNN_DATA_BFLOAT16 : DNN_DATA_HALF;
}

typedef struct heads { /* of q, k, v or y */
    int64_t n, ld, step;
    void *begin;
} heads;

static dims
steps(const build *b, const heads *h)
{
    return (dims){{b->s->seq * h->ld, h->step, h->ld, 1}};
}

/* A tensor of heads, [batch, n, seq, d]. */
static void *
of_heads(build *b, int64_t uid, const heads *h)
{
    return tensor(b, uid, low(b), (dims){{b->s->batch, h->n, b->s->seq, b->s->d}},
                  steps(b, h), h->begin);
}

/* The same, turned: [batch, n, d, seq]. */
static void *
turned(build *b, int64_t uid, const heads *h)
{
    dims t = steps(b, h);
    t = (dims){{t.n[0], t.n[1], t.n[3], t.n[2]}};
    return tensor(b, uid, low(b), (dims){{b->s->batch, h->n, b->s->d, b->s->seq}}, t,
                  h->begin);
}

/* [batch, heads, seq, 1] as lse is: of rows, [rows, heads]. */
static void *
of_lse(build *b, int64_t uid, void *begin)
{
    const rtc_dnn_shape *s = b->s;
    dims n = {{s->batch, s->heads, s->seq, 1}};
    dims step = s->rows ? (dims){{s->seq * s->heads, 1, s->heads, 1}}
                        : dense(s->batch, s->heads, s->seq, 1);
    return tensor(b, uid, DNN_DATA_FLOAT, n, step, begin);
}

/* ---- operations; each returns its result ---- */

typedef struct inputs {
    void *x, *b, *t;
} inputs;

static void *
pointwise_of(build *b, int mode, int type, inputs in, void *y, int axis)
{
    void *p = create(b, DNN_BACKEND_POINTWISE_DESCRIPTOR);
    set_enum(b, p, DNN_ATTR_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, mode);
    set_enum(b, p, DNN_ATTR_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, type);
    if (axis >= 0)
        set_int(b, p, DNN_ATTR_POINTWISE_AXIS, axis);
    finish(b, p);
    void *op = create(b, DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_part(b, op, DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    set_part(b, op, DNN_ATTR_OPERATION_POINTWISE_XDESC, in.x);
    set_part(b, op, DNN_ATTR_OPERATION_POINTWISE_BDESC, in.b);
    set_part(b, op, DNN_ATTR_OPERATION_POINTWISE_TDESC, in.t);
    set_part(b, op, DNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(b, op);
    return y;
}

static void *
pointwise(build *b, int mode, inputs in, void *y)
{
    return pointwise_of(b, mode, DNN_DATA_FLOAT, in, y, -1);
}

/* Along which of its sides a product ends with the sample. */
enum { END_M = 1, END_N = 2, END_K = 4 };

static void *
product(build *b, void *x, void *y, void *z, int ends)
{
    void *p = create(b, DNN_BACKEND_MATMUL_DESCRIPTOR);
    set_enum(b, p, DNN_ATTR_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, DNN_DATA_FLOAT);
    finish(b, p);
    void *op = create(b, DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_part(b, op, DNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_part(b, op, DNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_part(b, op, DNN_ATTR_OPERATION_MATMUL_CDESC, z);
    set_part(b, op, DNN_ATTR_OPERATION_MATMUL_DESC, p);
    set_part(b, op, DNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
             ends & END_M ? b->lengths : NULL);
    set_part(b, op, DNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
             ends & END_N ? b->lengths : NULL);
    set_part(b, op, DNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC,
             ends & END_K ? b->lengths : NULL);
    add_op(b, op);
    return z;
}

static void *
reduce(build *b, int how, void *x, void *y)
{
    void *p = create(b, DNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_enum(b, p, DNN_ATTR_REDUCTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, DNN_DATA_FLOAT);
    set_enum(b, p, DNN_ATTR_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
    finish(b, p);
    void *op = create(b, DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_part(b, op, DNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_part(b, op, DNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_part(b, op, DNN_ATTR_OPERATION_REDUCTION_DESC, p);
    add_op(b, op);
    return y;
}

static void *
reshape(build *b, void *x, void *y)
{
    void *op = create(b, DNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_part(b, op, DNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_part(b, op, DNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(b, op);
    return y;
}

/* ---- what is masked ---- */

static void *
index_of(build *b, void *x, int axis, int type)
{
    return pointwise_of(b, DNN_POINTWISE_GEN_INDEX, type, (inputs){.x = x},
                        scores(b, DNN_DATA_INT32), axis);
}

static void *
compare(build *b, int mode, void *x, void *y)
{
    return pointwise_of(b, mode, DNN_DATA_BOOLEAN, (inputs){.x = x, .b = y},
                        scores(b, DNN_DATA_BOOLEAN), -1);
}

static void *
select(build *b, void *x, void *none, void *where)
{
    return pointwise(b, DNN_POINTWISE_BINARY_SELECT,
                     (inputs){.x = x, .b = none, .t = where},
                     scores(b, DNN_DATA_FLOAT));
}

/* Keys that the mask hides. */
static void *
add_bias(build *b, void *x)
{
    int64_t n = b->s->batch, seq = b->s->seq;
    if (!b->s->mask)
        return x;
    void *bias = tensor(b, DNN_BIAS, DNN_DATA_FLOAT, (dims){{n, 1, 1, seq}},
                        (dims){{seq, seq, seq, 1}}, NULL);
    return pointwise(b, DNN_POINTWISE_ADD, (inputs){.x = x, .b = bias},
                     scores(b, DNN_DATA_FLOAT));
}

/* Queries and keys behind the sample's end. */
static void *
end_samples(build *b, void *x, void *none)
{
    if (!b->s->rows)
        return x;
    void *row = index_of(b, x, 2, DNN_DATA_INT32);
    void *col = index_of(b, x, 3, DNN_DATA_INT32);
    row = compare(b, DNN_POINTWISE_CMP_LT, row, b->lengths);
    col = compare(b, DNN_POINTWISE_CMP_LT, col, b->lengths);
    return select(b, x, none, compare(b, DNN_POINTWISE_LOGICAL_AND, row, col));
}

static void *
hide_later(build *b, void *x, void *none)
{
    if (!b->s->causal)
        return x;
    void *row = index_of(b, x, 2, DNN_DATA_FLOAT);
    void *col = index_of(b, x, 3, DNN_DATA_FLOAT);
    return select(b, x, none, compare(b, DNN_POINTWISE_CMP_GE, row, col));
}

/* ---- the graphs ---- */

static void
forward(build *b, const heads *q, const heads *k, const heads *v, const heads *y)
{
    int f = DNN_DATA_FLOAT;
    int64_t seq = b->s->seq;
    void *qt = of_heads(b, DNN_Q, q), *kt = turned(b, DNN_K, k);
    void *vt = of_heads(b, DNN_V, v), *yt = of_heads(b, DNN_Y, y);
    void *lse = of_lse(b, DNN_LSE, offsets(b, DNN_OFF_LSE));
    void *scale = value(b, DNN_SCALE), *none = value(b, DNN_NONE);
    void *x = product(b, qt, kt, scores(b, f), END_M | END_N);
    x = pointwise(b, DNN_POINTWISE_MUL, (inputs){.x = x, .b = scale}, scores(b, f));
    x = hide_later(b, end_samples(b, add_bias(b, x), none), none);
    void *top = reduce(b, DNN_REDUCE_TENSOR_MAX, x, inner(b, f, seq, 1));
    x = pointwise(b, DNN_POINTWISE_SUB, (inputs){.x = x, .b = top}, scores(b, f));
    x = pointwise(b, DNN_POINTWISE_EXP, (inputs){.x = x}, scores(b, f));
    void *sum = reduce(b, DNN_REDUCE_TENSOR_ADD, x, inner(b, f, seq, 1));
    void *log =
        pointwise(b, DNN_POINTWISE_LOG, (inputs){.x = sum}, inner(b, f, seq, 1));
    pointwise(b, DNN_POINTWISE_ADD, (inputs){.x = top, .b = log}, lse);
    x = pointwise(b, DNN_POINTWISE_DIV, (inputs){.x = x, .b = sum}, scores(b, low(b)));
    product(b, x, vt, yt, END_M | END_K);
}

/* P or dS, [.., queries, keys], turned. */
static void *
turn_scores(build *b, void *x)
{
    const rtc_dnn_shape *s = b->s;
    int64_t n = s->seq;
    void *y = tensor(b, 0, low(b), (dims){{s->batch, s->heads, n, n}},
                     (dims){{s->heads * n * n, n * n, 1, n}}, NULL);
    return reshape(b, x, y);
}

/* x y, added up over the query heads of each key head. */
static void
product_of_group(build *b, void *x, void *y, void *z)
{
    const rtc_dnn_shape *s = b->s;
    if (s->heads == s->kv_heads) {
        product(b, x, y, z, END_M | END_K);
        return;
    }
    void *all = inner(b, low(b), s->seq, s->d);
    reduce(b, DNN_REDUCE_TENSOR_ADD, product(b, x, y, all, END_M | END_K), z);
}

typedef struct operands {
    heads q, k, v, y;
    void *qt, *dy, *scale, *none;
} operands;

/* delta: sums over d of dy * y. */
static void *
delta_of(build *b, const operands *o)
{
    const rtc_dnn_shape *s = b->s;
    int f = DNN_DATA_FLOAT;
    dims n = {{s->batch, s->heads, s->seq, s->d}};
    dims step = {{s->heads * s->seq * s->d, s->seq * s->d, s->heads * s->d, 1}};
    void *x = pointwise(b, DNN_POINTWISE_MUL,
                        (inputs){.x = o->dy, .b = of_heads(b, DNN_Y, &o->y)},
                        tensor(b, 0, f, n, step, NULL));
    x = reduce(b, DNN_REDUCE_TENSOR_ADD, x, inner(b, f, s->seq, 1));
    dims rows = {{s->batch, s->heads, s->seq, 1}};
    void *delta =
        tensor(b, DNN_DELTA, f, rows, dense(s->batch, s->heads, s->seq, 1), NULL);
    return pointwise(b, DNN_POINTWISE_MUL, (inputs){.x = x, .b = value(b, DNN_ONE)},
                     delta);
}

static void *
weights(build *b, const operands *o, void *kt)
{
    int f = DNN_DATA_FLOAT;
    void *lse = of_lse(b, DNN_LSE, offsets(b, DNN_OFF_LSE));
    void *x = product(b, o->qt, kt, scores(b, f), END_M | END_N);
    x = pointwise(b, DNN_POINTWISE_MUL, (inputs){.x = x, .b = o->scale}, scores(b, f));
    x = add_bias(b, x);
    x = pointwise(b, DNN_POINTWISE_SUB, (inputs){.x = x, .b = lse}, scores(b, f));
    x = hide_later(b, end_samples(b, x, o->none), o->none);
    return pointwise(b, DNN_POINTWISE_EXP, (inputs){.x = x}, scores(b, f));
}

static void
backward(build *b, operands *o)
{
    const rtc_dnn_shape *s = b->s;
    int f = DNN_DATA_FLOAT;
    o->qt = of_heads(b, DNN_Q, &o->q), o->dy = of_heads(b, DNN_DY, &o->y);
    o->scale = value(b, DNN_SCALE), o->none = value(b, DNN_NONE);
    void *kt = turned(b, DNN_K, &o->k), *vt = turned(b, DNN_V, &o->v);
    void *delta = delta_of(b, o), *p = weights(b, o, kt);
    product_of_group(b, turn_scores(b, p), o->dy, of_heads(b, DNN_DV, &o->v));
    void *x = product(b, o->dy, vt, scores(b, f), END_M | END_N);
    x = pointwise(b, DNN_POINTWISE_SUB, (inputs){.x = x, .b = delta}, scores(b, f));
    x = pointwise(b, DNN_POINTWISE_MUL, (inputs){.x = x, .b = p}, scores(b, f));
    void *ds = pointwise(b, DNN_POINTWISE_MUL, (inputs){.x = x, .b = o->scale},
                         scores(b, low(b)));
    product_of_group(b, turn_scores(b, ds), o->qt, of_heads(b, DNN_DK, &o->k));
    void *k = tensor(b, 0, low(b), (dims){{s->batch, s->kv_heads, s->seq, s->d}},
                     steps(b, &o->k), o->k.begin);
    dims n = {{s->batch, s->heads, s->seq, s->d}};
    void *sum =
        tensor(b, DNN_SUM_DQ, f, n, dense(s->batch, s->heads, s->seq, s->d), NULL);
    product(b, ds, reshape(b, kt, k), sum, END_M | END_K);
    pointwise(b, DNN_POINTWISE_IDENTITY, (inputs){.x = sum},
              of_heads(b, DNN_DQ, &o->q));
}

static void
describe(build *b)
{
    const rtc_dnn_shape *s = b->s;
    operands o = {{s->heads, s->ldq, s->qs, offsets(b, DNN_OFF_Q)},
                  {s->kv_heads, s->ldk, s->ks, offsets(b, DNN_OFF_K)},
                  {s->kv_heads, s->ldv, s->vs, offsets(b, DNN_OFF_V)},
                  {s->heads, s->heads * s->d, s->d, offsets(b, DNN_OFF_Y)},
                  NULL,
                  NULL,
                  NULL,
                  NULL};
    if (s->rows)
        b->lengths = counts(b, DNN_LENGTH, DNN_DATA_INT32, s->batch);
    if (s->grad)
        backward(b, &o);
    else
        forward(b, &o.q, &o.k, &o.v, &o.y);
}

/* ---- plans ---- */

typedef struct place { /* where the plan runs */
    void *handle, *device;
} place;

/* Candidates for an engine, the best one first. */
static int64_t
ask(build *b, const place *at, void *config[CONFIGS])
{
    int64_t n = 0;
    void *graph = create(b, DNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (at->handle)
        set(b, graph, DNN_ATTR_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &at->handle);
    set(b, graph, DNN_ATTR_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, b->nops,
        b->op);
    finish(b, graph);
    void *heuristic = create(b, DNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_part(b, heuristic, DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_enum(b, heuristic, DNN_ATTR_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE,
             DNN_HEUR_MODE_A);
    set_part(b, heuristic, DNN_ATTR_ENGINEHEUR_DEVICEPROP, at->device);
    finish(b, heuristic);
    for (int i = 0; i < CONFIGS; i++)
        config[i] = create(b, DNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!b->status)
        note(b,
             b->api->BackendGetAttribute(heuristic, DNN_ATTR_ENGINEHEUR_RESULTS,
                                         DNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n,
                                         config),
             DNN_ATTR_ENGINEHEUR_RESULTS);
    return b->status ? 0 : n;
}

/* The plan of a candidate. */
static bool
try(build *b, const place *at, void *config, int64_t most)
{
    int64_t n = 0, bytes = 0;
    void *plan = create(b, DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (at->handle)
        set(b, plan, DNN_ATTR_EXECUTION_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, &at->handle);
    set_part(b, plan, DNN_ATTR_EXECUTION_PLAN_DEVICEPROP, at->device);
    set_part(b, plan, DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(b, plan);
    if (!b->status)
        note(b,
             b->api->BackendGetAttribute(plan, DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                         DNN_TYPE_INT64, 1, &n, &bytes),
             DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    if (b->status || bytes > most)
        return false;
    b->p->plan = plan;
    b->p->workspace = bytes;
    return true;
}

bool
rtc_dnn_make(const rtc_dnn_api *api, rtc_dnn_plan *p, const rtc_dnn_shape *s,
             void *handle, void *device, int64_t most, char *error, size_t n)
{
    build b = {.api = api, .s = s, .p = p, .inner = FIRST_INNER};
    place at = {handle, device};
    void *config[CONFIGS];
    memset(p, 0, sizeof *p);
    describe(&b);
    int64_t found = ask(&b, &at, config);
    int first = b.status;
    for (int64_t i = 0; i < found && !p->plan; i++) {
        b.status = 0; /* another engine may do what this one can't */
        try(&b, &at, config[i], most);
        first = first ? first : b.status;
    }
    if (p->plan)
        return true;
    if (first)
        snprintf(error, n, "%s (attribute %d)", api->GetErrorString(first),
                 b.attribute);
    else
        snprintf(error, n, "%s",
                 found ? "it wants more workspace than there is" : "it has no engine");
    rtc_dnn_free(api, p);
    return false;
}

void
rtc_dnn_free(const rtc_dnn_api *api, rtc_dnn_plan *p)
{
    while (p->nparts)
        api->BackendDestroyDescriptor(p->part[--p->nparts]);
    p->plan = NULL;
}

int
rtc_dnn_run(const rtc_dnn_api *api, const rtc_dnn_plan *p, void *handle,
            void *const at[DNN_UIDS], void *workspace)
{
    void *pack = NULL, *where[DNN_UIDS];
    int64_t uid[DNN_UIDS], n = 0;
    for (int64_t i = 0; i < DNN_UIDS; i++)
        if (p->has[i])
            uid[n] = i, where[n++] = at[i];
    int status =
        api->BackendCreateDescriptor(DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (!status)
        status = api->BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                          DNN_TYPE_INT64, n, uid);
    if (!status)
        status = api->BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                          DNN_TYPE_VOID_PTR, n, where);
    if (!status)
        status = api->BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_WORKSPACE,
                                          DNN_TYPE_VOID_PTR, 1, &workspace);
    if (!status)
        status = api->BackendFinalize(pack);
    if (!status)
        status = api->BackendExecute(handle, p->plan, pack);
    if (pack)
        api->BackendDestroyDescriptor(pack);
    return status;
}
