/* data_fuzz.c -- files of rows in every format. A file that is taken must hold what was
 * counted when it was checked, and every row of it must be readable.
 *
 * Byte 0 of an input chooses the format, byte 1 what rows must look like, then two bytes
 * have the length of the first file: the .npy, the .idx. What is behind it is the second
 * file: labels, or Megatron's .bin. JSONL and streams have one file.
 */
#include "fuzz.h"

#include "runtime/host/host_int.h"

enum { HEAD = 4, SEQ = 6, VOCAB = 64, CLASSES = 3 };

static const struct {
    const char *first, *second;
} formats[] = {{"rows.jsonl", NULL},
               {"rows.npy", "rows.labels.npy"},
               {"rows.bin", NULL},
               {"mega.idx", "mega.bin"}};
enum { FORMATS = sizeof formats / sizeof *formats };

static rt_data_spec
spec_of(uint8_t choice)
{
    rt_data_spec s = {.label = (rt_label)(choice & 3),
                      .causal = choice & 4,
                      .seq = choice & 8 ? SEQ : 0,
                      .use = (rt_use)((choice >> 4) % 3),
                      .labels = 1 + (choice & 1),
                      .threads = 1};
    for (int f = 0; f < RT_NFIELDS; f++)
        s.takes[f] = !(choice & 0x40) || f == RT_F_IDS || f == RT_F_LABELS;
    s.causal &= s.label == RT_LABEL_TOKEN;
    s.takes[RT_F_MASK] = true;
    s.other[RT_F_LABELS] = "label";
    s.high[RT_F_MASK] = 2;
    if (choice & 0x80) {
        s.high[RT_F_IDS] = s.high[RT_F_POSITIONS] = VOCAB;
        s.high[RT_F_LABELS] = s.label == RT_LABEL_TOKEN ? VOCAB : CLASSES;
    }
    return s;
}

/* Rows against the totals. */
static void
read_rows(const rt_data *d)
{
    rt_row row = {0};
    int64_t ntoken = 0, supervised = 0;
    int64_t *out = rt_new((size_t)d->ntoken + 1, sizeof *out);
    for (int64_t i = 0; i < d->n; i++) {
        if (rt_data_row(d, i, &row) || row.n < 1 || row.n > d->ntoken)
            abort();
        for (int f = 0; f < RT_NFIELDS; f++)
            rt_row_field(d, &row, (rt_field)f, out);
        if (rt_data_length(d, i) != row.n)
            abort();
        rt_data_label(d, i, row.n - 1);
        rt_data_value(d, i, 0);
        ntoken += row.n;
        supervised += rt_data_supervised(d, i);
    }
    if (ntoken != d->ntoken ||
        (d->spec.use != RT_PREDICTION && supervised != d->supervised))
        abort();
    free(out);
    rt_row_free(&row);
}

static void
fuzz_input(const uint8_t *data, size_t n)
{
    rt_out = rt_err = fuzz_null;
    if (n < HEAD)
        return;
    int format = data[0] % FORMATS;
    const char *second = formats[format].second;
    size_t first = (size_t)(data[2] | data[3] << 8), rest = n - HEAD;
    first = !second || first > rest ? rest : first;
    const char *path = fuzz_file(formats[format].first, data + HEAD, first);
    if (second && first < rest)
        fuzz_file(second, data + HEAD + first, rest - first);
    rt_data d;
    rt_data_spec spec = spec_of(data[1]);
    if (rt_data_open(&d, &(rt_words){1, &path}, &spec) == RT_OK)
        read_rows(&d);
    rt_data_close(&d);
    if (second)
        unlink(fuzz_path(second));
}
