/* cudnn_int.h -- attentions that were asked for while a stream was captured, and cuDNN's plans. */
#ifndef EFFICC_CUDNN_INT_H
#define EFFICC_CUDNN_INT_H

#include "cuda_int.h"
#include "cudnn_api.h"
#include "scratch.h"

/* An attention, or its gradient where dq is there, and where its operands are. */
typedef struct rtc_attn_call {
    rt_attn a;
    rt_attn_at at;
    void *y; /* of a gradient: read only, as is lse */
    float *lse;
    const void *q, *k, *v, *dy;
    void *dq, *dk, *dv;
    void *scratch;
} rtc_attn_call;

typedef struct rtc_attn_plan { /* of a shape */
    rtc_dnn_shape shape;
    rtc_attn_call call; /* the first one */
    rtc_dnn_plan plan;
    bool good; /* there is a plan, and it does what our own kernels do */
} rtc_attn_plan;

enum { RTC_ATTENTIONS = 32 }; /* shapes; our own kernels do others */
struct rtc_dnn {
    rtc_dnn_api api; /* library NULL: there is none */
    void *handle;
    rtc_attn_plan plan[RTC_ATTENTIONS];
    int nplans, ngood;
    bool made; /* plans are for use */
    bool own;  /* for now, our own kernels do everything */
    bool said; /* that they do some attention */
};

/* Enqueues the call by the plan; 0, or cuDNN's status. */
int rtc_dnn_enqueue(rt_stream *, const rtc_attn_plan *, const rtc_attn_call *);
/* Is the plan right? Computes it on noise in its operands, which are cleared; why not, if not. */
bool rtc_dnn_trial(rt_stream *, const rtc_attn_plan *, char *why, size_t n);

#endif
