/* data_bench.c -- how long data take to open, and in how much memory.
 *
 *   data_bench make jsonl ROWS FILE    rows of 128 random ids below 50257
 *   data_bench make bin BYTES FILE     random uint16 below 50257 (nanoGPT)
 *   data_bench open FILE               opens it as data of a causal model of 50257 tokens, rows
 *                                      of 128, then reads 10000 rows in the order of an epoch
 */
#include "runtime/host/host_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 128, VOCAB = 50257 };

static unsigned
random_id(void)
{
    static uint64_t x = 1;
    x = x * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((x >> 33) % VOCAB);
}

static int
make(const char *kind, long n, FILE *f)
{
    if (!f)
        return rt_fail(RT_USER, "can't write");
    bool lines = !strcmp(kind, "jsonl");
    for (long i = 0; lines && i < n; i++) {
        fputs("{\"input_ids\": [", f);
        for (int t = 0; t < SEQ; t++)
            fprintf(f, t ? ", %u" : "%u", random_id());
        fputs("]}\n", f);
    }
    for (long i = 0; !lines && i < n / 2; i++) {
        uint16_t id = (uint16_t)random_id();
        fwrite(&id, sizeof id, 1, f);
    }
    return fclose(f) ? rt_fail(RT_USER, "writing failed") : RT_OK;
}

static int
open_file(const char *path)
{
    rt_data d = {0};
    rt_data_spec spec = {.label = RT_LABEL_TOKEN, .causal = true, .seq = SEQ};
    spec.takes[RT_F_IDS] = spec.takes[RT_F_MASK] = spec.takes[RT_F_LABELS] = true;
    spec.high[RT_F_IDS] = spec.high[RT_F_LABELS] = VOCAB;
    spec.high[RT_F_MASK] = 2;
    double start = rt_now();
    int code = rt_data_open(&d, &(rt_words){1, &path}, &spec);
    double opened = rt_now();
    rt_order order = code ? (rt_order){0} : rt_order_of(&d, true, 42);
    int64_t sum = 0, n = order.n < 10000 ? order.n : 10000;
    for (int64_t i = 0; i < n && !code; i++) {
        int64_t row;
        rt_order_rows(&order, 0, i, 1, &row);
        sum += rt_data_supervised(&d, row);
    }
    double read = rt_now();
    if (!code)
        printf("opened in %.2f s, peak memory %s; %lld rows read in %.3f s (%lld "
               "supervised)\n",
               opened - start, rt_bytes_text((double)rt_peak_rss()), (long long)n,
               read - opened, (long long)sum);
    rt_data_close(&d);
    return code;
}

int
main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "make"))
        return make(argv[2], atol(argv[3]), fopen(argv[4], "w"));
    if (argc == 3 && !strcmp(argv[1], "open"))
        return open_file(argv[2]);
    return rt_fail(RT_USER, "see the head of data_bench.c");
}
