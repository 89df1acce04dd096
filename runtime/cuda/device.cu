/* device.cu -- opening a GPU, its memory, copies, and places in the order of its work.
 *
 * All work of a program is enqueued on one stream, `compute`; the two others are for
 * collectives, which run beside it. No stream waits for the legacy one. A mark is an event;
 * events are used again after RTC_MARKS of them, when whoever still awaits the old mark gets a
 * later one, which is behind it.
 */
#include "comm.h"
#include "cuda_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RTC_ALIGNED = 256, RTC_LEAST_MAJOR = 8 };

extern "C" {

const bool rt_unified = false;

static int64_t last_mark; /* for the message of a failure */

} /* extern "C" */

void
rt_cuda_check(cudaError_t e, const char *what, const char *file, int line)
{
    enum { NO_IMAGE = 209 }; /* cudaErrorNoKernelImageForDevice */
    if (e == cudaSuccess)
        return;
    if ((int)e == NO_IMAGE)
        exit(rt_fail(RT_USER,
                     "this GPU is older than what the program was compiled for\n"
                     "compile again with the --cuda-arch of this GPU"));
    const char *name = strrchr(file, '/');
    bool full = e == cudaErrorMemoryAllocation;
    exit(rt_fail(full ? RT_USER : RT_BUG,
                 "CUDA: %s (%s)\n%s, %s:%d, behind mark %lld%s", cudaGetErrorString(e),
                 cudaGetErrorName(e), what, name ? name + 1 : file, line,
                 (long long)last_mark,
                 full ? "\nother programs on this GPU may have taken the memory" : ""));
}

bool
rtc_wanted(const char *name)
{
    const char *x = getenv(name);
    return !x || strcmp(x, "0") != 0;
}

/* ---- opening ---- */

static bool
refuse(char *error, size_t n, const char *what, const char *why)
{
    snprintf(error, n, "%s%s; a program for the processor is made by --target cpu",
             what, why);
    cudaGetLastError(); /* it was said */
    return false;
}

/* The first GPU that CUDA_VISIBLE_DEVICES lets us see. */
static bool
find_card(rt_stream *s, char *error, size_t n)
{
    char why[400];
    int cards = 0, driver = 0;
    cudaError_t e = cudaGetDeviceCount(&cards);
    if (e == cudaErrorInsufficientDriver &&
        cudaDriverGetVersion(&driver) == cudaSuccess && !driver)
        return refuse(error, n, "no GPU can be used: there is no NVIDIA driver", "");
    if (e != cudaSuccess)
        return refuse(error, n, "no GPU can be used: ", cudaGetErrorString(e));
    if (!cards)
        return refuse(error, n, "no GPU can be used: there is none", "");
    e = cudaSetDevice(0);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&s->card, 0);
    if (e != cudaSuccess)
        return refuse(error, n, "the GPU can't be used: ", cudaGetErrorString(e));
    if (s->card.major >= RTC_LEAST_MAJOR)
        return true;
    snprintf(why, sizeof why, "%s has compute capability %d.%d, and %d.0 is the least",
             s->card.name, s->card.major, s->card.minor, (int)RTC_LEAST_MAJOR);
    return refuse(error, n, "the GPU can't be used: ", why);
}

static void
make_streams(rt_stream *s)
{
    int least, greatest;
    RT_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    RT_CUDA(cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, least));
    RT_CUDA(cudaStreamCreateWithPriority(&s->gather, cudaStreamNonBlocking, greatest));
    RT_CUDA(cudaStreamCreateWithPriority(&s->scatter, cudaStreamNonBlocking, greatest));
    for (int i = 0; i < RTC_MARKS; i++)
        RT_CUDA(cudaEventCreateWithFlags(&s->event[i], cudaEventDisableTiming));
}

extern "C" {

bool
rt_device_open(const rt_program *p, rt_stream **compute, char *error, size_t n)
{
    rt_stream *s = (rt_stream *)calloc(1, sizeof *s);
    *compute = NULL;
    if (!s) {
        snprintf(error, n, "out of memory");
        return false;
    }
    s->program = p;
    for (int k = 0; k < RT_NSYMS; k++)
        s->at[k] = p->nsize[k] ? p->nsize[k] - 1 : 0;
    bool ok = find_card(s, error, n);
    if (ok) {
        make_streams(s);
        ok = rtc_gemms_open(s, error, n);
    }
    if (!ok) {
        rt_device_close(s);
        return false;
    }
    *compute = s;
    return true;
}

void
rt_device_close(rt_stream *s)
{
    if (!s)
        return;
    if (s->stream)
        RT_CUDA(cudaStreamSynchronize(s->stream));
    rtc_graphs_free(s);
    rtc_comm_close(s);
    if (s->gemms)
        rtc_gemms_close(s);
    rtc_dnn_close(s);
    for (int i = 0; i < RTC_MARKS && s->event[i]; i++)
        RT_CUDA(cudaEventDestroy(s->event[i]));
    cudaStream_t stream[] = {s->stream, s->gather, s->scatter};
    for (int i = 0; i < 3 && stream[i]; i++)
        RT_CUDA(cudaStreamDestroy(stream[i]));
    free(s);
}

cudaStream_t
rt_cuda_stream(rt_stream *s)
{
    return s->stream;
}

void
rt_device_text(const rt_stream *s, char *text, size_t n)
{
    int used = snprintf(text, n, "%s, sm_%d%d, %.1f GB", s->card.name, s->card.major,
                        s->card.minor, (double)s->card.totalGlobalMem / 1e9);
    if (used > 0 && (size_t)used < n)
        rtc_graphs_text(s, text + used, n - (size_t)used);
    size_t all = strlen(text);
    rtc_dnn_text(s, text + all, n - all);
}

void
rt_set_sizes(rt_run *run, const int at[RT_NSYMS])
{
    const rt_program *p = run->program;
    for (int k = 0; k < RT_NSYMS; k++) {
        if (p->nsize[k] == 0)
            continue;
        run->compute->at[k] = at[k];
        run->size[k] = p->size[k][at[k]];
    }
}

bool
rt_computes(rt_dtype t)
{
    return t == RT_F32 || t == RT_BF16 || t == RT_F16;
}

/* ---- memory ---- */

static int64_t
round_up(int64_t bytes)
{
    return rtc_blocks(bytes, RTC_ALIGNED) * RTC_ALIGNED;
}

int64_t
rt_device_bytes(const rt_program *p)
{
    return round_up((int64_t)sizeof(rt_tally)) + round_up((int64_t)sizeof(rtc_hyper)) +
           round_up(rtc_partials(p) * (int64_t)sizeof(double));
}

} /* extern "C" */

void
rtc_device_bind(rt_stream *s, char *device)
{
    s->device = device;
    s->tally = (rt_tally *)device;
    device += round_up((int64_t)sizeof(rt_tally));
    s->hyper = (rtc_hyper *)device;
    device += round_up((int64_t)sizeof(rtc_hyper));
    s->partial = (double *)device;
}

extern "C" {

void *
rt_alloc(size_t bytes)
{
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* the caller says it */
        return NULL;
    }
    RT_CUDA(e);
    RT_CUDA(cudaMemset(p, 0, bytes));
    RT_CUDA(cudaDeviceSynchronize()); /* no stream of ours waits for the legacy one */
    return p;
}

int64_t
rt_free_bytes(void)
{
    size_t left = 0, all = 0;
    RT_CUDA(cudaMemGetInfo(&left, &all));
    return (int64_t)left;
}

void *
rt_staging(size_t bytes)
{
    void *p = NULL;
    if (cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError(); /* the caller says it */
        errno = ENOMEM;
        return NULL;
    }
    return memset(p, 0, bytes);
}

void
rt_staging_free(void *staging)
{
    if (staging)
        RT_CUDA(cudaFreeHost(staging));
}

/* ---- copies ---- */

/* Of memory that is not pinned the driver may take a copy before it returns, or read it as late as
 * the copy runs, as where the GPU reads all of the host's memory: CUDA promises neither. */
void
rt_upload(rt_stream *s, void *device, const void *host, int64_t bytes)
{
    cudaPointerAttributes is;
    RT_CUDA(cudaPointerGetAttributes(&is, host));
    RT_CUDA(cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice,
                            s->stream));
    if (is.type != cudaMemoryTypeHost)
        RT_CUDA(cudaStreamSynchronize(s->stream));
}

void
rt_fetch(rt_stream *s, void *staging, const void *device, int64_t bytes)
{
    RT_CUDA(cudaMemcpyAsync(staging, device, (size_t)bytes, cudaMemcpyDeviceToHost,
                            s->stream));
}

void
rt_download(rt_stream *s, void *host, const void *device, int64_t bytes)
{
    rt_fetch(s, host, device, bytes);
    RT_CUDA(cudaStreamSynchronize(s->stream));
}

/* ---- marks ---- */

int64_t
rt_mark(rt_stream *s)
{
    last_mark = ++s->marks;
    RT_CUDA(cudaEventRecord(s->event[s->marks % RTC_MARKS], s->stream));
    return s->marks;
}

void
rt_await(rt_stream *s, int64_t mark)
{
    if (mark > 0)
        RT_CUDA(cudaEventSynchronize(s->event[mark % RTC_MARKS]));
}

} /* extern "C" */
