/* cmd_verify_data.c -- rows that a trainer of any task takes: random ids, most rows shorter
 * than the longest, so that there is padding; labels that fit the task. The same rows each
 * time.
 */
#include "cmd_verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 2 };

/* A number below n (xorshift). */
static int64_t
below(uint64_t *state, int64_t n)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (int64_t)(*state >> 16) % n;
}

static void
put_label(FILE *f, uint64_t *state, int64_t labels, bool value)
{
    if (value)
        fprintf(f, "%.3f", (double)below(state, 4000) / 1000 - 2);
    else
        fprintf(f, "%" PRId64, below(state, labels));
}

static void
put_labels(FILE *f, const ir_module *m, uint64_t *state, int64_t n)
{
    const char *task = ir_meta_get(m, "task");
    bool mlm = !strcmp(task, "mlm"), value = !strcmp(task, "regression");
    int64_t labels = ir_meta_int(m, mlm ? "vocab" : "labels", 1);
    int64_t many = value ? labels : n;
    if (!strcmp(task, "causal-lm"))
        return; /* it learns its input */
    fputs(", \"labels\": ", f);
    if (!strcmp(task, "seq-cls") || (value && labels == 1)) {
        put_label(f, state, labels, value);
        return;
    }
    for (int64_t i = 0; i < many; i++) {
        fputs(i ? ", " : "[", f);
        if (!value && i && below(state, 4) == 0)
            fputs("-100", f); /* not supervised */
        else
            put_label(f, state, labels, value);
    }
    fputs("]", f);
}

bool
verify_write_data(const ir_module *m, const char *path)
{
    int64_t batch = ir_meta_int(m, "batch", 1), seq = ir_meta_int(m, "seq", 1);
    int64_t vocab = ir_meta_int(m, "vocab", 0);
    uint64_t state = 0x9e3779b97f4a7c15u;
    FILE *f = fopen(path, "w");
    for (int64_t r = 0; f && r < STEPS * batch; r++) {
        int64_t n = r % batch ? seq - below(&state, seq / 2 + 1) : seq;
        fputs("{\"input_ids\": [", f);
        for (int64_t i = 0; i < n; i++)
            fprintf(f, "%s%" PRId64, i ? ", " : "",
                    below(&state, vocab > 0 ? vocab : 1));
        fputs("]", f);
        put_labels(f, m, &state, n);
        fputs("}\n", f);
    }
    bool bad = f && ferror(f);
    if (f && !fclose(f) && !bad)
        return true;
    return ef_error(m->ctx, NULL, E_FILE, path, strerror(errno));
}
