/* onnx_dims.c -- gives every dimension of the inputs a size, and makes step's arguments.
 *
 * Inputs of token ids and their like are [batch, sequence]: which dim --batch and --seq
 * mean follows from the position, whatever the file calls it. Dims of one name are one
 * dim. A size that stands in the file is taken; an option that says otherwise is an error.
 *
 * Decoders that were exported for generation take the keys and values of past tokens: they
 * get none, so what is computed is the model without a cache.
 */
#include "import_int.h"

#include <stdlib.h>
#include <string.h>

enum { DIM_MAX = 1 << 30, ANY_TOKENS = 8 };
/* Masks are looked at for all pairs of tokens of a row, rows are listed where indices are computed,
 * and what a GPU does for every token and head is numbered with 31 bits. */
enum { SEQ_MAX = 1 << 16, ROWS_MAX = FE_FOLD_MAX, TOKENS_MAX = 1 << 24 };

typedef struct want { /* where a dim gets its size from */
    const char *key;  /* dim_param, or "input.1" for one without a name */
    const char *option;
    const char *input;
    int axis;
    int64_t given; /* by --batch or --seq; 0: not */
    int64_t fixed; /* in the file; 0: symbolic */
    bool past;     /* how many past positions there are: none */
} want;

/* ---- --dim NAME=N ---- */

static bool
read_dim_option(fe_imp *im)
{
    const char *s = im->ctx->cfg->dim;
    while (s && *s) {
        size_t len = strcspn(s, ",");
        const char *item = ef_internn(im->ctx, s, len);
        const char *eq = strrchr(item, '=');
        char *end = NULL;
        long long n = eq ? strtoll(eq + 1, &end, 10) : 0;
        if (!eq || eq == item || *end || n < 1 || n > DIM_MAX)
            return ef_error(im->ctx, NULL, E_OPT_VALUE, "dim",
                            ef_internf(im->ctx, "'%s' is not NAME=N", item));
        fe_dim d = {ef_internn(im->ctx, item, (size_t)(eq - item)), "--dim", n};
        ef_push(im->arena, im->dims, d);
        s += len + (s[len] == ',');
    }
    return true;
}

static fe_dim *
dim_of(fe_imp *im, const char *key)
{
    for (int i = 0; i < im->dims.n; i++)
        if (im->dims.at[i].name == key)
            return &im->dims.at[i];
    return NULL;
}

/* ---- one dim ---- */

static bool
is_tokens(const Onnx__TypeProto__Tensor *t)
{
    ir_dtype d = fe_dtype(t->elem_type);
    return t->shape && t->shape->n_dim == 2 && d != IR_NDTYPES &&
           !ir_dtypes[d].is_float;
}

/* Keys or values of past tokens, [batch, heads, positions, head size]. */
static bool
is_past(const Onnx__ValueInfoProto *in)
{
    const char *name = fe_str(in->name);
    return strstr(name, "past_key") || strstr(name, "past_value") ||
           !strncmp(name, "past.", 5);
}

/* Does a merged decoder look at its cache? */
static bool
is_branch(const Onnx__ValueInfoProto *in)
{
    return !strcmp(fe_str(in->name), "use_cache_branch");
}

/* The dimension of past positions: the symbolic one that is called so, else the third. */
static int
past_axis(const Onnx__TypeProto__Tensor *t)
{
    for (size_t i = 0; i < t->shape->n_dim; i++) {
        const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[i];
        if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM &&
            strstr(fe_str(d->dim_param), "past"))
            return (int)i;
    }
    return t->shape->n_dim == 4 ? 2 : -1;
}

static want
want_of(fe_imp *im, const Onnx__ValueInfoProto *in, int axis)
{
    const Onnx__TypeProto__Tensor *t = in->type->tensor_type;
    const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[axis];
    const ef_config *cfg = im->ctx->cfg;
    want w = {.input = fe_str(in->name), .axis = axis, .option = "--dim"};
    const char *param =
        d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM
            ? fe_str(d->dim_param)
            : "";
    w.key = *param ? ef_intern(im->ctx, param)
                   : ef_internf(im->ctx, "%s.%d", w.input, axis);
    if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE)
        w.fixed = d->dim_value;
    w.past = is_past(in) && axis == past_axis(t);
    if (is_tokens(t)) {
        w.option = axis ? "--seq" : "--batch";
        w.given = axis ? cfg->seq : cfg->batch;
    }
    if (is_branch(in) && !w.fixed)
        w.given = 1;
    return w;
}

/* The size of w by one source is not that by another. */
static bool
contradiction(fe_imp *im, const want *w, const fe_dim *a, const fe_dim *b)
{
    const char *name = w->fixed ? "" : ef_internf(im->ctx, " (%s)", w->key);
    return ef_error(im->ctx, NULL, E_ONNX_INPUT, w->input,
                    ef_internf(im->ctx, "dimension %d%s is %lld by %s, but %lld by %s",
                               w->axis, name, (long long)a->size, a->from,
                               (long long)b->size, b->from));
}

/* A size that stands in the file. Positions of one row are for all rows. */
static bool
bind_fixed(fe_imp *im, const want *w)
{
    if (w->fixed < 1 || w->fixed > DIM_MAX)
        return ef_error(im->ctx, NULL, E_ONNX_INPUT, w->input,
                        ef_internf(im->ctx, "dimension %d has size %lld", w->axis,
                                   (long long)w->fixed));
    bool one_row = w->fixed == 1 && w->axis == 0 && strstr(w->input, "position");
    const fe_dim file = {w->key, "the file", w->fixed};
    const fe_dim given = {w->key, w->option, w->given}, *d = dim_of(im, w->key);
    if (w->given && w->given != w->fixed && !one_row)
        return contradiction(im, w, &file, &given);
    if (d && d->size != w->fixed)
        return contradiction(im, w, &file, d);
    return true;
}

static bool
bind(fe_imp *im, const want *w)
{
    if (w->past && w->fixed)
        return ef_error(im->ctx, NULL, E_ONNX_INPUT, w->input,
                        ef_internf(im->ctx,
                                   "the file fixes %lld past positions: training has "
                                   "none, export with a symbolic number of them",
                                   (long long)w->fixed));
    if (w->past)
        return true;
    if (w->fixed)
        return bind_fixed(im, w);
    const fe_dim given = {w->key, w->option, w->given}, *d = dim_of(im, w->key);
    if (d && w->given && d->size != w->given)
        return contradiction(im, w, d, &given);
    if (!d && w->given)
        ef_push(im->arena, im->dims, given);
    return true;
}

/* ---- all inputs ---- */

typedef struct inputs {
    EF_VEC(const Onnx__ValueInfoProto *) at; /* without initializers */
} inputs;

static bool
check_input(fe_imp *im, const Onnx__ValueInfoProto *in)
{
    const char *name = fe_str(in->name), *what = NULL;
    bool tensor =
        in->type && in->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    const Onnx__TypeProto__Tensor *t = tensor ? in->type->tensor_type : NULL;
    if (!t || !t->shape)
        what = "has no shape";
    else if (is_branch(in) && t->shape->n_dim > 1)
        what = "is not one flag";
    else if (is_past(in) && past_axis(t) < 0)
        what =
            "is a cache whose dimension of past positions is unknown: export without "
            "past (use_cache=False, optimum: --task text-generation)";
    else if (fe_dtype(t->elem_type) == IR_NDTYPES)
        what =
            ef_internf(im->ctx, "type %s is not supported", fe_type_name(t->elem_type));
    else if (t->shape->n_dim > IR_MAX_RANK)
        what = "has too many dimensions";
    return !what || ef_error(im->ctx, NULL, E_ONNX_INPUT, name, what);
}

static bool
collect_inputs(fe_imp *im, inputs *to)
{
    const Onnx__GraphProto *g = im->f->proto->graph;
    for (size_t i = 0; i < g->n_input; i++) {
        const Onnx__ValueInfoProto *in = g->input[i];
        if (ef_map_has(&im->f->inits, ef_intern(im->ctx, fe_str(in->name))))
            continue; /* an initializer with a default, as old exporters list them */
        if (!check_input(im, in))
            return false;
        ef_push(im->arena, to->at, in);
    }
    return true;
}

static bool
bind_all(fe_imp *im, const inputs *ins)
{
    for (int i = 0; i < ins->at.n; i++) {
        const Onnx__ValueInfoProto *in = ins->at.at[i];
        for (size_t k = 0; k < in->type->tensor_type->shape->n_dim; k++) {
            want w = want_of(im, in, (int)k);
            if (!bind(im, &w))
                return false;
        }
    }
    return true;
}

static void
missing_dim(fe_imp *im, const want *w)
{
    const char *give = !strcmp(w->option, "--batch") ? "--batch B"
                       : !strcmp(w->option, "--seq")
                           ? "--seq S"
                           : ef_internf(im->ctx, "--dim %s=N", w->key);
    ef_error(im->ctx, NULL, E_ONNX_DIM, w->key, w->input, give);
}

/* The sizes of an input's dims; false: one has none, said once per dim. */
static bool
sizes_of(fe_imp *im, const Onnx__ValueInfoProto *in, ef_map *said, int64_t *size)
{
    bool ok = true;
    for (size_t k = 0; k < in->type->tensor_type->shape->n_dim; k++) {
        want w = want_of(im, in, (int)k);
        const fe_dim any = {w.key, w.option, k ? ANY_TOKENS : 1};
        if (im->ctx->cfg->any_size && !w.past && !w.fixed && !dim_of(im, w.key))
            ef_push(im->arena, im->dims, any);
        fe_dim *d = dim_of(im, w.key);
        size[k] = w.past ? 0 : w.fixed ? w.fixed : d ? d->size : 0;
        if (size[k] || w.past)
            continue;
        ok = false;
        if (!ef_map_has(said, w.key))
            missing_dim(im, &w);
        ef_map_set(im->arena, said, w.key, im);
    }
    return ok;
}

/* Options that no dim of the file has a use for. */
static bool
check_options(fe_imp *im, const inputs *ins)
{
    ef_map keys = {0};
    bool batch = false, seq = false;
    for (int i = 0; i < ins->at.n; i++)
        for (size_t k = 0; k < ins->at.at[i]->type->tensor_type->shape->n_dim; k++) {
            want w = want_of(im, ins->at.at[i], (int)k);
            ef_map_set(im->arena, &keys, w.key, im);
            batch |= !strcmp(w.option, "--batch");
            seq |= !strcmp(w.option, "--seq");
        }
    for (int i = 0; i < im->dims.n; i++)
        if (!ef_map_has(&keys, im->dims.at[i].name)) {
            ef_buf b = {.arena = im->arena};
            for (int k = 0; k < keys.n; k++)
                ef_putf(&b, "%s%s", k ? ", " : "", (const char *)keys.key[k]);
            return ef_error(im->ctx, NULL, E_OPT_VALUE, "dim",
                            ef_internf(im->ctx,
                                       "no dimension is called %s; there are %s",
                                       im->dims.at[i].name, b.n ? b.s : "none"));
        }
    const ef_config *cfg = im->ctx->cfg;
    if ((cfg->batch && !batch) || (cfg->seq && !seq))
        return ef_error(im->ctx, NULL, E_OPT_VALUE,
                        cfg->batch && !batch ? "batch" : "seq",
                        "no input of the file is [batch, sequence] of token ids");
    return true;
}

/* How a size becomes smaller. */
static void
hint_smaller(fe_imp *im, const Onnx__ValueInfoProto *in, int axis)
{
    want w = want_of(im, in, axis);
    if (w.fixed)
        ef_hint(im->ctx, "the file fixes it: export it with a symbolic one");
    else
        ef_hint(im->ctx, "give a smaller %s%s", w.option,
                axis ? ""
                     : "; the trainer's --gradient-accumulation-steps makes a large "
                       "batch of several");
}

/* Are sizes of token ids within what efficc plans? */
static bool
check_tokens(fe_imp *im, const Onnx__ValueInfoProto *in, const int64_t *size)
{
    int64_t rows = size[0], seq = size[1];
    const char *what = NULL;
    if (seq > SEQ_MAX)
        what = ef_internf(im->ctx, "a row has %lld tokens, of at most %d",
                          (long long)seq, SEQ_MAX);
    else if (rows > ROWS_MAX)
        what = ef_internf(im->ctx, "a micro-batch has %lld rows, of at most %d",
                          (long long)rows, ROWS_MAX);
    else if (rows * seq > TOKENS_MAX)
        what = ef_internf(im->ctx,
                          "%lld rows of %lld are %lld tokens in a micro-batch, of at "
                          "most %d",
                          (long long)rows, (long long)seq, (long long)(rows * seq),
                          TOKENS_MAX);
    if (!what)
        return true;
    ef_error(im->ctx, NULL, E_ONNX_INPUT, fe_str(in->name), what);
    hint_smaller(im, in, seq > SEQ_MAX);
    return false;
}

/* An input that holds nothing, or a flag that is not set. */
static void
make_nothing(fe_imp *im, const Onnx__ValueInfoProto *in, const int64_t *size)
{
    const Onnx__TypeProto__Tensor *t = in->type->tensor_type;
    int rank = (int)t->shape->n_dim;
    ir_dtype d = fe_dtype(t->elem_type);
    d = d == IR_BOOL ? d : ir_dtypes[d].is_float ? IR_F32 : IR_I64;
    const ir_type *type = ir_type_get(im->ctx, d, rank, size);
    double *x = EF_NEWN(im->arena, double, ir_type_count(type) + 1);
    ef_map_set(im->arena, &im->vals, ef_intern(im->ctx, fe_str(in->name)),
               fe_known_val(im, type, x));
}

/* Arguments hold integers whatever the file's type is: that is what data files hold. */
static void
make_arg(fe_imp *im, const Onnx__ValueInfoProto *in, const int64_t *size)
{
    const Onnx__TypeProto__Tensor *t = in->type->tensor_type;
    const char *name = ef_intern(im->ctx, fe_str(in->name));
    const ir_type *type = ir_type_get(im->ctx, IR_I64, (int)t->shape->n_dim, size);
    fe_val *v = fe_ir_val(im, ir_arg_new(im->m->step, name, type));
    ir_dtype d = fe_dtype(t->elem_type);
    if (d == IR_BOOL || ir_dtypes[d].is_float) {
        ir_builder b = ir_end(im->block, name);
        ir_value *arg = v->v;
        v = fe_ir_val(
            im, ir_emit(&b, IR_OP_cast, name, 1, &arg, 0, NULL,
                        ir_type_with(im->ctx, type, d == IR_BOOL ? IR_BOOL : IR_F32)));
    }
    ef_map_set(im->arena, &im->vals, name, v);
    if (is_tokens(t) && !im->batch) {
        im->batch = size[0];
        im->seq = size[1];
    }
}

static bool
is_read(const fe_imp *im, const char *name)
{
    for (int i = 0; i < fe_users_of(im->main, name)->node.n; i++)
        if (fe_users_of(im->main, name)->node.at[i]->needed)
            return true;
    return false;
}

/* Only masks may be floats: embeddings and pixels can't come from a file of token ids. */
static bool
check_float(fe_imp *im, const Onnx__ValueInfoProto *in)
{
    ir_dtype d = fe_dtype(in->type->tensor_type->elem_type);
    const char *name = ef_intern(im->ctx, fe_str(in->name));
    return !ir_dtypes[d].is_float || strstr(name, "mask") || is_past(in) ||
           !is_read(im, name) ||
           ef_error(
               im->ctx, NULL, E_ONNX_INPUT, name,
               "inputs of real numbers are not supported: efficc trains on token ids");
}

bool
fe_inputs(fe_imp *im)
{
    inputs ins = {0};
    if (!read_dim_option(im) || !collect_inputs(im, &ins))
        return false;
    for (int i = 0; i < ins.at.n; i++)
        if (!check_float(im, ins.at.at[i]))
            return false;
    if (!check_options(im, &ins) || !bind_all(im, &ins))
        return false;
    ef_map said = {0};
    bool ok = true;
    int64_t(*size)[IR_MAX_RANK] =
        ef_alloc(im->arena, sizeof *size * (size_t)(ins.at.n + 1));
    for (int i = 0; i < ins.at.n; i++)
        ok &= sizes_of(im, ins.at.at[i], &said, size[i]);
    for (int i = 0; ok && i < ins.at.n; i++)
        ok = !is_tokens(ins.at.at[i]->type->tensor_type) ||
             check_tokens(im, ins.at.at[i], size[i]);
    for (int i = 0; ok && i < ins.at.n; i++) {
        const Onnx__ValueInfoProto *in = ins.at.at[i];
        ir_dtype d = fe_dtype(in->type->tensor_type->elem_type);
        bool unused_float =
            ir_dtypes[d].is_float && !is_read(im, ef_intern(im->ctx, fe_str(in->name)));
        if (is_past(in) || is_branch(in))
            make_nothing(im, in, size[i]);
        else if (!unused_float)
            make_arg(im, in, size[i]);
    }
    return ok;
}
