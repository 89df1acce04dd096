/* cmd_export_make.c -- the new contents of a weight.
 *
 * An adapted one is W + scale B A, each element summed in double in the order of the rank and
 * rounded once; so the result does not depend on the machine, and is what PEFT's
 * merge_and_unload() gives but for the last bit. Which side of W is `in` follows from how the
 * graph reads it, not from fan_in_fan_out, which PEFT writes for the last module only.
 */
#include "cmd_export.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- adapters ---- */

/* t [rows,cols] as [cols,rows]. */
static float *
turned(const float *t, int64_t rows, int64_t cols)
{
    float *x = rt_new((size_t)(rows * cols), sizeof *x);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            x[c * rows + r] = t[r * cols + c];
    return x;
}

/* Is the weight [out,in]? *fits: do the adapter's tensors fit it, so or otherwise? */
static bool
is_out_in(const exporter *e, const change *c, bool *fits)
{
    const int64_t *d = c->param->value->type->dim;
    int64_t in = c->pair->a->dim[1], out = c->pair->b->dim[0];
    bool out_in = d[0] == out && d[1] == in, in_out = d[0] == in && d[1] == out;
    fe_reading r = fe_reading_of(e->model, c->param);
    *fits = out_in || in_out;
    if (c->pair->embedding || (r.product && in_out && out_in))
        return !c->pair->embedding && r.out_in;
    if (r.product)
        *fits = r.out_in ? out_in : in_out;
    bool torch = !e->peft.config.fan_in_fan_out; /* PyTorch's layout is [out,in] */
    return out_in && in_out ? torch != c->param->transposed : out_in;
}

static int
no_fit(const exporter *e, const change *c)
{
    const rt_st_tensor *a = c->pair->a, *b = c->pair->b;
    return rt_fail(RT_USER,
                   "%s: the adapter of %s, lora_A [%" PRId64 ",%" PRId64
                   "] and lora_B [%" PRId64 ",%" PRId64
                   "], does not fit the weight, which is %s",
                   e->adapter, c->pair->module, a->dim[0], a->dim[1], b->dim[0],
                   b->dim[1], ir_type_text(e->ctx, c->param->value->type));
}

/* w [rows,cols] += scale p q, p [rows,r], q [r,cols]. false: a result is not finite. */
static bool
add_product(exporter *e, const change *c, float *w, const float *p, const float *q)
{
    const int64_t *d = c->param->value->type->dim;
    int64_t rank = c->pair->rank, cols = d[1];
    double *sum = rt_new((size_t)cols, sizeof *sum);
    bool finite = true;
    for (int64_t x = 0; x < d[0]; x++) {
        memset(sum, 0, (size_t)cols * sizeof *sum);
        for (int64_t k = 0; k < rank; k++) {
            double by = p[x * rank + k];
            for (int64_t y = 0; y < cols; y++)
                sum[y] += by * q[k * cols + y];
        }
        for (int64_t y = 0; y < cols; y++) {
            double delta = c->pair->scale * sum[y];
            e->largest = fmax(e->largest, fabs(delta));
            w[x * cols + y] = (float)(w[x * cols + y] + delta);
            finite &= isfinite(w[x * cols + y]) != 0;
        }
    }
    free(sum);
    return finite;
}

static int
merge(exporter *e, const change *c, float *w)
{
    const rt_st_tensor *ta = c->pair->a, *tb = c->pair->b;
    bool fits, out_in = is_out_in(e, c, &fits);
    if (!fits)
        return no_fit(e, c);
    float *a = rt_new((size_t)ta->count, sizeof *a);
    float *b = rt_new((size_t)tb->count, sizeof *b);
    int code = rt_st_read_f32(&e->peft.st, ta, a);
    if (!code)
        code = rt_st_read_f32(&e->peft.st, tb, b);
    float *p = out_in ? b : turned(a, ta->dim[0], ta->dim[1]);
    float *q = out_in ? a : turned(b, tb->dim[0], tb->dim[1]);
    if (!code && !add_product(e, c, w, p, q))
        code = rt_fail(RT_USER,
                       "%s: merging %s gives numbers that are infinite or none: the "
                       "adapter or the model is broken",
                       e->adapter, c->pair->module);
    if (!out_in) {
        free(p);
        free(q);
    }
    free(a);
    free(b);
    return code;
}

/* ---- any weight ---- */

/* Such a weight may be wanted, to look into what went wrong; once, although it may be written
 * several times. */
static void
warn_of_odd(const exporter *e, change *c, const float *x)
{
    int64_t odd = 0;
    for (int64_t i = 0; i < c->tensor->count; i++)
        odd += !isfinite(x[i]);
    if (odd && !c->odd_told)
        ef_error(e->ctx, NULL, W_CG_NOT_FINITE, c->tensor->name, (long long)odd,
                 (long long)c->tensor->count);
    c->odd_told = true;
}

static float *
read_tensor(const exporter *e, change *c)
{
    const rt_st_tensor *t = c->tensor;
    float *x = rt_new((size_t)t->count, sizeof *x);
    if (rt_st_read_f32(c->st, t, x)) {
        free(x);
        return NULL;
    }
    warn_of_odd(e, c, x);
    for (int64_t i = 0; c->shift && i < t->count; i++)
        x[i] += (float)c->shift;
    if (!c->transposed)
        return x;
    float *w = turned(x, t->dim[0], t->dim[1]);
    free(x);
    return w;
}

float *
export_values(exporter *e, const ir_param *p)
{
    change *c = ef_map_get(&e->changes, p);
    if (c && !c->pair)
        return read_tensor(e, c);
    int64_t n = ir_type_count(p->value->type);
    float *w = rt_new((size_t)n, sizeof *w);
    if (!ir_read_f32(e->module, p, 0, 0, n, w) || (c && merge(e, c, w))) {
        free(w);
        return NULL;
    }
    return w;
}

/* ---- the base of the adapter ---- */

static bool
base_hash(exporter *e, char hex[17])
{
    rt_base_hash h;
    bool ok = true;
    rt_base_hash_begin(&h);
    for (int i = 0; i < e->peft.n && ok; i++) { /* sorted by module */
        const ir_param *p = export_weight_of(e, e->peft.pair[i].module);
        int64_t n = ir_type_count(p->value->type);
        float *w = rt_new((size_t)n, sizeof *w);
        ok = ir_read_f32(e->module, p, 0, 0, n, w);
        if (ok)
            rt_base_hash_add(&h, e->peft.pair[i].module, w, p->value->type->dim[0],
                             p->value->type->dim[1], p->transposed);
        free(w);
    }
    rt_base_hash_end(&h, hex);
    return ok;
}

int
export_check_base(exporter *e)
{
    char hex[17];
    if (!e->peft.base)
        return RT_OK;
    if (!base_hash(e, hex))
        return RT_USER;
    if (!strcmp(hex, e->peft.base))
        return RT_OK;
    if (cmd_flag(e->args, "any-base")) {
        rt_warn("%s was trained on other base weights than those of %s", e->adapter,
                e->model_path);
        return RT_OK;
    }
    return rt_fail(
        RT_USER,
        "%s was trained on other base weights than those of %s (efficc.base "
        "is %s, here %s)\ngive the model that the adapter was trained on; if "
        "this one is the same in another precision: --any-base",
        e->adapter, e->model_path, e->peft.base, hex);
}
