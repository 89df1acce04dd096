// vgpu_device.cpp -- what the device says of itself: an H100 with few multiprocessors.
#include "vgpu_int.h"
#include <stdio.h>

using namespace vgpu;

enum { CUDA_VERSION = 13000, MULTIPROCESSORS = 8 };

extern "C" {

cudaError_t
cudaGetDeviceCount(int *n)
{
    init();
    *n = settings.devices > 0 ? settings.devices : 0;
    return *n ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t
cudaSetDevice(int device)
{
    init();
    if (settings.devices <= 0)
        return cudaErrorNoDevice;
    return device >= 0 && device < settings.devices ? cudaSuccess
                                                    : cudaErrorInvalidDevice;
}

cudaError_t
cudaGetDevice(int *device)
{
    init();
    *device = 0;
    return settings.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t
cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    cudaError_t e = cudaSetDevice(device);
    if (e != cudaSuccess)
        return e;
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof p->name, "virtual GPU");
    p->totalGlobalMem = settings.memory;
    p->sharedMemPerBlock = 48 * 1024;
    p->sharedMemPerBlockOptin = settings.shared;
    p->sharedMemPerMultiprocessor = 228 * 1024;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    return cudaSuccess;
}

cudaError_t
cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr what, int device)
{
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess)
        return e;
    switch (what) {
    case cudaDevAttrMaxThreadsPerBlock:
        *v = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *v = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *v = (int)p.sharedMemPerBlockOptin;
        break;
    case cudaDevAttrWarpSize:
        *v = p.warpSize;
        break;
    case cudaDevAttrMultiProcessorCount:
        *v = p.multiProcessorCount;
        break;
    case cudaDevAttrL2CacheSize:
        *v = p.l2CacheSize;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *v = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *v = p.minor;
        break;
    case cudaDevAttrManagedMemory:
        *v = 1;
        break;
    default:
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

cudaError_t
cudaDriverGetVersion(int *v)
{
    init();
    *v = settings.devices > 0 ? CUDA_VERSION : 0;
    return cudaSuccess;
}

cudaError_t
cudaRuntimeGetVersion(int *v)
{
    *v = CUDA_VERSION;
    return cudaSuccess;
}

cudaError_t
cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute what, int v)
{
    init();
    bool known = what == cudaFuncAttributeMaxDynamicSharedMemorySize;
    return known && allow_shared(kernel, v) ? cudaSuccess : cudaErrorInvalidValue;
}

static const struct {
    cudaError_t e;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
     "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
};

const char *
cudaGetErrorName(cudaError_t e)
{
    for (const auto &x : errors)
        if (x.e == e)
            return x.name;
    return "unrecognized error code";
}

const char *
cudaGetErrorString(cudaError_t e)
{
    for (const auto &x : errors)
        if (x.e == e)
            return x.text;
    return "unrecognized error code";
}
}
