/* cuda_int.h -- what the files of the CUDA device share.
 *
 * Functions of efficc_rt.h are host functions here: they enqueue kernels on their stream, and
 * pointers to tensors are device pointers. rt_prepare() captures all parts of the program once
 * to learn which products they have (gemm_lt.cu), and once more to keep the graphs.
 */
#ifndef EFFICC_CUDA_INT_H
#define EFFICC_CUDA_INT_H

extern "C" {
#include "../include/efficc_rt.h"
}
#include "../include/efficc_element.h"
#include "../include/efficc_launch.h"
#include <math.h>

typedef struct rtc_gemms rtc_gemms;   /* descriptors and algorithms, gemm_lt.cu */
typedef struct rtc_graphs rtc_graphs; /* of the program's parts, graph.cu */
typedef struct rtc_comm rtc_comm;     /* between ranks, comm.cu */
typedef struct rtc_dnn rtc_dnn;       /* attention by cuDNN, cudnn_attention.cu */

/* rt_hyper and what follows from it, as kernels of an update read it; uploaded before each. */
typedef struct rtc_hyper {
    double lr, weight_decay, beta1, beta2, eps, max_norm, momentum;
    int64_t step;
    int32_t sgd, nesterov, decay_all;
} rtc_hyper;

enum { RTC_MARKS = 64 };

struct rt_stream {
    const rt_program *program;
    cudaStream_t stream;          /* compute: all but collectives */
    cudaStream_t gather, scatter; /* of collectives */
    cudaEvent_t event[RTC_MARKS]; /* of the last marks */
    int64_t marks;
    int at[RT_NSYMS]; /* sizes of the micro-batch: indices into program->size */
    /* What is captured will not run: products are only noted. The library loads code for a
     * product when it first runs, which so is in no capture. */
    bool learns;
    rtc_gemms *gemms;
    rtc_graphs *graphs;
    rtc_dnn *dnn;   /* NULL: no attention was asked for */
    rtc_comm *comm; /* NULL: one rank */
    char *device;   /* rt_run.device once rt_prepare() ran: the parts below lie in it */
    rt_tally *tally;
    rtc_hyper *hyper; /* device */
    double *partial;  /* device: partial sums, rtc_partials() doubles */
    cudaDeviceProp card;
};

static inline int64_t
rtc_blocks(int64_t n, int64_t per)
{
    return (n + per - 1) / per;
}

/* Partial sums: of rt_norm2() for each so many elements of a unit's gradients, and then for each
 * group of those sums, so that many blocks add what is millions of sums in a large model; of
 * losses, and of right answers, for each group of rows. Kernels of one stream use the same ones,
 * each for the next; between calls rt_scan_floats() has its findings there. */
enum { RTC_NORM_BLOCK = 1024, RTC_NORM_GROUP = 1024, RTC_LOSS_GROUPS = 256 };
static inline int64_t
rtc_partials(const rt_program *p)
{
    int64_t n = 0, least = 2 * RTC_LOSS_GROUPS;
    for (int u = 0; u < p->nunit; u++)
        n += rtc_blocks(p->unit_bytes[u][RT_GRAD] / (int64_t)sizeof(float),
                        RTC_NORM_BLOCK);
    n += rtc_blocks(n, RTC_NORM_GROUP);
    return n < least ? least : n;
}

/* ---- elements: efficc_element.h ---- */

/* Runs the statements with T as the C++ type of the rt_dtype. */
#define RTC_BY_TYPE(dtype, T, ...)      \
    do {                                \
        if ((dtype) == RT_BF16) {       \
            typedef __nv_bfloat16 T;    \
            __VA_ARGS__;                \
        } else if ((dtype) == RT_F16) { \
            typedef __half T;           \
            __VA_ARGS__;                \
        } else {                        \
            typedef float T;            \
            __VA_ARGS__;                \
        }                               \
    } while (0)

/* ---- a warp, a block ---- */

enum { RTC_WARP = 32 };
static const unsigned rtc_all = 0xffffffffu;

template <class T> /* float, double */
static __device__ __forceinline__ T
rtc_warp_sum(T x)
{
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(rtc_all, x, o);
    return x;
}

static __device__ __forceinline__ float
rtc_warp_max(float x)
{
    for (int o = 16; o; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(rtc_all, x, o));
    return x;
}

/* Sum over the block, in every thread, in an order that only blockDim fixes. shared: 32
 * elements; it may be used again at once. All threads take part. */
template <class T>
static __device__ __forceinline__ T
rtc_block_sum(T x, T *shared)
{
    int lane = threadIdx.x % RTC_WARP, warp = threadIdx.x / RTC_WARP;
    int warps = (blockDim.x + RTC_WARP - 1) / RTC_WARP;
    x = rtc_warp_sum(x);
    __syncthreads();
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return rtc_warp_sum(lane < warps ? shared[lane] : T(0));
}

static __device__ __forceinline__ float
rtc_block_max(float x, float *shared)
{
    int lane = threadIdx.x % RTC_WARP, warp = threadIdx.x / RTC_WARP;
    int warps = (blockDim.x + RTC_WARP - 1) / RTC_WARP;
    x = rtc_warp_max(x);
    __syncthreads();
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return rtc_warp_max(lane < warps ? shared[lane] : -INFINITY);
}

/* ---- device.cu, graph.cu ---- */

/* Not where the environment variable of this name is 0, which keeps out a part of a library. */
bool rtc_wanted(const char *name);
/* The stream's parts of rt_run.device: rt_device_bytes(). */
void rtc_device_bind(rt_stream *, char *device);
void rtc_graphs_free(rt_stream *);
/* "; 3 graphs of .."; nothing before rt_prepare(). */
void rtc_graphs_text(const rt_stream *, char *text, size_t n);

/* ---- products (gemm_lt.cu) ---- */

/* One product by cuBLASLt: as rt_gemm(), of a description that need not be in the program's
 * table. workspace: rtc_gemm_scratch() bytes, or NULL: none. c = alpha op(a) op(b) (+ bias) + beta
 * `from`; from has c's type and layout, NULL with beta 0. */
void rtc_matmul(rt_stream *, const rt_gemm_desc *, void *c, const void *a,
                const void *b, const float *bias, const void *from, void *workspace);
bool rtc_gemms_open(rt_stream *, char *error, size_t n);
void rtc_gemms_close(rt_stream *);
/* Measures the algorithms of all products that were asked for while the stream was captured. */
bool rtc_gemms_measure(rt_stream *, char *error, size_t n);

/* ---- attention by cuDNN (cudnn_attention.cu) ---- */

/* Does what our own kernels would do; false: they have to. Before rtc_dnn_prepare() it only takes
 * down what is asked for. */
struct rtc_attn_call;
bool rtc_dnn_attention(rt_stream *, const struct rtc_attn_call *);
/* Loads cuDNN, makes plans of all attentions that were asked for, and tries them. */
void rtc_dnn_prepare(rt_stream *);
void rtc_dnn_close(rt_stream *);
/* "; attention by cuDNN 9.19"; nothing before rtc_dnn_prepare(), or without attention. */
void rtc_dnn_text(const rt_stream *, char *text, size_t n);

#endif
