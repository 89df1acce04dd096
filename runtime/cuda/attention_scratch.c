/* attention_scratch.c -- scratch space of the CUDA device's attention; part of efficc, too. */
#include "scratch.h"

enum { MOST_D = 256 }; /* largest head that fits into shared memory */

int64_t
rtc_attention_scratch(const rt_attn *a, int threads)
{
    (void)threads;
    return a->d <= MOST_D ? 0 : -1;
}

/* delta [rows, heads] */
int64_t
rtc_attention_grad_scratch(const rt_attn *a, int threads)
{
    (void)threads;
    return a->d <= MOST_D ? a->batch * a->seq * a->heads * (int64_t)sizeof(float) : -1;
}
