/* graph.cu -- a program's parts as CUDA graphs.
 *
 * Before the first step every part is captured: micro() and eval() once for each pair of
 * sizes that can occur, update() once. A capture runs nothing; the first round of them only
 * tells gemm_lt.cu which products there are, so that it can measure their algorithms, and is
 * thrown away. Graphs of eval(), which not every run needs, are made at their first use. A
 * step is then one launch a micro-batch and one for the update, and what differs from step to
 * step is in memory: inputs, and rtc_hyper. With run->direct the second round is left out, and a
 * step is the same calls, launched one by one.
 *
 * A graph of micro() ends by adding its loss to the tally, one of update() by noting norm and
 * loss scaler there and whether all that follows must halt.
 */
#include "cuda_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HYPERS = 4 }; /* uploads of rtc_hyper that may be on their way at once */

typedef cudaGraphExec_t by_size[RT_SIZES]
                               [RT_SIZES]; /* index of rows, of supervised rows */

struct rtc_graphs {
    by_size micro, eval;
    cudaGraphExec_t update;
    int n;
    size_t nodes;
    rtc_hyper *hyper[HYPERS]; /* pinned, a ring */
    int64_t sent[HYPERS];     /* marks behind which each may be filled again */
    int64_t updates;
    bool direct; /* none are made */
};

/* ---- the tally ---- */

static __global__ void
add_loss(rt_tally *t, const float *loss)
{
    t->loss += (double)*loss;
}

/* As it is before the update. */
static __global__ void
note_scaler(rt_tally *t, const float *scaler)
{
    for (int i = 0; i < RT_SCALER_FLOATS; i++)
        t->scaler[i] = scaler[i];
}

/* scaler: NULL: the program has none. */
static __global__ void
note_update(rt_tally *t, const float *norm2, const float *scaler)
{
    bool answer = scaler && t->scaler[RT_SCALE_AT] > 1;
    for (int i = 0; scaler && i < RT_SCALER_FLOATS; i++)
        t->scaler[i] = scaler[i];
    t->norm2 = *norm2;
    if (isfinite(*norm2) ? !isfinite(t->loss) : !answer)
        t->halted = 1;
}

/* ---- parts ---- */

static void
enqueue(rt_run *run, rt_part part)
{
    rt_stream *s = run->compute;
    const rt_program *p = run->program;
    const float *scaler = p->scaled ? (const float *)run->base[RT_SCALER][0] : NULL;
    if (part == RT_EVAL)
        p->eval(run);
    if (part == RT_MICRO) {
        p->micro(run);
        RT_LAUNCH(add_loss, dim3(1), dim3(1), 0, s->stream, s->tally,
                  (const float *)(run->arena + p->loss_at));
    }
    if (part == RT_UPDATE) {
        if (scaler)
            RT_LAUNCH(note_scaler, dim3(1), dim3(1), 0, s->stream, s->tally, scaler);
        p->update(run);
        RT_LAUNCH(note_update, dim3(1), dim3(1), 0, s->stream, s->tally,
                  (const float *)(run->arena + p->norm2_at), scaler);
    }
}

static cudaGraph_t
capture(rt_run *run, rt_part part)
{
    cudaGraph_t graph;
    cudaStream_t stream = run->compute->stream;
    /* relaxed: a first launch may load its kernel, which stricter modes could refuse */
    RT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    enqueue(run, part);
    RT_CUDA(cudaStreamEndCapture(stream, &graph));
    return graph;
}

/* To know its products; keep: also to launch it. */
static void
make(rt_run *run, rt_part part, cudaGraphExec_t *keep)
{
    rtc_graphs *g = run->compute->graphs;
    size_t nodes = 0;
    cudaGraph_t graph = capture(run, part);
    if (keep) {
        RT_CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
        RT_CUDA(cudaGraphInstantiate(keep, graph, 0));
        g->n++;
        g->nodes += nodes;
    }
    RT_CUDA(cudaGraphDestroy(graph));
}

/* Can a micro-batch have size i of rows and k of supervised rows? These are among those. */
static bool
occurs(const rt_program *p, int i, int k)
{
    return !p->nsize[RT_ROWS] || !p->nsize[RT_SUP] || k == 0 ||
           p->size[RT_SUP][k - 1] < p->size[RT_ROWS][i];
}

/* All parts that the run may execute; a run that trains has gradients. */
static void
make_all(rt_run *run, bool keep)
{
    const rt_program *p = run->program;
    rtc_graphs *g = run->compute->graphs;
    bool trains = run->base[RT_GRAD] && run->base[RT_GRAD][0];
    for (int i = 0; i < (p->nsize[RT_ROWS] ? p->nsize[RT_ROWS] : 1); i++)
        for (int k = 0; k < (p->nsize[RT_SUP] ? p->nsize[RT_SUP] : 1); k++) {
            int at[RT_NSYMS] = {0};
            at[RT_ROWS] = i;
            at[RT_SUP] = k;
            if (!occurs(p, i, k))
                continue;
            rt_set_sizes(run, at);
            if (trains)
                make(run, RT_MICRO, keep ? &g->micro[i][k] : NULL);
            if (!keep)
                make(run, RT_EVAL, NULL);
        }
    if (trains)
        make(run, RT_UPDATE, keep ? &g->update : NULL);
}

static void
set_largest(rt_run *run)
{
    int at[RT_NSYMS];
    for (int k = 0; k < RT_NSYMS; k++)
        at[k] = run->program->nsize[k] ? run->program->nsize[k] - 1 : 0;
    rt_set_sizes(run, at);
}

static void
send_hyper(rt_run *run)
{
    rt_stream *s = run->compute;
    rtc_graphs *g = s->graphs;
    const rt_hyper *h = &run->hyper;
    int slot = (int)(g->updates++ % HYPERS);
    rt_await(s, g->sent[slot]);
    rtc_hyper *x = g->hyper[slot];
    x->lr = h->lr;
    x->weight_decay = h->weight_decay;
    x->beta1 = h->beta1;
    x->beta2 = h->beta2;
    x->eps = h->eps;
    x->max_norm = h->max_norm;
    x->momentum = h->momentum;
    x->step = h->step;
    x->sgd = h->sgd;
    x->nesterov = h->nesterov;
    x->decay_all = h->decay_all;
    rt_upload(s, s->hyper, x, sizeof *x);
    g->sent[slot] = rt_mark(s);
}

extern "C" {

bool
rt_prepare(rt_run *run, char *error, size_t n)
{
    rt_stream *s = run->compute;
    rtc_device_bind(s, run->device);
    s->graphs = (rtc_graphs *)calloc(1, sizeof *s->graphs);
    bool ok = s->graphs != NULL;
    for (int i = 0; i < HYPERS && ok; i++) {
        s->graphs->hyper[i] = (rtc_hyper *)rt_staging(sizeof(rtc_hyper));
        ok = s->graphs->hyper[i] != NULL;
    }
    if (!ok) {
        snprintf(error, n, "out of memory");
        return false;
    }
    s->learns = true;
    make_all(run, false);
    s->learns = false;
    if (!rtc_gemms_measure(s, error, n))
        return false;
    rtc_dnn_prepare(s);
    s->graphs->direct = run->direct;
    if (!run->direct)
        make_all(run, true);
    set_largest(run);
    return true;
}

void
rt_execute(rt_run *run, rt_part part)
{
    rt_stream *s = run->compute;
    rtc_graphs *g = s->graphs;
    int i = run->program->nsize[RT_ROWS] ? s->at[RT_ROWS] : 0;
    int k = run->program->nsize[RT_SUP] ? s->at[RT_SUP] : 0;
    cudaGraphExec_t graph = part == RT_UPDATE  ? g->update
                            : part == RT_MICRO ? g->micro[i][k]
                                               : g->eval[i][k];
    if (part == RT_UPDATE)
        send_hyper(run);
    if (g->direct || (run->check && part == RT_MICRO)) {
        enqueue(run, part);
        return;
    }
    if (part == RT_EVAL && !graph) {
        make(run, part, &g->eval[i][k]);
        graph = g->eval[i][k];
    }
    RT_CUDA(cudaGraphLaunch(graph, s->stream));
}

} /* extern "C" */

static void
free_sizes(by_size graph)
{
    for (int i = 0; i < RT_SIZES; i++)
        for (int k = 0; k < RT_SIZES; k++)
            if (graph[i][k])
                RT_CUDA(cudaGraphExecDestroy(graph[i][k]));
}

void
rtc_graphs_free(rt_stream *s)
{
    rtc_graphs *g = s->graphs;
    if (!g)
        return;
    free_sizes(g->micro);
    free_sizes(g->eval);
    if (g->update)
        RT_CUDA(cudaGraphExecDestroy(g->update));
    for (int i = 0; i < HYPERS; i++)
        rt_staging_free(g->hyper[i]);
    free(g);
    s->graphs = NULL;
}

void
rtc_graphs_text(const rt_stream *s, char *text, size_t n)
{
    if (s->graphs && s->graphs->direct)
        snprintf(text, n, "; no graphs");
    else if (s->graphs)
        snprintf(text, n, "; %d graphs of %zu operations", s->graphs->n,
                 s->graphs->nodes);
}
