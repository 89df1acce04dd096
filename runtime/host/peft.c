/* peft.c -- adapter_model.safetensors, read.
 *
 * PEFT saves base_model.model.PATH.lora_A.weight. Other programs leave the prefix out, or
 * save a state_dict, in which the adapter's name stands behind lora_A (.default) and
 * modules_to_save. before what is saved whole. Keys are taken apart here, once.
 */
#include "peft.h"
#include "host_int.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- keys ---- */

typedef enum what { WHOLE, LORA_A, LORA_B, TABLE_A, TABLE_B, OTHER } what;

/* One part of a path: up to '.' or the end. */
static const char *
after_part(const char *s)
{
    s += strcspn(s, ".");
    return *s == '.' ? s + 1 : s;
}

/* What the key's rest behind the module, "lora_A.default.weight", is. */
static what
what_of(const char *rest)
{
    static const struct {
        const char *name;
        what what;
    } rows[] = {{"lora_A", LORA_A},
                {"lora_B", LORA_B},
                {"lora_embedding_A", TABLE_A},
                {"lora_embedding_B", TABLE_B}};
    size_t n = strcspn(rest, ".");
    const char *tail = after_part(rest);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool table = rows[i].what >= TABLE_A;
        if (strlen(rows[i].name) != n || strncmp(rest, rows[i].name, n))
            continue;
        if (table) /* ends here, or with the adapter's name */
            return *after_part(tail) ? OTHER : rows[i].what;
        if (strcmp(tail, "weight"))
            tail = after_part(tail);
        return strcmp(tail, "weight") ? OTHER : rows[i].what;
    }
    return OTHER;
}

/* Takes a key apart: *path is the module's, or the parameter's that is saved whole; free it. */
static what
take_apart(const char *key, char **path)
{
    static const char prefix[] = "base_model.model.", saved[] = ".modules_to_save.";
    while (!strncmp(key, prefix, sizeof prefix - 1))
        key += sizeof prefix - 1;
    const char *lora = NULL, *whole = strstr(key, saved);
    for (const char *s = key; (s = strstr(s, ".lora_")); s++)
        lora = s;
    if (lora) {
        *path = strndup(key, (size_t)(lora - key));
        return what_of(lora + 1);
    }
    rt_text t = {0};
    if (whole)
        rt_putf(&t, "%.*s.%s", (int)(whole - key), key,
                after_part(whole + sizeof saved - 1));
    else
        rt_putf(&t, "%s", key);
    *path = t.s;
    return WHOLE;
}

/* ---- pairs ---- */

static int
twice(const rt_peft *p, const char *module)
{
    return rt_fail(RT_USER,
                   "%s: two tensors are the same one of %s\nsave one adapter alone",
                   p->st.path, module);
}

/* The pair of a module, made at the first of its tensors. Takes the path. */
static rt_peft_pair *
pair_of(rt_peft *p, char *module)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->pair[i].module, module)) {
            free(module);
            return &p->pair[i];
        }
    p->pair[p->n].module = module;
    return &p->pair[p->n++];
}

static int
add_tensor(rt_peft *p, const rt_st_tensor *t)
{
    char *path;
    what w = take_apart(t->name, &path);
    if (w == WHOLE) {
        for (int i = 0; i < p->nwhole; i++)
            if (!strcmp(p->whole[i].name, path)) {
                int code = twice(p, p->whole[i].name);
                free(path);
                return code;
            }
        p->whole[p->nwhole++] = (rt_peft_whole){path, t};
        return RT_OK;
    }
    if (w == OTHER) {
        free(path);
        return rt_fail(RT_USER,
                       "%s: tensor '%s' belongs to a kind of adapter that is "
                       "not supported",
                       p->st.path, t->name);
    }
    rt_peft_pair *pair = pair_of(p, path);
    const rt_st_tensor **at = w == LORA_A || w == TABLE_A ? &pair->a : &pair->b;
    bool mixed = (pair->a || pair->b) && pair->embedding != (w >= TABLE_A);
    if (*at || mixed)
        return twice(p, pair->module);
    *at = t;
    pair->embedding = w >= TABLE_A;
    return RT_OK;
}

/* Rank and scale, and whether the tensors have them. */
static int
check_pair(const rt_peft *p, rt_peft_pair *pair)
{
    const rt_st_tensor *a = pair->a, *b = pair->b;
    if (!a || !b)
        return rt_fail(RT_USER, "%s: lora_%s of %s is missing", p->st.path,
                       a ? "B" : "A", pair->module);
    int code = rt_peft_scale(&p->config, pair->module, &pair->rank, &pair->scale);
    if (code)
        return code;
    if (a->rank != 2 || b->rank != 2)
        return rt_fail(RT_USER,
                       "%s: the adapter of %s is no matrix: only linear layers "
                       "and embeddings are supported",
                       p->st.path, pair->module);
    if (a->dim[0] != pair->rank || b->dim[1] != pair->rank)
        return rt_fail(RT_USER,
                       "%s: the adapter of %s is [%" PRId64 ",%" PRId64
                       "] and [%" PRId64 ",%" PRId64
                       "], but adapter_config.json says rank %" PRId64,
                       p->st.path, pair->module, a->dim[0], a->dim[1], b->dim[0],
                       b->dim[1], pair->rank);
    code = rt_st_check_f32(&p->st, a);
    return code ? code : rt_st_check_f32(&p->st, b);
}

static int
by_module(const void *a, const void *b)
{
    return strcmp(((const rt_peft_pair *)a)->module, ((const rt_peft_pair *)b)->module);
}

/* ---- the whole ---- */

/* Its file; older PEFT pickled it, which only Python reads. */
static int
open_tensors(rt_peft *p, const char *dir)
{
    char *path = rt_path(dir, "adapter_model.safetensors"),
         *old = rt_path(dir, "adapter_model.bin");
    int code;
    if (access(path, F_OK) && !access(old, F_OK))
        code = rt_fail(RT_USER,
                       "%s is pickled, which only Python can read\nconvert it: load "
                       "the adapter with PEFT, then save_pretrained(DIR)",
                       old);
    else
        code = rt_st_open(&p->st, path);
    free(path);
    free(old);
    return code;
}

static void
take_base(rt_peft *p)
{
    cJSON *meta = p->st.meta ? cJSON_Parse(p->st.meta) : NULL;
    const char *base =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, "efficc.base"));
    p->base = base ? strdup(base) : NULL;
    cJSON_Delete(meta);
}

int
rt_peft_open(rt_peft *p, const char *dir)
{
    *p = (rt_peft){.st = {.fd = -1}};
    int code = rt_peft_config_open(&p->config, dir);
    if (!code)
        code = open_tensors(p, dir);
    if (code)
        return code;
    p->pair = rt_new((size_t)p->st.n + 1, sizeof *p->pair);
    p->whole = rt_new((size_t)p->st.n + 1, sizeof *p->whole);
    for (int i = 0; i < p->st.n && !code; i++)
        code = add_tensor(p, &p->st.tensor[i]);
    for (int i = 0; i < p->n && !code; i++)
        code = check_pair(p, &p->pair[i]);
    qsort(p->pair, (size_t)p->n, sizeof *p->pair, by_module);
    take_base(p);
    return code;
}

void
rt_peft_close(rt_peft *p)
{
    for (int i = 0; i < p->n; i++)
        free((char *)p->pair[i].module);
    for (int i = 0; i < p->nwhole; i++)
        free((char *)p->whole[i].name);
    free(p->pair);
    free(p->whole);
    free(p->base);
    rt_peft_config_close(&p->config);
    rt_st_close(&p->st);
    *p = (rt_peft){.st = {.fd = -1}};
}

const rt_peft_pair *
rt_peft_find(const rt_peft *p, const char *module)
{
    rt_peft_pair key = {.module = module};
    return p->n ? bsearch(&key, p->pair, (size_t)p->n, sizeof *p->pair, by_module)
                : NULL;
}

/* ---- the base of an adapter ---- */

void
rt_base_hash_begin(rt_base_hash *h)
{
    h->state = XXH3_createState();
    if (!h->state)
        exit(rt_fail(RT_USER, "out of memory"));
    XXH3_64bits_reset(h->state);
}

void
rt_base_hash_add(rt_base_hash *h, const char *module, const float *w, int64_t rows,
                 int64_t cols, bool transposed)
{
    enum { COLS = 16 };
    XXH3_64bits_update(h->state, module, strlen(module) + 1);
    if (!transposed) {
        XXH3_64bits_update(h->state, w, (size_t)(rows * cols) * sizeof *w);
        return;
    }
    float *part = rt_new((size_t)(COLS * rows), sizeof *part);
    for (int64_t c = 0; c < cols; c += COLS) {
        int64_t n = cols - c < COLS ? cols - c : COLS;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < n; k++)
                part[k * rows + r] = w[r * cols + c + k];
        XXH3_64bits_update(h->state, part, (size_t)(n * rows) * sizeof *part);
    }
    free(part);
}

void
rt_base_hash_end(rt_base_hash *h, char hex[17])
{
    snprintf(hex, 17, "%016" PRIx64, (uint64_t)XXH3_64bits_digest(h->state));
    XXH3_freeState(h->state);
}
