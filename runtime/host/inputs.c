/* inputs.c -- where the inputs of a micro-batch lie.
 *
 * Their device memory is a part of the program's. Where the host does not address it, it fills
 * one of two staging copies, which is sent in stream order; while the device works on one batch
 * the next is filled into the other copy, once what was sent from there has arrived.
 */
#include "host_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 2 };

struct rt_host {
    void **input[TURNS];  /* rt_run.host_input of each turn */
    char *staging[TURNS]; /* all inputs; NULL under rt_unified */
    int64_t sent[TURNS];  /* mark behind which the copy may be filled again */
    int turn;
    char *device; /* of all inputs */
    int64_t bytes;
    double scale; /* of rt_set_scale(), rt_set_keys() */
    int64_t key, first;
};

static int64_t
input_bytes(const rt_program *p, const rt_input *in)
{
    bool floats = in->role == RT_SCALE || in->role == RT_VALUES;
    int64_t n = (int64_t)(floats ? sizeof(float) : sizeof(int64_t));
    for (int d = 0; d < in->rank; d++)
        n *= in->dim[d];
    return rt_aligned(p, n);
}

int64_t
rt_inputs_bytes(const rt_program *p)
{
    int64_t bytes = 0;
    for (int i = 0; i < p->ninput; i++)
        bytes += input_bytes(p, &p->input[i]);
    return bytes;
}

/* Addresses of all inputs, one behind the other. */
static void **
places(const rt_program *p, char *at)
{
    void **place = rt_new((size_t)p->ninput + 1, sizeof *place);
    for (int i = 0; i < p->ninput; i++) {
        place[i] = at;
        at += input_bytes(p, &p->input[i]);
    }
    return place;
}

int
rt_inputs_new(rt_run *run, void *device)
{
    const rt_program *p = run->program;
    rt_host *h = rt_new(1, sizeof *h);
    run->host = h;
    h->device = device;
    h->bytes = rt_inputs_bytes(p);
    h->scale = 1;
    run->input = places(p, device);
    run->host_input = run->input;
    for (int k = 0; k < TURNS && !rt_unified; k++) {
        h->staging[k] = rt_staging((size_t)h->bytes);
        if (!h->staging[k])
            return rt_fail(RT_USER, "no host memory for the inputs: %s",
                           strerror(errno));
        run->host_input = h->input[k] = places(p, h->staging[k]);
    }
    return RT_OK;
}

void
rt_inputs_free(rt_run *run)
{
    rt_host *h = run->host;
    if (h && !rt_unified)
        rt_await(run->compute, rt_mark(run->compute));
    for (int k = 0; h && k < TURNS; k++) {
        free(h->input[k]);
        rt_staging_free(h->staging[k]);
    }
    free(run->input);
    free(h);
    run->input = run->host_input = NULL;
    run->host = NULL;
}

void
rt_inputs_begin(rt_run *run)
{
    rt_host *h = run->host;
    const rt_program *p = run->program;
    if (!rt_unified) {
        h->turn = (h->turn + 1) % TURNS;
        rt_await(run->compute, h->sent[h->turn]);
        run->host_input = h->input[h->turn];
    }
    for (int i = 0; i < p->ninput; i++) {
        int64_t *data = run->host_input[i];
        if (p->input[i].role == RT_SCALE)
            *(float *)run->host_input[i] = (float)h->scale;
        if (p->input[i].role == RT_DROP_KEY)
            data[0] = h->key;
        if (p->input[i].role == RT_DROP_KEYS)
            for (int64_t k = 0; k < p->batch * p->seq; k++)
                data[k] = (h->first + k / p->seq) << 24 | k % p->seq;
    }
}

void
rt_inputs_send(rt_run *run)
{
    rt_host *h = run->host;
    if (rt_unified)
        return;
    rt_upload(run->compute, h->device, run->host_input[0], h->bytes);
    h->sent[h->turn] = rt_mark(run->compute);
}

void
rt_set_scale(rt_run *run, double scale)
{
    run->host->scale = scale;
}

/* Mixes all bits (SplitMix64 of Steele, Lea and Flood, 2014). */
static uint64_t
mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int64_t
rt_step_key(uint64_t seed, int64_t step)
{
    return (int64_t)(mix(mix(seed) ^ (uint64_t)step) >> 12);
}

void
rt_set_keys(rt_run *run, int64_t key, int64_t first)
{
    run->host->key = key;
    run->host->first = first;
}
