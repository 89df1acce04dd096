/* precision.c -- in what a program computes, and why.
 *
 * What the user says holds. A module that comes as text may be past the pass that decides on
 * types, and then is as it is. Else it is bf16 where the machine multiplies in it at full
 * speed: half of the bytes, and losses that agree with those of fp32 to about 1 in 100;
 * and fp32 where bf16 would have to be emulated.
 */
#include "frontend.h"

#include <string.h>

typedef struct choice {
    const char *name; /* fp32, bf16, fp16 */
    const char *why;
} choice;

static choice
given(const ef_config *c)
{
    const char *name = c->bf16 ? "bf16" : c->fp16 ? "fp16" : c->fp32 ? "fp32" : NULL;
    if (!name && !strcmp(c->residual, "bf16"))
        return (choice){"bf16", "which --residual bf16 means"};
    return (choice){name, "as the options say"};
}

/* Has the pass that decides on types had its turn? */
static bool
is_made(const ir_module *m)
{
    for (int i = 0; i < m->passes.n; i++)
        if (!strcmp(m->passes.at[i], "autocast") || !strcmp(m->passes.at[i], "eval"))
            return true;
    return false;
}

static choice
choose(const ef_config *c, const ir_module *m, bool (*computes)(ir_dtype))
{
    choice want = given(c);
    if (want.name)
        return want;
    const char *made = ir_meta_get(m, "precision");
    if (is_made(m))
        return (choice){made ? made : "fp32", "as the text was made"};
    if (computes(IR_BF16))
        return (choice){"bf16",
                        c->target && !strcmp(c->target, "cuda")
                            ? "which GPUs multiply in; --fp32 is exact"
                            : "which this machine multiplies in; --fp32 is exact"};
    return (choice){"fp32", "since this machine does not multiply in bf16"};
}

const char *
fe_precision(ef_ctx *ctx, ef_config *c, const ir_module *m, bool (*computes)(ir_dtype))
{
    choice x = choose(c, m, computes);
    c->bf16 = !strcmp(x.name, "bf16");
    c->fp16 = !strcmp(x.name, "fp16");
    c->fp32 = !strcmp(x.name, "fp32");
    bool slow = !c->fp32 && !computes(c->bf16 ? IR_BF16 : IR_F16);
    return ef_printf(ctx->arena, "%-11s %s, %s%s", "precision", x.name, x.why,
                     slow ? "; this machine has no products of it: they are emulated, "
                            "with the same results but for rounding, and slowly"
                          : "");
}
