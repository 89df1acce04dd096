/* gemm_dnnl.c -- rt_gemm: each entry of the program's table as a ready object.
 *
 * oneDNN's matmul does the products of floats and of bf16 whose A is not transposed. With
 * transposed A (weight gradients) it may split k among threads, which makes sums depend on
 * their number; those, and whatever its AVX-512 kernel does not take, go to our own product
 * (gemm_own.c). The choice looks at the description and the machine only, never at the thread
 * count. Primitives and memory objects are made at start, one for each size where m or k
 * varies; a call sets data handles.
 */
#include "mm_int.h"
#include "rt_cpu_int.h"
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { A_ARG, B_ARG, C_ARG, SCRATCH_ARG, BIAS_ARG, NARGS };
static const int arg_id[NARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                  DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS};

typedef struct gemm_obj { /* a product of fixed sizes */
    rt_gemm_desc d;
    dnnl_primitive_t prim; /* NULL: our own product */
    dnnl_exec_arg_t args[NARGS];
    int nargs;
    int64_t need; /* bytes of scratch */
} gemm_obj;

typedef struct gemm_entry { /* of the program's table */
    int nm, nk;             /* sizes of m, of k */
    gemm_obj *obj;          /* [nm][nk] */
} gemm_entry;

struct rt_gemm_table {
    dnnl_engine_t engine;
    dnnl_stream_t queue;
    int n;
    gemm_entry *entry;
    void *
        more; /* scratch for products that want more than is planned: fewer threads may */
    int64_t more_bytes;
};

typedef struct gemm_shape { /* memory descriptors of one product */
    dnnl_memory_desc_t a, b, c, bias;
} gemm_shape;

/* [batch[0], rows, cols], batch[1] apart; 0: one operand for all. */
static bool
describe(dnnl_memory_desc_t *m, dnnl_data_type_t type, const int64_t batch[2],
         const int64_t dim[2], const int64_t step[2])
{
    int64_t stride = batch[1];
    dnnl_dims_t dims = {dim[0], dim[1]}, steps = {step[0], step[1]};
    if (batch[0] == 1)
        return !dnnl_memory_desc_init_by_strides(m, 2, dims, type, steps);
    dnnl_dims_t dims3 = {stride ? batch[0] : 1, dim[0], dim[1]};
    dnnl_dims_t steps3 = {stride ? stride : dim[0] * step[0], step[0], step[1]};
    return !dnnl_memory_desc_init_by_strides(m, 3, dims3, type, steps3);
}

static dnnl_data_type_t
library_type(rt_dtype t)
{
    return t == RT_BF16 ? dnnl_bf16 : dnnl_f32;
}

static bool
describe_all(gemm_shape *s, const rt_gemm_desc *d)
{
    int64_t da[2] = {d->m, d->k}, pa[2] = {d->lda, 1};
    int64_t db[2] = {d->k, d->n}, pb[2] = {d->tb ? 1 : d->ldb, d->tb ? d->ldb : 1};
    int64_t dc[2] = {d->m, d->n}, pc[2] = {d->ldc, 1};
    int64_t dv[2] = {1, d->n}, pv[2] = {d->n, 1};
    int64_t sa[2] = {d->batch, d->sa}, sb[2] = {d->batch, d->sb};
    int64_t sc[2] = {d->batch, d->sc}, sv[2] = {d->batch, 0};
    return describe(&s->a, library_type(d->a), sa, da, pa) &&
           describe(&s->b, library_type(d->b), sb, db, pb) &&
           describe(&s->c, library_type(d->c), sc, dc, pc) &&
           describe(&s->bias, dnnl_f32, sv, dv, pv);
}

static bool
attributes(dnnl_primitive_attr_t attr, const rt_gemm_desc *d)
{
    if (dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user))
        return false;
    if (d->alpha != 1 && dnnl_primitive_attr_set_output_scales(attr, 1, 0, &d->alpha))
        return false;
    if (!d->add)
        return true;
    dnnl_post_ops_t post;
    if (dnnl_post_ops_create(&post))
        return false;
    bool ok = !dnnl_post_ops_append_sum(post, 1) &&
              !dnnl_primitive_attr_set_post_ops(attr, post);
    dnnl_post_ops_destroy(post);
    return ok;
}

static bool
library_takes(const rt_gemm_desc *d)
{
    if (d->ta || (d->bias && d->alpha != 1) || !d->m || !d->n || !d->k)
        return false;
    if (d->a == RT_F32 && d->b == RT_F32)
        return d->c == RT_F32;
    return d->a == RT_BF16 && d->b == RT_BF16 && d->c != RT_F16 && rt_computes(RT_BF16);
}

/* oneDNN's primitive for d, if it shall do d; NULL: it shall not. The library scales the
 * bias with the product, so alpha and bias together are not for it. */
static dnnl_primitive_desc_t
primitive_for(dnnl_engine_t engine, const rt_gemm_desc *d, gemm_shape *s)
{
    dnnl_primitive_attr_t attr;
    dnnl_matmul_desc_t op;
    dnnl_primitive_desc_t pd = NULL;
    const char *impl = NULL;
    if (!library_takes(d) || !describe_all(s, d) || dnnl_primitive_attr_create(&attr))
        return NULL;
    if (!attributes(attr, d) ||
        dnnl_matmul_desc_init(&op, &s->a, &s->b, d->bias ? &s->bias : NULL, &s->c) ||
        dnnl_primitive_desc_create(&pd, &op, attr, engine, NULL))
        pd = NULL;
    dnnl_primitive_attr_destroy(attr);
    if (pd && (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &impl) ||
               strncmp(impl, "brg:avx512_core", 15))) {
        dnnl_primitive_desc_destroy(pd);
        return NULL;
    }
    return pd;
}

static int64_t
library_scratch(dnnl_primitive_desc_t pd)
{
    const dnnl_memory_desc_t *m =
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    return m ? (int64_t)dnnl_memory_desc_get_size(m) : 0;
}

static rt_mm
own_product(const rt_gemm_desc *d)
{
    return (rt_mm){.m = d->m,
                   .n = d->n,
                   .k = d->k,
                   .ta = d->ta,
                   .tb = d->tb,
                   .add = d->add,
                   .like_library = !d->ta,
                   .alpha = d->alpha,
                   .lda = d->lda,
                   .ldb = d->ldb,
                   .ldc = d->ldc,
                   .batch = d->batch,
                   .sa = d->sa,
                   .sb = d->sb,
                   .sc = d->sc,
                   .type_a = d->a,
                   .type_b = d->b,
                   .type_c = d->c};
}

int64_t
rt_gemm_scratch(const rt_gemm_desc *d, int threads)
{
    dnnl_engine_t engine;
    gemm_shape shape;
    int before = omp_get_max_threads();
    if (dnnl_engine_create(&engine, dnnl_cpu, 0))
        return -1;
    omp_set_num_threads(threads);
    dnnl_primitive_desc_t pd = primitive_for(engine, d, &shape);
    rt_mm own = own_product(d);
    int64_t bytes = pd ? library_scratch(pd) : rt_mm_scratch(&own);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    omp_set_num_threads(before);
    dnnl_engine_destroy(engine);
    return rt_max(bytes, rt_epilogue_scratch(d, threads));
}

static bool
make_primitive(gemm_obj *o, dnnl_engine_t engine, dnnl_primitive_desc_t pd,
               const gemm_shape *s)
{
    const dnnl_memory_desc_t *md[NARGS] = {
        &s->a, &s->b, &s->c,
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0), &s->bias};
    if (dnnl_primitive_create(&o->prim, pd))
        return false;
    int n = o->d.bias ? NARGS : BIAS_ARG;
    for (; o->nargs < n; o->nargs++) {
        dnnl_exec_arg_t *arg = &o->args[o->nargs];
        arg->arg = arg_id[o->nargs];
        if (dnnl_memory_create(&arg->memory, md[o->nargs], engine, DNNL_MEMORY_NONE))
            return false;
    }
    return true;
}

static bool
open_one(gemm_obj *o, dnnl_engine_t engine)
{
    gemm_shape shape;
    dnnl_primitive_desc_t pd = primitive_for(engine, &o->d, &shape);
    rt_mm own = own_product(&o->d);
    o->need = pd ? library_scratch(pd) : rt_mm_scratch(&own);
    bool ok = !pd || make_primitive(o, engine, pd, &shape);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    return ok;
}

/* The objects of entry i, one for each pair of sizes. */
static bool
open_entry(rt_gemm_table *t, const rt_program *p, int i)
{
    gemm_entry *e = &t->entry[i];
    const rt_gemm_desc *d = &p->gemm[i];
    e->nm = d->vary_m ? p->nsize[d->vary_m] : 1;
    e->nk = d->vary_k ? p->nsize[d->vary_k] : 1;
    e->obj = calloc((size_t)(e->nm * e->nk), sizeof *e->obj);
    t->n++;
    bool ok = e->obj != NULL;
    for (int j = 0; ok && j < e->nm * e->nk; j++) {
        gemm_obj *o = &e->obj[j];
        o->d = *d;
        if (d->vary_m)
            o->d.m = p->size[d->vary_m][j / e->nk];
        if (d->vary_k)
            o->d.k = p->size[d->vary_k][j % e->nk];
        ok = open_one(o, t->engine);
        if (o->need > d->scratch)
            t->more_bytes = rt_max(t->more_bytes, o->need);
    }
    return ok;
}

static bool
open_more(rt_gemm_table *t)
{
    if (t->more_bytes)
        t->more = aligned_alloc(RT_ALIGN, (size_t)rt_round_up(t->more_bytes, RT_ALIGN));
    return !t->more_bytes || t->more;
}

bool
rt_gemm_open(rt_stream *s, char *error, size_t n)
{
    const rt_program *p = s->program;
    rt_gemm_table *t = s->gemm = calloc(1, sizeof *t);
    bool ok = t && (t->entry = calloc((size_t)p->ngemm + 1, sizeof *t->entry)) &&
              !dnnl_engine_create(&t->engine, dnnl_cpu, 0) &&
              !dnnl_stream_create(&t->queue, t->engine, dnnl_stream_default_flags);
    if (!ok)
        snprintf(error, n, "oneDNN can't be started (out of memory?)");
    for (int i = 0; ok && i < p->ngemm; i++) {
        ok = open_entry(t, p, i);
        if (!ok)
            snprintf(error, n, "oneDNN can't prepare product %d (%lld x %lld x %lld)",
                     i, (long long)p->gemm[i].m, (long long)p->gemm[i].n,
                     (long long)p->gemm[i].k);
    }
    if (ok && !open_more(t)) {
        snprintf(error, n, "out of memory");
        ok = false;
    }
    return ok;
}

static void
close_entry(gemm_entry *e)
{
    for (int j = 0; e->obj && j < e->nm * e->nk; j++) {
        gemm_obj *o = &e->obj[j];
        for (int i = 0; i < o->nargs; i++)
            dnnl_memory_destroy(o->args[i].memory);
        if (o->prim)
            dnnl_primitive_destroy(o->prim);
    }
    free(e->obj);
}

void
rt_gemm_close(rt_stream *s)
{
    rt_gemm_table *t = s->gemm;
    if (!t)
        return;
    for (int i = 0; i < t->n; i++)
        close_entry(&t->entry[i]);
    if (t->queue)
        dnnl_stream_destroy(t->queue);
    if (t->engine)
        dnnl_engine_destroy(t->engine);
    free(t->more);
    free(t->entry);
    free(t);
    s->gemm = NULL;
}

void
rt_gemm(rt_stream *s, int i, void *c, const void *a, const void *b, const float *bias,
        void *scratch)
{
    const gemm_entry *e = &s->gemm->entry[i];
    const rt_gemm_desc *d = &s->program->gemm[i];
    int im = d->vary_m ? s->at[d->vary_m] : 0, ik = d->vary_k ? s->at[d->vary_k] : 0;
    gemm_obj *o = &e->obj[im * e->nk + ik];
    void *space = o->need > d->scratch ? s->gemm->more : scratch;
    if (!o->prim) {
        rt_mm g = own_product(&o->d);
        g.c = c, g.a = a, g.b = b, g.bias = d->bias ? bias : NULL;
        rt_mm_run(&g, s->threads, space);
        return;
    }
    const void *data[NARGS] = {a, b, c, space, bias};
    for (int k = 0; k < o->nargs; k++)
        dnnl_memory_set_data_handle(o->args[k].memory, (void *)data[k]);
    dnnl_primitive_execute(o->prim, s->gemm->queue, o->nargs, o->args);
    dnnl_stream_wait(s->gemm->queue);
}

void
rt_gemm_from(rt_stream *s, int i, void *c, const void *from, const void *a,
             const void *b, const float *bias, void *scratch)
{
    const rt_gemm_desc *d = &s->program->gemm[i];
    int64_t rows = d->vary_m ? s->program->size[d->vary_m][s->at[d->vary_m]] : d->m;
    if (from != c)
        rt_copy(s, c, from, rows * d->n * (d->c == RT_F32 ? 4 : 2));
    rt_gemm(s, i, c, a, b, bias, scratch);
}
