/* attention_scratch.c -- scratch space of the CUDA device's attention; part of efficc, too.
 *
 * Space is for whichever does it, cuDNN or our own kernels: what a machine has is known when the
 * trainer starts. cuDNN's workspace is asked for before there is a plan of it: 256 bytes, some KB
 * of rows, and for the gradient of fewer key heads dk and dv of every query head; that is what
 * cuDNN 9.19 wants for sm_90. A plan that wants more isn't used.
 */
#include "attention_tile.h"
#include "scratch.h"

enum {
    MOST_D_DNN = 128, /* largest head that cuDNN's gradients are made for everywhere */
    PIECE = 8,        /* elements that are loaded at once */
    SPARE = 1 << 20
};

bool
rtc_dnn_serves(const rt_attn *a)
{
    int64_t all[] = {a->d,  a->ldq, a->ldk, a->ldv, a->qo,
                     a->ko, a->vo,  a->qs,  a->ks,  a->vs};
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++)
        if (all[i] % PIECE)
            return false;
    return (a->type == RT_BF16 || a->type == RT_F16) && a->d <= MOST_D_DNN &&
           !a->window && !(a->softcap > 0) && !(a->p > 0) && a->seq > 1;
}

static int64_t
part(int64_t *bytes, int64_t n)
{
    int64_t at = *bytes;
    *bytes += (n + RTC_ALIGN - 1) / RTC_ALIGN * RTC_ALIGN;
    return at;
}

int64_t
rtc_dnn_row(int64_t batch)
{
    return (batch + 2) / 2 * 2;
}

rtc_dnn_space
rtc_dnn_layout(const rt_attn *a, bool grad)
{
    rtc_dnn_space s = {0};
    int64_t rows = a->batch * a->seq, heads = rows * a->heads, f = sizeof(float);
    s.lengths = part(&s.bytes, a->batch * (int64_t)sizeof(int32_t));
    s.offsets = part(&s.bytes, RTC_DNN_OFFSETS * rtc_dnn_row(a->batch) *
                                   (int64_t)sizeof(int64_t));
    s.bias = part(&s.bytes, rows * f);
    if (grad) {
        s.lse = part(&s.bytes, heads * f);
        s.delta = part(&s.bytes, heads * f);
        s.sum_dq = part(&s.bytes, heads * a->d * f);
    }
    s.most = SPARE + (grad && a->heads != a->kv_heads ? 2 * heads * a->d * 2 : 0);
    s.workspace = part(&s.bytes, s.most);
    return s;
}

int64_t
rtc_attention_shared(const rt_attn *a, bool grad)
{
    size_t size = a->type == RT_F32 ? sizeof(float) : sizeof(rt_bf16);
    int side;
#define HEAD(D, tensor, x)                                  \
    side = RTC_ATTN_SIDE((tensor) && size == 2);            \
    if (a->d <= (D))                                        \
        return grad ? (int64_t)RTC_ATTN_GRAD(side, D, size) \
                    : (int64_t)RTC_ATTN_FORWARD(side, D, size);
    RTC_ATTN_HEADS(HEAD, 0)
#undef HEAD
    return -1;
}

int64_t
rtc_attention_scratch(const rt_attn *a, int threads)
{
    (void)threads;
    if (rtc_attention_shared(a, false) < 0)
        return -1;
    return rtc_dnn_serves(a) ? rtc_dnn_layout(a, false).bytes : 0;
}

/* Of our own kernels: delta [rows, heads]. */
int64_t
rtc_attention_grad_scratch(const rt_attn *a, int threads)
{
    (void)threads;
    if (rtc_attention_shared(a, true) < 0)
        return -1;
    return rtc_dnn_serves(a) ? rtc_dnn_layout(a, true).bytes
                             : a->batch * a->seq * a->heads * (int64_t)sizeof(float);
}
