/* weights.c -- the flat buffers of the program and their first contents.
 *
 * All memory of the program on its device is one allocation: class by class (weights,
 * gradients, optimizer state, ..) the buffers of all units, then the arena, the inputs and what
 * the device's part wants; run->base[class][unit] points into it. base.safetensors is read
 * straight to its place, or through small pieces where the host can't address it, so no tensor
 * is in memory twice; in the order of the file, so that its hash is known when all is read.
 */
#include "host_int.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const char *
rt_precision(const rt_program *p)
{
    return p->compute == RT_BF16 ? "bf16" : p->compute == RT_F16 ? "fp16" : "fp32";
}

int64_t
rt_aligned(const rt_program *p, int64_t bytes)
{
    return (bytes + p->align - 1) / p->align * p->align;
}

int64_t
rt_class_bytes(const rt_program *p, rt_class c)
{
    int64_t bytes = 0;
    for (int u = 0; u < p->nunit; u++)
        bytes += rt_aligned(p, p->unit_bytes[u][c]);
    return bytes;
}

int64_t
rt_memory_bytes(const rt_program *p, unsigned classes)
{
    int64_t bytes = rt_aligned(p, p->arena_bytes) + rt_inputs_bytes(p);
    for (int c = 0; c < RT_NCLASSES; c++)
        bytes += classes >> c & 1 ? rt_class_bytes(p, (rt_class)c) : 0;
    return bytes + rt_aligned(p, rt_device_bytes(p));
}

/* ---- memory ---- */

typedef struct buffer { /* a part of the memory, for the message that it does not fit */
    const char *what, *unit;
    int64_t bytes;
} buffer;

static int
by_size(const void *a, const void *b)
{
    int64_t x = ((const buffer *)a)->bytes, y = ((const buffer *)b)->bytes;
    return (x < y) - (x > y);
}

/* "activations 3.0 GB, gradients of h.0 1.0 GB, .." */
static void
put_largest(rt_text *t, const rt_program *p, unsigned classes)
{
    static const char *const what[RT_NCLASSES] = {
        [RT_TRAIN] = "trained weights",         [RT_GRAD] = "gradients",
        [RT_STATE_M] = "optimizer's averages",  [RT_STATE_V] = "optimizer's squares",
        [RT_FROZEN] = "frozen weights",         [RT_CONST] = "constants",
        [RT_IMAGE] = "weights to compute with", [RT_SCALER] = "loss scaler"};
    enum { SHOWN = 4 };
    buffer *b = rt_new((size_t)p->nunit * RT_NCLASSES + 2, sizeof *b);
    int n = 0;
    b[n++] = (buffer){"activations", NULL, p->arena_bytes};
    b[n++] = (buffer){"inputs", NULL, rt_inputs_bytes(p)};
    for (int c = 0; c < RT_NCLASSES; c++)
        for (int u = 0; u < p->nunit && classes >> c & 1; u++)
            b[n++] = (buffer){what[c], p->unit[u], p->unit_bytes[u][c]};
    qsort(b, (size_t)n, sizeof *b, by_size);
    for (int i = 0; i < n && i < SHOWN && b[i].bytes; i++)
        rt_putf(t, "%s%s%s%s %s", i ? ", " : "", b[i].what, b[i].unit ? " of " : "",
                b[i].unit ? b[i].unit : "", rt_bytes_text((double)b[i].bytes));
    free(b);
}

static int
no_memory(const rt_program *p, unsigned classes, int64_t bytes, int64_t free_bytes)
{
    rt_text largest = {0};
    if (!rt_unified)
        put_largest(&largest, p, classes);
    int code = rt_fail(
        RT_USER,
        "needs %s of %smemory, but %s are free%s%s\ncompile with a smaller --batch "
        "or --seq, or with --lora-r",
        rt_bytes_text((double)bytes), rt_unified ? "" : "device ",
        rt_bytes_text((double)free_bytes), largest.n ? "\nthe largest are: " : "",
        largest.n ? largest.s : "");
    free(largest.s);
    return code;
}

/* The optimizer walks parameter, gradient and moments of a unit side by side. */
static bool
same_layouts(const rt_program *p)
{
    for (int u = 0; u < p->nunit; u++) {
        const int64_t *b = p->unit_bytes[u];
        if (b[RT_TRAIN] != b[RT_GRAD] || b[RT_TRAIN] != b[RT_STATE_M] ||
            b[RT_TRAIN] != b[RT_STATE_V])
            return false;
    }
    return true;
}

int
rt_weights_new(rt_run *run, unsigned classes)
{
    const rt_program *p = run->program;
    if (!same_layouts(p))
        return rt_fail(RT_BUG, "gradient buffers differ from parameters");
    int64_t bytes = rt_memory_bytes(p, classes);
    int64_t free_bytes = rt_unified ? rt_free_memory() : rt_free_bytes();
    bool fits = !free_bytes || bytes <= free_bytes;
    char *at = fits ? rt_alloc((size_t)bytes) : NULL;
    if (!at)
        return no_memory(p, classes, bytes, free_bytes);
    for (int c = 0; c < RT_NCLASSES; c++) {
        run->base[c] = rt_new((size_t)p->nunit, sizeof(char *));
        for (int u = 0; u < p->nunit && classes >> c & 1; u++) {
            run->base[c][u] = at;
            at += rt_aligned(p, p->unit_bytes[u][c]);
        }
    }
    run->arena = at;
    at += rt_aligned(p, p->arena_bytes);
    run->device = at + rt_inputs_bytes(p);
    return rt_inputs_new(run, at);
}

void
rt_weights_free(rt_run *run)
{
    for (int c = 0; c < RT_NCLASSES; c++)
        free(run->base[c]);
    rt_inputs_free(run);
}

static void *
place(const rt_run *run, const rt_param *p, rt_class c)
{
    char *base = run->base[c] ? run->base[c][p->unit] : NULL;
    return base ? base + p->offset : NULL;
}

uint64_t
rt_param_bytes(const rt_param *p)
{
    static const uint64_t size[] = {
        [RT_F32] = 4, [RT_I64] = 8, [RT_BOOL] = 1, [RT_F16] = 2, [RT_BF16] = 2};
    return (uint64_t)p->n * size[p->dtype];
}

void *
rt_param_data(const rt_run *run, const rt_param *p)
{
    return place(run, p, p->cls);
}

float *
rt_param_grad(const rt_run *run, const rt_param *p)
{
    return place(run, p, RT_GRAD);
}

float *
rt_param_state(const rt_run *run, const rt_param *p, rt_class c)
{
    return place(run, p, c);
}

/* ---- base.safetensors ---- */

typedef struct stored { /* a tensor of the file, and whose it is */
    const rt_param *param;
    const rt_st_tensor *tensor;
} stored;

static int
find_param(const rt_st *st, const rt_param *p, stored *s)
{
    static const char *const dtype[] = {[RT_F32] = "F32",
                                        [RT_I64] = "I64",
                                        [RT_BOOL] = "BOOL",
                                        [RT_F16] = "F16",
                                        [RT_BF16] = "BF16"};
    const rt_st_tensor *t = rt_st_find(st, p->name);
    *s = (stored){p, t};
    if (!t)
        return rt_fail(RT_USER,
                       "%s does not hold '%s'\nit belongs to another trainer; "
                       "compile again",
                       st->path, p->name);
    if (strcmp(t->dtype, dtype[p->dtype]) || t->bytes != rt_param_bytes(p))
        return rt_fail(RT_USER,
                       "%s: '%s' has another type or size than the trainer was "
                       "compiled for\ncompile again",
                       st->path, p->name);
    return RT_OK;
}

static int
by_place(const void *a, const void *b)
{
    uint64_t x = ((const stored *)a)->tensor->at, y = ((const stored *)b)->tensor->at;
    return (x > y) - (x < y);
}

/* Does the file say that its data have this hash? */
static int
check_hash(const rt_st *st, uint64_t hash)
{
    char here[17];
    cJSON *meta = st->meta ? cJSON_Parse(st->meta) : NULL;
    const char *there =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, RT_BASE_HASH));
    snprintf(here, sizeof here, "%016" PRIx64, hash);
    int code = RT_OK;
    if (!there)
        code =
            rt_fail(RT_USER,
                    "%s is not as efficc wrote it: it lacks its hash\ncompile again; "
                    "other weights go into a trainer by --init-tensors",
                    st->path);
    else if (strcmp(there, here))
        code = rt_fail(RT_USER,
                       "%s is damaged: the hash of its data is %s instead of "
                       "%.16s\ncopy it again, or compile again",
                       st->path, here, there);
    cJSON_Delete(meta);
    return code;
}

/* All n tensors, in the order of the file. */
static int
read_stored(const rt_run *run, const rt_st *st, stored *s, int n)
{
    XXH3_state_t *hash = rt_hash_new();
    int code = RT_OK;
    qsort(s, (size_t)n, sizeof *s, by_place);
    for (int i = 0; i < n && !code; i++) {
        void *to = rt_param_data(run, s[i].param);
        code = rt_st_load(run, st, s[i].tensor, to, hash);
    }
    if (!code)
        code = check_hash(st, XXH3_64bits_digest(hash));
    XXH3_freeState(hash);
    return code;
}

static int
load_file(const rt_run *run, const char *path)
{
    const rt_program *p = run->program;
    stored *s = rt_new((size_t)p->nparam + 1, sizeof *s);
    rt_st st;
    int n = 0, code = rt_st_open(&st, path);
    for (int i = 0; i < p->nparam && !code; i++)
        if (p->param[i].init == RT_INIT_FILE)
            code = find_param(&st, &p->param[i], &s[n++]);
    if (!code && n != st.n)
        code = rt_fail(RT_USER,
                       "%s holds %d tensors instead of %d\nit belongs to another "
                       "trainer; compile again",
                       path, st.n, n);
    if (!code)
        code = read_stored(run, &st, s, n);
    rt_st_close(&st);
    free(s);
    return code;
}

void
rt_images_fill(const rt_run *run)
{
    const rt_program *p = run->program;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *owner = &p->param[i];
        if (owner->image < 0)
            continue;
        char *image = run->base[RT_IMAGE][owner->unit] + owner->image;
        rt_convert(run->compute, image, owner->image_dtype, rt_param_data(run, owner),
                   owner->dtype, owner->n);
    }
}

/* Does the param hold what the file says? */
static bool
is_as_stored(const rt_run *run, const rt_st *st, const rt_param *p)
{
    enum { PART = 1 << 20 };
    const rt_st_tensor *t = rt_st_find(st, p->name);
    bool same = t && t->bytes == rt_param_bytes(p);
    const char *there = rt_param_data(run, p);
    char *part = rt_new(PART, 1);
    for (uint64_t at = 0; same && at < t->bytes; at += PART) {
        uint64_t n = t->bytes - at < PART ? t->bytes - at : PART;
        const char *here = rt_look(run, there + at, (int64_t)n);
        same = !rt_st_read(st, t, at, part, n) && !memcmp(part, here, n);
        rt_looked(here);
    }
    free(part);
    return same;
}

bool
rt_source_hash(const rt_run *run, const char *dir, const rt_param *const *w, int n,
               char hex[17])
{
    rt_st st;
    char *path = rt_path(dir, "base.safetensors");
    bool same = !rt_st_open(&st, path);
    cJSON *meta = same && st.meta ? cJSON_Parse(st.meta) : NULL;
    const char *hash =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, RT_SOURCE_HASH));
    same = same && hash && strlen(hash) == 16;
    for (int i = 0; i < n && same; i++)
        same = is_as_stored(run, &st, w[i]);
    if (same)
        memcpy(hex, hash, 17);
    cJSON_Delete(meta);
    rt_st_close(&st);
    free(path);
    return same;
}

int
rt_weights_load(rt_run *run, const char *dir, uint64_t seed)
{
    const rt_program *p = run->program;
    char *path = rt_path(dir, "base.safetensors");
    int code = rt_beside(path);
    if (!code)
        code = load_file(run, path);
    for (int i = 0; i < p->nparam && !code; i++) {
        const rt_param *param = &p->param[i];
        int64_t bytes = (int64_t)rt_param_bytes(param);
        if (param->init == RT_INIT_FILE)
            continue;
        float *x = rt_edit(run, rt_param_data(run, param), bytes);
        rt_init_fill(param, seed, x);
        rt_edited(run, rt_param_data(run, param), x, bytes);
    }
    free(path);
    return code;
}
