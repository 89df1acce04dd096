// vgpu_runtime.cpp -- the runtime API: memory, copies, streams, events.
//
// Copies follow CUDA's rules: from pinned memory bytes are read when the copy runs, pageable memory
// is staged when it is issued or read as late, since CUDA promises neither, and a copy to pageable
// memory returns only when it is done.
#include "vgpu_stream.h"

using namespace vgpu;

namespace {

cudaError_t last_error;

cudaError_t
failed(cudaError_t e)
{
    return last_error = e;
}

cudaError_t
allocate_for(void **p, size_t n, Kind kind, const char *function)
{
    init();
    forbid_in_capture(function);
    if (settings.devices <= 0)
        return failed(cudaErrorNoDevice);
    *p = allocate(n, kind);
    return *p ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

cudaError_t
release_for(void *p, const char *function)
{
    wait_all(function);
    release(p, function);
    return cudaSuccess;
}

Access
whole(const void *p, size_t n, bool write)
{
    return {p, n, 1, 0, 1, 0, write};
}

bool
seen_by_gpu(const void *p)
{
    return is_device(p) || is_visible(p);
}

void
check_kind(const void *to, const void *from, cudaMemcpyKind kind)
{
    bool ok = true;
    if (kind == cudaMemcpyHostToDevice)
        ok = seen_by_gpu(to) && !is_device(from);
    else if (kind == cudaMemcpyDeviceToHost)
        ok = seen_by_gpu(from) && !is_device(to);
    else if (kind == cudaMemcpyDeviceToDevice)
        ok = seen_by_gpu(to) && seen_by_gpu(from);
    else if (kind == cudaMemcpyHostToHost)
        ok = !is_device(to) && !is_device(from);
    if (!ok)
        die("cudaMemcpy from %p to %p: the pointers are not of the kind that was said",
            from, to);
}

} // namespace

extern "C" {

cudaError_t
cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t
cudaPeekAtLastError(void)
{
    return last_error;
}

// ---- memory ----

cudaError_t
cudaMalloc(void **p, size_t n)
{
    return allocate_for(p, n, DEVICE, "cudaMalloc");
}

cudaError_t
cudaMallocManaged(void **p, size_t n, unsigned)
{
    return allocate_for(p, n, MANAGED, "cudaMallocManaged");
}

cudaError_t
cudaMallocHost(void **p, size_t n)
{
    return allocate_for(p, n, PINNED, "cudaMallocHost");
}

cudaError_t
cudaHostAlloc(void **p, size_t n, unsigned)
{
    return allocate_for(p, n, PINNED, "cudaHostAlloc");
}

cudaError_t
cudaFree(void *p)
{
    return release_for(p, "cudaFree");
}

cudaError_t
cudaFreeHost(void *p)
{
    return release_for(p, "cudaFreeHost");
}

cudaError_t
cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    init();
    if (settings.devices <= 0)
        return failed(cudaErrorNoDevice);
    *total = settings.memory;
    *free_bytes = settings.memory - std::min(settings.memory, device_bytes());
    return cudaSuccess;
}

cudaError_t
cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    init();
    *a = cudaPointerAttributes();
    const Allocation *found = seen_by_gpu(p) ? find_allocation(p) : nullptr;
    if (!found)
        return cudaSuccess;
    static const cudaMemoryType types[] = {cudaMemoryTypeDevice, cudaMemoryTypeHost,
                                           cudaMemoryTypeManaged};
    a->type = types[found->kind];
    a->devicePointer = (void *)p;
    a->hostPointer = found->kind == DEVICE ? nullptr : (void *)p;
    return cudaSuccess;
}

cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                cudaStream_t stream)
{
    cudaStream_t s = stream_of(stream);
    check_kind(to, from, kind);
    bool pageable = !seen_by_gpu(from), waits = !seen_by_gpu(to);
    bool staged =
        pageable && (settings.policy == AS_ISSUED || order_random().next() % 2);
    if (s->capture && (pageable || waits))
        die("cudaMemcpyAsync of pageable memory while its stream is being captured");
    Op op;
    op.name = "memcpy";
    op.touches = {whole(from, n, false), whole(to, n, true)};
    if (staged) {
        auto copy = std::make_shared<std::vector<char>>((const char *)from,
                                                        (const char *)from + n);
        op.step = [=] {
            memcpy(to, copy->data(), n);
            return true;
        };
    } else {
        op.step = [=] {
            memmove(to, from, n);
            return true;
        };
    }
    enqueue(stream, std::move(op));
    if (waits)
        wait_stream(s, "cudaMemcpyAsync to pageable memory");
    return cudaSuccess;
}

cudaError_t
cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
    forbid_in_capture("cudaMemcpy");
    cudaMemcpyAsync(to, from, n, kind, nullptr);
    wait_stream(stream_of(nullptr), "cudaMemcpy");
    return cudaSuccess;
}

cudaError_t
cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t stream)
{
    stream_of(stream);
    if (!seen_by_gpu(to))
        die("cudaMemset: %p is no memory of the GPU", to);
    Op op;
    op.name = "memset";
    op.touches = {whole(to, n, true)};
    op.step = [=] {
        memset(to, value, n);
        return true;
    };
    return enqueue(stream, std::move(op));
}

cudaError_t
cudaMemset(void *to, int value, size_t n)
{
    forbid_in_capture("cudaMemset");
    return cudaMemsetAsync(to, value, n, nullptr);
}

// ---- streams ----

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    stream_of(nullptr);
    if (settings.devices <= 0)
        return failed(cudaErrorNoDevice);
    *s = new_stream(flags);
    return cudaSuccess;
}

cudaError_t
cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithFlags(s, cudaStreamDefault);
}

cudaError_t
cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(s, flags);
}

cudaError_t
cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t
cudaStreamDestroy(cudaStream_t s)
{
    if (s->capture)
        die("cudaStreamDestroy on a stream that is being captured");
    wait_task(s->id, s->issued, Clock(),
              "cudaStreamDestroy"); // the host knows of no end
    drop_stream(s);
    return cudaSuccess;
}

cudaError_t
cudaStreamSynchronize(cudaStream_t s)
{
    wait_stream(stream_of(s), "cudaStreamSynchronize");
    return cudaSuccess;
}

cudaError_t
cudaStreamQuery(cudaStream_t handle)
{
    cudaStream_t s = stream_of(handle);
    if (order_random().next() % 2)
        run_one();
    if (s->done < s->issued)
        return cudaErrorNotReady;
    wait_stream(s, "cudaStreamQuery");
    return cudaSuccess;
}

cudaError_t
cudaDeviceSynchronize(void)
{
    wait_all("cudaDeviceSynchronize");
    return cudaSuccess;
}

cudaError_t
cudaDeviceReset(void)
{
    return cudaDeviceSynchronize();
}

cudaError_t
cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    Op op;
    op.name = "host function";
    op.step = [=] {
        function(data);
        return true;
    };
    return enqueue(stream, std::move(op));
}

// ---- events; recording and waiting are in vgpu_graph.cpp ----

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    init();
    *e = new CUevent_st();
    (*e)->timing = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t
cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}

cudaError_t
cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

cudaError_t
cudaEventSynchronize(cudaEvent_t e)
{
    if (e->capture)
        die("cudaEventSynchronize: the event was last recorded in a capture");
    if (e->stream >= 0)
        wait_task(e->stream, e->index, e->clock, "cudaEventSynchronize");
    return cudaSuccess;
}

cudaError_t
cudaEventQuery(cudaEvent_t e)
{
    if (e->capture)
        die("cudaEventQuery: the event was last recorded in a capture");
    if (e->stream < 0)
        return cudaSuccess;
    if (order_random().next() % 2)
        run_one();
    if (!is_done(e->stream, e->index))
        return cudaErrorNotReady;
    return cudaEventSynchronize(e);
}

// There is no time on this device: any two events are as far apart as any others.
cudaError_t
cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->timing || !to->timing || from->stream < 0 || to->stream < 0)
        return failed(cudaErrorInvalidResourceHandle);
    if (!is_done(from->stream, from->index) || !is_done(to->stream, to->index))
        return failed(cudaErrorNotReady);
    *ms = 1 + (float)(to->slow - from->slow);
    return cudaSuccess;
}
}
