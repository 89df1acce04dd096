/* nonfinite.c -- a loss or gradient norm that is not finite: which op made it.
 *
 * The step is run again, with the weights as they were, in the checking mode: after each call
 * of micro() its results are looked at. The first call with a result that is not finite is
 * the culprit, for all that went into it was looked at before; only weights were not, so its
 * operands are looked at too. If no call is to blame, the norm itself has overflowed.
 */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_SHOWN = 8 };

typedef struct search {
    rt_check check;       /* first: run->check points to it */
    const rt_op *op;      /* the first that went bad; NULL: none yet */
    const rt_tensor *bad; /* its result, and what was found in it */
    rt_scan scan;
    const rt_tensor *source; /* operand that is not finite either; NULL: none */
    rt_scan source_scan;
    const rt_tensor *largest; /* operand with the largest size; NULL: none to look at */
    float size;
} search;

/* ---- the checking mode ---- */

/* dim[0] in this micro-batch. */
static int64_t
rows_of(const rt_run *run, const rt_tensor *t)
{
    return t->vary ? run->size[t->vary] : t->dim[0];
}

static rt_scan
scan(const rt_run *run, const rt_tensor *t)
{
    const char *base = t->cls == RT_ARENA ? run->arena : run->base[t->cls][t->unit];
    int64_t n = t->rank ? rows_of(run, t) : 1;
    for (int i = 1; i < t->rank; i++)
        n *= t->dim[i];
    return rt_scan_floats(run->compute, base + t->offset, t->dtype, n);
}

static bool
is_bad(const rt_tensor *t, const rt_scan *s)
{
    return s->nans || (s->infs && !t->infinite);
}

static void
look_at_operands(const rt_run *run, search *c)
{
    for (int i = c->op->nres; i < c->op->n; i++) {
        const rt_tensor *t = &run->program->tensor[c->op->tensor[i]];
        rt_scan s = scan(run, t);
        if (is_bad(t, &s) && !c->source) {
            c->source = t;
            c->source_scan = s;
        }
        if (!c->largest || s.largest > c->size) {
            c->largest = t;
            c->size = s.largest;
        }
    }
}

static void
see(rt_run *run, int number)
{
    search *c = (search *)(void *)run->check;
    const rt_op *op = &run->program->op[number];
    for (int i = 0; i < op->nres && !c->op; i++) {
        const rt_tensor *t = &run->program->tensor[op->tensor[i]];
        rt_scan s = scan(run, t);
        if (!is_bad(t, &s))
            continue;
        c->op = op;
        c->bad = t;
        c->scan = s;
        look_at_operands(run, c);
    }
}

/* ---- what was found ---- */

/* "3 of 4096 values, the first (nan) at [0,17]", or "nan" for a single value */
static void
put_scan(rt_text *out, const rt_run *run, const rt_tensor *t, const rt_scan *s)
{
    bool infs = s->infs && !t->infinite;
    int64_t at = !infs || (s->nans && s->nan_at < s->inf_at) ? s->nan_at : s->inf_at;
    int64_t n = 1, index[RT_MAX_RANK], left = at;
    for (int i = t->rank - 1; i >= 0; i--) {
        int64_t dim = i ? t->dim[i] : rows_of(run, t);
        n *= dim;
        index[i] = left % dim;
        left /= dim;
    }
    const char *first = at == s->nan_at ? "nan" : "inf";
    if (n == 1) {
        rt_putf(out, "%s", first);
        return;
    }
    rt_putf(out, "%lld of %lld values, the first (%s) at [",
            (long long)(s->nans + (infs ? s->infs : 0)), (long long)n, first);
    for (int i = 0; i < t->rank; i++)
        rt_putf(out, "%s%lld", i ? "," : "", (long long)index[i]);
    rt_putf(out, "]");
    if (t->dtype == RT_F16 && first[0] == 'i')
        rt_putf(out, "; fp16 ends at 65504, bf16 does not");
}

/* "layer.1 forward, %h = add (/Add): 3 of .." */
static void
put_op(rt_text *out, const rt_run *run, const search *c)
{
    const rt_tensor *t = c->bad;
    rt_putf(out, "%s %s, %s", run->program->unit[c->op->unit],
            c->op->backward ? "backward" : "forward", t->name);
    if (t->op)
        rt_putf(out, " = %s", t->op);
    if (t->loc)
        rt_putf(out, " (%s)", t->loc);
    if (c->op->also)
        rt_putf(out, ", in one loop with %s", c->op->also);
    rt_putf(out, ": ");
    put_scan(out, run, t, &c->scan);
}

static bool
is_weight(const rt_tensor *t)
{
    return t && t->cls != RT_ARENA && t->cls != RT_GRAD;
}

/* Does an update change the weight? An image is as its owner. */
static bool
is_changed(const rt_program *p, const rt_tensor *t)
{
    for (int i = 0; i < p->nparam && t->cls == RT_IMAGE; i++)
        if (p->param[i].unit == t->unit && p->param[i].image == t->offset)
            return p->param[i].cls == RT_TRAIN;
    return t->cls == RT_TRAIN;
}

static void
put_operands(rt_text *out, const rt_run *run, const search *c, const rt_bad_step *b)
{
    if (c->source) {
        rt_putf(out, "\nits operand %s is not finite itself: ", c->source->name);
        put_scan(out, run, c->source, &c->source_scan);
        if (is_weight(c->source))
            rt_putf(out,
                    b->updates && is_changed(run->program, c->source)
                        ? "; an earlier update made it so, or it was loaded like that"
                        : "; it was loaded like that");
    } else if (c->largest)
        rt_putf(out, "\nits operands are finite, of size up to %.3g in %s",
                (double)c->size, c->largest->name);
    else
        rt_putf(out, "\nits operands were finite");
}

/* "rows 5, 9 of a.jsonl and 3 of b.jsonl"; row numbers from 1. */
static void
put_rows(rt_text *out, const rt_data *d, const int64_t *row, int64_t n)
{
    int before = -1;
    rt_putf(out, n == 1 ? "row " : "rows ");
    for (int64_t i = 0; i < n && i < ROWS_SHOWN; i++) {
        int64_t at = row[i];
        int f = 0;
        for (; f + 1 < d->nfile && at >= d->file[f].n; f++)
            at -= d->file[f].n;
        if (f != before && before >= 0)
            rt_putf(out, " of %s and ", d->file[before].path);
        rt_putf(out, "%s%lld", f == before ? ", " : "", (long long)at + 1);
        before = f;
    }
    if (before >= 0)
        rt_putf(out, " of %s", d->file[before].path);
    if (n > ROWS_SHOWN)
        rt_putf(out, " and %lld more", (long long)(n - ROWS_SHOWN));
}

/* No call went bad: has the sum of squares overflowed? */
static void
put_without_op(rt_text *out, rt_run *run, const rt_bad_step *b)
{
    const rt_program *p = run->program;
    const rt_param *most = NULL;
    float norm2 = rt_gradient_norm2(run), largest = -1;
    for (int i = 0; i < p->nparam; i++) {
        if (p->param[i].cls != RT_TRAIN)
            continue;
        const float *g = rt_param_grad(run, &p->param[i]);
        rt_scan s = rt_scan_floats(run->compute, g, RT_F32, p->param[i].n);
        if (s.largest <= largest)
            continue;
        largest = s.largest;
        most = &p->param[i];
    }
    if (strcmp(b->what, "loss") && most && !isfinite(norm2))
        rt_putf(
            out,
            "all results are finite, but not the sum of the gradients' squares: the "
            "largest gradient is %.3g, of $%s",
            (double)largest, most->name);
    else
        rt_putf(out, "run once more, the step is finite: suspect memory or processor");
}

/* ---- the step once more ---- */

/* RT_OK, or a row could not be read. where: the micro-batch that went bad. */
static int
run_again(const rt_job *job, const rt_bad_step *b, search *c, rt_text *where)
{
    rt_run *run = job->run;
    const rt_program *p = run->program;
    rt_zero(run->compute, run->base[RT_GRAD][0], rt_class_bytes(p, RT_GRAD));
    for (int64_t m = 0; m < b->micros && !c->op; m++) {
        const int64_t *row;
        int64_t n = b->fill(b->loop, m, &row);
        if (n < 0)
            return RT_USER;
        run->check = &c->check;
        rt_execute(run, RT_MICRO);
        run->check = NULL;
        if (!c->op)
            continue;
        if (b->micros > 1)
            rt_putf(where, "micro-batch %lld of %lld, ", (long long)m + 1,
                    (long long)b->micros);
        put_rows(where, job->train, row, n);
    }
    return RT_OK;
}

static void
put_advice(rt_text *out, const rt_job *job, const rt_bad_step *b, bool weights)
{
    if (b->saved)
        rt_putf(out,
                "\nthe newest checkpoint is %s/checkpoint-%lld; "
                "--resume-from-checkpoint goes on from it",
                job->opts->output_dir, (long long)b->saved);
    else
        rt_putf(out, "\nnothing was saved");
    if (weights && !b->updates)
        rt_putf(out, "; mend the weights that the run starts from");
    else
        rt_putf(out, "; lower --learning-rate, warm up, or clip with --max-grad-norm");
}

int
rt_nonfinite(const rt_job *job, const rt_bad_step *b)
{
    search c = {.check = {.see = see}};
    rt_text op = {0}, more = {0}, where = {0};
    int code = run_again(job, b, &c, &where);
    bool weights = is_weight(c.source);
    bool skip = !strcmp(job->opts->on_nonfinite, "skip") && !weights;
    if (c.op)
        put_op(&op, job->run, &c);
    else
        put_without_op(&op, job->run, b);
    if (c.op)
        put_operands(&more, job->run, &c, b);
    if (where.n)
        rt_putf(&more, "\n%s", where.s);
    put_advice(&more, job, b, weights);
    if (!code && skip)
        rt_say("skipped", "step %lld: the %s is not finite; %s%s%s%s",
               (long long)b->step, b->what, c.op ? "first: " : "", op.s,
               c.op ? "; " : "", c.op ? where.s : "");
    else if (!code)
        code = rt_fail(RT_USER,
                       "step %lld: the %s is not finite (learning rate %.3g)\n%s%s%s",
                       (long long)b->step, b->what, job->run->hyper.lr,
                       c.op ? "first result that is not finite: " : "", op.s, more.s);
    free(op.s);
    free(more.s);
    free(where.s);
    return code;
}
