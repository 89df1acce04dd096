/* checkpoint_manifest.c -- the text of manifest.json.
 *
 * Numbers of type double are strings that strtod() reads back bit by bit: 17 digits, "inf",
 * or a NaN with its payload. The last line holds the hash of all text before it, so that
 * a changed byte anywhere is noticed. Reading trusts nothing: what comes out of here has
 * whole numbers of at least 0, file names without a '/', and every entry once.
 */
#include "checkpoint_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define LAST_LINE "\"xxh3\": \"%016" PRIx64 "\"}\n"
enum { LAST_BYTES = sizeof "\"xxh3\": \"0123456789abcdef\"}\n" - 1 };
enum { MAX_MANIFEST = 16 << 20 };

static const char *const same_key[] = {
#define SAME(key, whose, text, advice) #key,
#include "checkpoint.def"
#undef SAME
};

/* ---- writing ---- */

static void
put_int64_t(rt_text *t, const char *key, int64_t value)
{
    rt_putf(t, "\"%s\": %" PRId64 ", ", key, value);
}

static void
put_number(rt_text *t, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        rt_putf(t, "\"%snan(0x%" PRIx64 ")\"", bits >> 63 ? "-" : "",
                bits & 0xfffffffffffff);
    else
        rt_putf(t, "\"%.17g\"", value);
}

static void
put_double(rt_text *t, const char *key, double value)
{
    rt_putf(t, "\"%s\": ", key);
    put_number(t, value);
    rt_putf(t, ", ");
}

static void
put_state(rt_text *t, const rt_train_state *s)
{
    rt_putf(t, "\"state\": {");
#define STATE(field, type, text) put_##type(t, #field, s->field);
#include "state.def"
#undef STATE
    rt_putf(t, "\"norm\": [");
    for (int i = 0; i < RT_NORMS; i++) {
        rt_putf(t, "%s", i ? ", " : "");
        put_number(t, s->norm[i]);
    }
    rt_putf(t, "]},\n");
}

static void
put_string(rt_text *t, const char *key, const char *value, const char *end)
{
    rt_putf(t, "\"%s\": ", key);
    rt_put_json(t, value);
    rt_putf(t, "%s", end);
}

char *
rt_manifest_text(const rt_manifest *m)
{
    rt_text t = {0};
    rt_putf(&t, "{\"format\": %d,\n", RT_FORMAT);
    put_string(&t, "efficc", m->efficc, ",\n");
    put_string(&t, "program", m->program, ",\n");
    rt_putf(&t, "\"same\": {");
    for (int i = 0; i < RT_NSAME; i++)
        put_string(&t, same_key[i], m->same[i], i + 1 < RT_NSAME ? ",\n" : "},\n");
    rt_putf(&t, "\"options\": %s,\n", m->options);
    put_state(&t, &m->state);
    rt_putf(&t, "\"files\": [");
    for (int i = 0; i < m->npiece; i++) {
        rt_putf(&t, "%s{", i ? ",\n" : "");
        put_string(&t, "name", m->piece[i].name, ", ");
        rt_putf(&t, "\"bytes\": %" PRId64 ", \"xxh3\": \"%016" PRIx64 "\"}",
                m->piece[i].bytes, m->piece[i].hash);
    }
    rt_putf(&t, "],\n");
    rt_putf(&t, LAST_LINE, (uint64_t)XXH3_64bits(t.s, t.n));
    return t.s;
}

/* ---- reading ---- */

typedef struct reader {
    rt_manifest *m;
    char *why; /* empty as long as nothing is wrong */
} reader;

static void
wrong(reader *r, const char *key, const char *what)
{
    if (!*r->why)
        snprintf(r->why, RT_WHY, "%s: '%s' %s", RT_MANIFEST, key, what);
}

static const cJSON *
get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static char *
get_string(reader *r, const cJSON *object, const char *key)
{
    const char *s = cJSON_GetStringValue(get(object, key));
    if (!s)
        wrong(r, key, "is not there");
    return strdup(s ? s : "");
}

static int64_t
get_int64_t(reader *r, const cJSON *object, const char *key)
{
    const cJSON *item = get(object, key);
    double d = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (d >= 0 && d <= 0x1p53 && d == floor(d))
        return (int64_t)d;
    wrong(r, key, "is not a whole number");
    return 0;
}

static double
read_number(reader *r, const cJSON *item, const char *key)
{
    const char *s = cJSON_GetStringValue(item);
    char *end = NULL;
    double d = s ? strtod(s, &end) : 0;
    if (!s || end == s || *end)
        wrong(r, key, "is not a number in quotes");
    return d;
}

static double
get_double(reader *r, const cJSON *object, const char *key)
{
    return read_number(r, get(object, key), key);
}

static uint64_t
get_hash(reader *r, const cJSON *object)
{
    const char *s = cJSON_GetStringValue(get(object, "xxh3"));
    if (s && strlen(s) == 16 && strspn(s, "0123456789abcdef") == 16)
        return strtoull(s, NULL, 16);
    wrong(r, "xxh3", "is not a hash");
    return 0;
}

static void
read_state(reader *r, const cJSON *object)
{
    rt_train_state *s = &r->m->state;
#define STATE(field, type, text) s->field = get_##type(r, object, #field);
#include "state.def"
#undef STATE
    const cJSON *norm = get(object, "norm"), *item;
    int n = 0;
    if (cJSON_GetArraySize(norm) != RT_NORMS)
        wrong(r, "norm", "has another length");
    else
        cJSON_ArrayForEach(item, norm) s->norm[n++] = read_number(r, item, "norm");
    if (s->step < 1)
        wrong(r, "step", "is 0");
    if (s->nnorm_logged > s->nnorm)
        wrong(r, "nnorm_logged", "is more than nnorm");
}

static void
read_piece(reader *r, const cJSON *item)
{
    rt_manifest *m = r->m;
    char *name = get_string(r, item, "name");
    bool plain = *name && strlen(name) < sizeof m->piece->name && name[0] != '.' &&
                 !strchr(name, '/') && strcmp(name, RT_MANIFEST);
    for (int i = 0; i < m->npiece; i++)
        plain &= strcmp(name, m->piece[i].name) != 0;
    if (!plain || m->npiece == RT_PIECES) {
        wrong(r, "files", "has an entry that can't be");
        free(name);
        return;
    }
    rt_piece *p = &m->piece[m->npiece++];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->bytes = get_int64_t(r, item, "bytes");
    p->hash = get_hash(r, item);
    free(name);
}

static void
read_manifest(reader *r, const cJSON *json)
{
    rt_manifest *m = r->m;
    int64_t format = get_int64_t(r, json, "format");
    if (format != RT_FORMAT)
        wrong(r, "format",
              format > RT_FORMAT ? "is of a newer efficc" : "is of an older efficc");
    m->efficc = get_string(r, json, "efficc");
    m->program = get_string(r, json, "program");
    for (int i = 0; i < RT_NSAME; i++)
        m->same[i] = get_string(r, get(json, "same"), same_key[i]);
    const cJSON *options = get(json, "options"), *item;
    if (!cJSON_IsObject(options))
        wrong(r, "options", "is not there");
    m->options = cJSON_PrintUnformatted(options);
    read_state(r, get(json, "state"));
    cJSON_ArrayForEach(item, get(json, "files")) read_piece(r, item);
    if (!m->npiece)
        wrong(r, "files", "is not there");
}

/* Does the last line hold the hash of what stands before it? */
static bool
is_whole(const char *text, size_t n)
{
    char last[LAST_BYTES + 1];
    if (n < LAST_BYTES)
        return false;
    n -= LAST_BYTES;
    snprintf(last, sizeof last, LAST_LINE, (uint64_t)XXH3_64bits(text, n));
    return !memcmp(text + n, last, LAST_BYTES);
}

rt_manifest *
rt_manifest_parse(const char *text, size_t n, char why[RT_WHY])
{
    reader r = {.m = rt_new(1, sizeof *r.m), .why = why};
    cJSON *json = n <= MAX_MANIFEST ? cJSON_ParseWithLength(text, n) : NULL;
    *why = 0;
    if (!cJSON_IsObject(json))
        snprintf(why, RT_WHY, "%s is not JSON", RT_MANIFEST);
    else
        read_manifest(&r, json);
    cJSON_Delete(json);
    if (!*why && !is_whole(text, n))
        snprintf(why, RT_WHY, "%s is damaged: its hash does not fit", RT_MANIFEST);
    if (!*why)
        return r.m;
    rt_manifest_free(r.m);
    return NULL;
}

void
rt_manifest_free(rt_manifest *m)
{
    if (!m)
        return;
    for (int i = 0; i < RT_NSAME; i++)
        free(m->same[i]);
    free(m->efficc);
    free(m->program);
    free(m->options);
    free(m);
}
