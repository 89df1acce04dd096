/* kernel_device.cu -- what tests of kernels need of a GPU. */
#include "runtime/cuda/cuda_int.h"

#include <stdio.h>

/* The virtual GPU has it: another order of threads and streams. */
extern "C" __attribute__((weak)) void vgpu_reseed(unsigned long long seed);

extern "C" {

void *
kt_device_memory(size_t bytes)
{
    enum { ALIGN = 256 }; /* the virtual GPU aligns ends, and no more than the size does */
    void *p = NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    RT_CUDA(cudaMallocManaged(&p, bytes, cudaMemAttachGlobal));
    return p;
}

void
kt_device_free(void *p)
{
    RT_CUDA(cudaFree(p));
}

void
kt_device_seed(int team)
{
    static const unsigned long long seeds[] = {0, 1, 3};
    if (vgpu_reseed)
        vgpu_reseed(seeds[team % 3]);
}

void
kt_device_fail(void)
{
    RT_CUDA(cudaErrorInvalidValue);
}

size_t
kt_device_hyper_bytes(void)
{
    return sizeof(rtc_hyper);
}

size_t
kt_device_partial_bytes(const rt_program *p)
{
    return (size_t)rtc_partials(p) * sizeof(double);
}

void
kt_device_capture(rt_stream *s)
{
    /* as the product does: kernels are loaded when they are first launched */
    RT_CUDA(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeRelaxed));
}

bool
kt_device_virtual(void)
{
    return vgpu_reseed;
}

int
kt_device_measure(rt_stream *s)
{
    cudaGraph_t graph;
    size_t nodes = 0;
    char error[256] = "";
    RT_CUDA(cudaStreamEndCapture(s->stream, &graph));
    RT_CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
    RT_CUDA(cudaGraphDestroy(graph));
    if (!rtc_gemms_measure(s, error, sizeof error))
        fprintf(stderr, "%s\n", error);
    rtc_dnn_prepare(s);
    return (int)nodes;
}

void
kt_device_bind(rt_stream *s, const rt_run *run, void *hyper, void *partial)
{
    const rt_hyper *h = &run->hyper;
    s->tally = (rt_tally *)run->device;
    s->partial = (double *)partial;
    s->hyper = (rtc_hyper *)hyper;
    *s->hyper = {h->lr,       h->weight_decay, h->beta1, h->beta2, h->eps,
                 h->max_norm, h->momentum,     h->step,  h->sgd,   h->nesterov,
                 h->decay_all};
}
}
