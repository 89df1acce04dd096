/* data_bin.c -- token streams: nanoGPT's .bin, llm.c's .bin of both versions, and Megatron's
 * .bin with its .idx.
 *
 * nanoGPT: uint16 numbers, nothing else. llm.c: 256 int32 (magic, version, tokens), then
 * uint16 or uint32 numbers. Both are one stream, cut into rows of seq tokens. Megatron: the
 * .idx says where in the .bin each sequence lies; sequences are rows, and those longer than
 * seq are cut into several.
 *
 * llm.c: dev/data/data_common.py. Megatron: megatron/core/datasets/indexed_dataset.py.
 */
#include "data_int.h"

#include <stdlib.h>
#include <string.h>

enum { STREAM_ROW = 1024, LLMC_HEADER = 1024, IDX_HEADER = 34, BLOCK = 4096 };

static void
numbers_of(rt_loading *l, rt_array *a, char kind, int size)
{
    a->field = "token";
    a->kind = kind;
    a->size = size;
    a->high = l->d->spec.high[RT_F_IDS];
}

/* Rows of a stream in the array. */
static int
stream(rt_loading *l, const char *format)
{
    struct rt_source *s = l->file->source;
    const rt_array *a = &s->array[RT_F_IDS];
    rt_text t = {0};
    rt_putf(&t, "%s tokens, %s", format, rt_array_type(a));
    l->file->format = t.s;
    s->width = l->d->spec.seq ? l->d->spec.seq : STREAM_ROW;
    l->file->n = a->n / s->width + (a->n % s->width > 0);
    l->file->ntoken = a->n;
    return rt_arrays_check(l);
}

static int
open_nanogpt(rt_loading *l)
{
    rt_array *a = &l->file->source->array[RT_F_IDS];
    int code = rt_array_open(a, l->file->path);
    if (code)
        return code;
    numbers_of(l, a, 'u', 2);
    if (a->was.st_size % 2)
        return rt_fail(
            RT_USER,
            "%s has %lld bytes, an odd number, so it is not uint16 tokens "
            "(nanoGPT's .bin)\nllm.c's .bin begins with 20240520 or 20240801, "
            "Megatron's has an .idx beside it",
            a->path, (long long)a->was.st_size);
    a->n = a->was.st_size / 2;
    return stream(l, "nanoGPT");
}

static int
open_llmc(rt_loading *l)
{
    static const struct {
        int32_t magic, version;
        int size;
    } known[] = {{20240520, 1, 2}, {20240801, 7, 4}};
    rt_array *a = &l->file->source->array[RT_F_IDS];
    int32_t head[3] = {0};
    int code = rt_array_open(a, l->file->path);
    if (!code)
        code = rt_array_bytes(a, 0, head, sizeof head);
    if (code)
        return code;
    int k = head[0] == known[1].magic;
    if (head[0] != known[k].magic)
        return rt_fail(RT_USER,
                       "%s is llm.c's file of an evaluation (magic %d), not tokens",
                       a->path, head[0]);
    if (head[1] != known[k].version)
        return rt_fail(RT_USER,
                       "%s: llm.c's version %d of magic %d is not known, only %d",
                       a->path, head[1], head[0], known[k].version);
    numbers_of(l, a, 'u', known[k].size);
    int64_t want = LLMC_HEADER + (int64_t)head[2] * a->size;
    if (head[2] < 0 || want != a->was.st_size)
        return rt_fail(RT_USER,
                       "%s: its header says %d tokens of %d bytes, %lld bytes with the "
                       "header, but the file has %lld",
                       a->path, head[2], a->size, (long long)want,
                       (long long)a->was.st_size);
    a->at = LLMC_HEADER;
    a->n = head[2];
    return stream(l, "llm.c");
}

/* ---- Megatron ---- */

typedef struct idx { /* the index and what it says */
    rt_array file;
    uint64_t nsequence, ndocument;
    rt_loading *l;
    const rt_array *ids;
} idx;

/* dir/NAME.bin and dir/NAME.idx of either; free it. */
static char *
with_end(const char *path, const char *end)
{
    char *s = strdup(path);
    memcpy(s + strlen(s) - strlen(end), end, strlen(end));
    return s;
}

static int
open_index(idx *x, const char *path)
{
    unsigned char head[IDX_HEADER];
    uint64_t version;
    int code = rt_array_open(&x->file, path);
    if (!code)
        code = rt_array_bytes(&x->file, 0, head, sizeof head);
    if (code)
        return code;
    memcpy(&version, head + 9, sizeof version);
    memcpy(&x->nsequence, head + 18, sizeof x->nsequence);
    memcpy(&x->ndocument, head + 26, sizeof x->ndocument);
    if (memcmp(head, "MMIDIDX\0\0", 9) || version != 1)
        return rt_fail(RT_USER, "%s is not an index of Megatron's version 1", path);
    uint64_t size = (uint64_t)x->file.was.st_size, n = x->nsequence, d = x->ndocument;
    uint64_t most = size / 8;
    uint64_t want = n <= most && d <= most ? IDX_HEADER + 12 * n + 8 * d : 0;
    if (want && size == want + n)
        return rt_fail(RT_USER, "%s is of several modalities; only text can be read",
                       path);
    if (size != want)
        return rt_fail(
            RT_USER,
            "%s: its header says %llu sequences and %llu documents, which do "
            "not fit its size of %llu bytes",
            path, (unsigned long long)n, (unsigned long long)d,
            (unsigned long long)size);
    static const struct {
        char kind;
        int size;
    } type[] = {{'u', 1}, {'i', 1}, {'i', 2}, {'i', 4},
                {'i', 8}, {0, 0},   {0, 0},   {'u', 2}};
    int t = head[17] - 1;
    if (t < 0 || t >= 8 || !type[t].size)
        return rt_fail(RT_USER, "%s: tokens of type code %d are not whole numbers",
                       path, head[17]);
    numbers_of(x->l, &x->l->file->source->array[RT_F_IDS], type[t].kind, type[t].size);
    return RT_OK;
}

/* The rows of one sequence: records of first token and number of tokens. */
static int
add_rows(idx *x, int64_t at, int64_t n)
{
    rt_data_file *f = x->l->file;
    int64_t seq = x->l->d->spec.seq;
    int code = RT_OK;
    f->ntoken += n;
    for (int64_t k; n > 0 && !code; at += k, n -= k) {
        k = seq && n > seq ? seq : n;
        int64_t record[2] = {at, k};
        code = rt_store_add(x->l->d->store, record, sizeof record);
        f->n++;
    }
    return code;
}

static int
add_sequence(idx *x, uint64_t i, int32_t length, int64_t pointer)
{
    const rt_array *a = x->ids;
    int64_t size = a->was.st_size;
    if (length < 0 || pointer < 0 || pointer > size || pointer % a->size ||
        length > (size - pointer) / a->size)
        return rt_fail(
            RT_USER,
            "%s: sequence %llu is %d tokens of %d bytes at byte %lld, but %s "
            "has %lld bytes",
            x->file.path, (unsigned long long)i, length, a->size, (long long)pointer,
            a->path, (long long)size);
    return add_rows(x, pointer / a->size, length);
}

static int
add_sequences(idx *x)
{
    int32_t length[BLOCK];
    int64_t pointer[BLOCK];
    int code = RT_OK;
    for (uint64_t i = 0, k; i < x->nsequence && !code; i += k) {
        k = x->nsequence - i < BLOCK ? x->nsequence - i : BLOCK;
        int64_t at = IDX_HEADER + (int64_t)(4 * i);
        code = rt_array_bytes(&x->file, at, length, 4 * k);
        at = IDX_HEADER + (int64_t)(4 * x->nsequence + 8 * i);
        if (!code)
            code = rt_array_bytes(&x->file, at, pointer, 8 * k);
        for (uint64_t e = 0; e < k && !code; e++)
            code = add_sequence(x, i + e, length[e], pointer[e]);
    }
    return code;
}

static int
open_pair(rt_loading *l, idx *x, const char *bin, const char *index)
{
    rt_array *a = &l->file->source->array[RT_F_IDS];
    int code = open_index(x, index);
    if (!code)
        code = rt_array_open(a, bin);
    if (code)
        return code;
    if (a->was.st_size % a->size)
        return rt_fail(RT_USER, "%s has %lld bytes, not whole tokens of %d bytes", bin,
                       (long long)a->was.st_size, a->size);
    a->n = a->was.st_size / a->size;
    x->ids = a;
    l->file->source->first = (int64_t)(l->d->store->index.n / sizeof(uint64_t));
    code = add_sequences(x);
    if (!code && l->file->ntoken != a->n)
        code = rt_fail(RT_USER, "%s has %lld tokens, but the sequences of %s have %lld",
                       bin, (long long)a->n, index, (long long)l->file->ntoken);
    rt_text t = {0};
    rt_putf(&t, "Megatron, %s, %llu sequences", rt_array_type(a),
            (unsigned long long)x->nsequence);
    l->file->format = t.s;
    return code ? code : rt_arrays_check(l);
}

static int
open_megatron(rt_loading *l)
{
    idx x = {.l = l};
    char *bin = with_end(l->file->path, ".bin"), *index = with_end(bin, ".idx");
    int code = open_pair(l, &x, bin, index);
    x.file.size = 1;
    x.file.n = x.file.was.st_size;
    if (!code)
        l->file->hash = rt_array_hash(&x.file, l->file->hash);
    rt_array_close(&x.file);
    free(bin);
    free(index);
    return code;
}

const rt_reader rt_nanogpt_reader = {open_nanogpt, rt_arrays_row};
const rt_reader rt_llmc_reader = {open_llmc, rt_arrays_row};
const rt_reader rt_megatron_reader = {open_megatron, rt_arrays_row};
