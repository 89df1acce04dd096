#include "golden.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

const char *
fmt(const char *f, ...)
{
    static char buf[8][4096];
    static int turn;
    char *s = buf[turn++ % 8];
    va_list ap;
    va_start(ap, f);
    vsnprintf(s, sizeof(buf[0]), f, ap);
    va_end(ap);
    return s;
}

char *
text_read(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *s = malloc((size_t)n + 1);
    size_t got = fread(s, 1, (size_t)n, f);
    fclose(f);
    s[got] = 0;
    return s;
}

cJSON *
json_read(const char *path)
{
    char *s = text_read(path);
    cJSON *j = s ? cJSON_Parse(s) : NULL;
    free(s);
    return j;
}

static bool
tensor_fill(tensor *t, const cJSON *entry, const char *bytes)
{
    const cJSON *range = cJSON_GetObjectItem(entry, "data_offsets");
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "dtype"));
    const cJSON *d;
    t->n = 1;
    cJSON_ArrayForEach(d, cJSON_GetObjectItem(entry, "shape"))
    {
        t->dim[t->rank++] = (int64_t)d->valuedouble;
        t->n *= (int64_t)d->valuedouble;
    }
    const char *at = bytes + (size_t)cJSON_GetArrayItem(range, 0)->valuedouble;
    t->data = malloc(sizeof(double) * (size_t)(t->n ? t->n : 1));
    for (int64_t i = 0; i < t->n; i++) {
        float f;
        int64_t k;
        if (strcmp(dtype, "F32") == 0) {
            memcpy(&f, at + 4 * i, 4);
            t->data[i] = (double)f;
        } else if (strcmp(dtype, "I64") == 0) {
            memcpy(&k, at + 8 * i, 8);
            t->data[i] = (double)k;
        } else {
            return false;
        }
    }
    return true;
}

tensors
tensors_read(const char *path)
{
    tensors ts = {0};
    char *s = text_read(path);
    uint64_t head = 0;
    if (s)
        memcpy(&head, s, 8);
    cJSON *j = s ? cJSON_ParseWithLength(s + 8, head) : NULL;
    ts.at = calloc((size_t)cJSON_GetArraySize(j) + 1, sizeof(tensor));
    const cJSON *entry;
    cJSON_ArrayForEach(entry, j)
    {
        if (strcmp(entry->string, "__metadata__") == 0)
            continue;
        tensor *t = &ts.at[ts.n];
        t->name = strdup(entry->string);
        if (tensor_fill(t, entry, s + 8 + head))
            ts.n++;
    }
    cJSON_Delete(j);
    free(s);
    return ts;
}

const tensor *
tensors_get(const tensors *ts, const char *name)
{
    for (int i = 0; i < ts->n; i++)
        if (strcmp(ts->at[i].name, name) == 0)
            return &ts->at[i];
    return NULL;
}

void
tensors_free(tensors *ts)
{
    for (int i = 0; i < ts->n; i++) {
        free(ts->at[i].name);
        free(ts->at[i].data);
    }
    free(ts->at);
    *ts = (tensors){0};
}

bool
tensors_write(const char *path, const tensor *const *t, const char *const *name, int n)
{
    cJSON *head = cJSON_CreateObject();
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        cJSON *e = cJSON_AddObjectToObject(head, name[i]);
        cJSON_AddStringToObject(e, "dtype", "F32");
        cJSON *shape = cJSON_AddArrayToObject(e, "shape");
        for (int k = 0; k < t[i]->rank; k++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t[i]->dim[k]));
        cJSON *range = cJSON_AddArrayToObject(e, "data_offsets");
        cJSON_AddItemToArray(range, cJSON_CreateNumber((double)at));
        at += 4 * t[i]->n;
        cJSON_AddItemToArray(range, cJSON_CreateNumber((double)at));
    }
    char *text = cJSON_PrintUnformatted(head);
    cJSON_Delete(head);
    FILE *f = fopen(path, "wb");
    if (!f)
        return false;
    uint64_t len = strlen(text);
    fwrite(&len, 8, 1, f);
    fwrite(text, 1, len, f);
    free(text);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < t[i]->n; k++) {
            float x = (float)t[i]->data[k];
            fwrite(&x, 4, 1, f);
        }
    return fclose(f) == 0;
}

static int
ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double
tensor_distance(const tensor *got, const tensor *want, double share)
{
    if (got->n != want->n || want->n == 0)
        return got->n == want->n ? 0 : INFINITY;
    double *d = malloc(sizeof(double) * (size_t)want->n);
    for (int64_t i = 0; i < want->n; i++) {
        d[i] = fabs(got->data[i] - want->data[i]);
        if (isnan(d[i]))
            d[i] = INFINITY;
    }
    qsort(d, (size_t)want->n, sizeof(double), ascending);
    double r = d[(int64_t)ceil(share * (double)want->n) - 1];
    free(d);
    return r;
}

double
tensor_max(const tensor *t)
{
    double m = 0;
    for (int64_t i = 0; i < t->n; i++)
        m = fmax(m, fabs(t->data[i]));
    return m;
}

/* A number of a row; what is no number (not supervised) is null. */
static void
number_write(FILE *f, double x)
{
    if (isnan(x))
        fputs("null", f);
    else
        fprintf(f, "%.9g", x);
}

/* One row i of every tensor of the batch, as a JSON object on a line. */
static void
row_write(FILE *f, const tensors *golden, const char *prefix, int64_t i)
{
    const char *sep = "{";
    for (int k = 0; k < golden->n; k++) {
        const tensor *t = &golden->at[k];
        if (strncmp(t->name, prefix, strlen(prefix)) != 0)
            continue;
        int64_t len = t->n / t->dim[0];
        fprintf(f, "%s\"%s\": %s", sep, t->name + strlen(prefix),
                t->rank > 1 ? "[" : "");
        for (int64_t c = 0; c < len; c++) {
            fputs(c ? ", " : "", f);
            number_write(f, t->data[i * len + c]);
        }
        fputs(t->rank > 1 ? "]" : "", f);
        sep = ", ";
    }
    fputs("}\n", f);
}

bool
batches_write(const char *path, const tensors *golden, const int *order, int n)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    for (int k = 0; k < n; k++) {
        const char *prefix = fmt("batch%d.", order[k]);
        const tensor *ids = tensors_get(golden, fmt("batch%d.input_ids", order[k]));
        for (int64_t i = 0; ids && i < ids->dim[0]; i++)
            row_write(f, golden, prefix, i);
    }
    return fclose(f) == 0;
}

int
run(const char *log, const char *f, ...)
{
    char cmd[8192], line[8192 + 512];
    va_list ap;
    va_start(ap, f);
    vsnprintf(cmd, sizeof(cmd), f, ap);
    va_end(ap);
    snprintf(line, sizeof(line), "%s >%s 2>&1 </dev/null", cmd, log);
    int rc = system(line);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : 128 + WTERMSIG(rc);
}

const char *
fresh_dir(const char *name)
{
    const char *apart = getenv("EFFICC_TEST_RUN"); /* of runs beside each other */
    const char *dir = fmt("%s/tests/tmp%s/%s", BIN_DIR, apart ? apart : "", name);
    if (run("/dev/null", "rm -rf '%s' && mkdir -p '%s'", dir, dir) != 0)
        abort();
    return dir;
}
