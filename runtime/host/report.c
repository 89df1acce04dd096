/* report.c -- report.html: the page of report.html beside this file, with the run's data in
 * it as one JSON object.
 *
 * The data are the curves of log.jsonl (one for each key whose values are numbers), its last
 * row, which tells why the run ended, the options, and what plan.json says of memory,
 * adapters and trained parameters. The script of the page draws them. Its size is bounded:
 * curves are thinned out, long lists are cut and say so.
 */
#include "curve.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const char rt_report_page[]; /* made from report.html by embed.cmake */

enum { MAX_CURVES = 24, MAX_LISTED = 400, MAX_PLAN = 256 << 20, UPDATE_SHARE = 50 };

typedef struct report {
    rt_curve curve[MAX_CURVES];
    int ncurve;
    int64_t rows;   /* that have a step */
    double step;    /* of the last of them */
    cJSON *ending;  /* the row without a step, or NULL */
    cJSON *options; /* NULL: none */
    cJSON *plan;    /* NULL: none */
} report;

/* ---- the log ---- */

static rt_curve *
curve_of(report *r, const char *key)
{
    for (int i = 0; i < r->ncurve; i++)
        if (!strcmp(r->curve[i].key, key))
            return &r->curve[i];
    if (r->ncurve == MAX_CURVES)
        return NULL;
    r->curve[r->ncurve] = rt_curve_of(key);
    return &r->curve[r->ncurve++];
}

/* Takes over row. */
static void
add_row(report *r, cJSON *row)
{
    cJSON *step = cJSON_GetObjectItemCaseSensitive(row, "step"), *item;
    if (!cJSON_IsNumber(step)) {
        cJSON_Delete(r->ending);
        r->ending = row;
        return;
    }
    cJSON_ArrayForEach(item, row)
    {
        bool number = cJSON_IsNumber(item) || cJSON_IsNull(item);
        rt_curve *c = number && item != step ? curve_of(r, item->string) : NULL;
        if (c)
            rt_curve_add(c, step->valuedouble,
                         cJSON_IsNull(item) ? (double)NAN : item->valuedouble);
    }
    r->rows++;
    r->step = step->valuedouble;
    cJSON_Delete(row);
}

/* Lines that are no rows are passed over. */
static bool
read_log(report *r, const char *dir)
{
    char *path = rt_path(dir, "log.jsonl"), *line = NULL;
    size_t cap = 0;
    ssize_t n;
    FILE *f = fopen(path, "r");
    if (!f)
        rt_warn("%s: %s; there is no report.html", path, strerror(errno));
    while (f && (n = getline(&line, &cap, f)) > 0) {
        cJSON *row = cJSON_ParseWithLength(line, (size_t)n);
        if (cJSON_IsObject(row))
            add_row(r, row);
        else
            cJSON_Delete(row);
    }
    if (f)
        fclose(f);
    free(line);
    free(path);
    return f != NULL;
}

/* ---- JSON ---- */

/* JSON between <script> tags: "<" can only stand in strings, and must not end the script. */
static void
put_safely(rt_text *t, const char *json)
{
    for (const char *less; (less = strchr(json, '<')); json = less + 1)
        rt_putf(t, "%.*s\\u003c", (int)(less - json), json);
    rt_putf(t, "%s", json);
}

static void
put_item(rt_text *t, const char *name, const cJSON *item)
{
    char *text = item ? cJSON_PrintUnformatted(item) : NULL;
    rt_putf(t, ",\n\"%s\": ", name);
    put_safely(t, text ? text : "null");
    free(text);
}

static double
elements(const cJSON *param)
{
    double n = 1;
    cJSON *dim;
    cJSON_ArrayForEach(dim, cJSON_GetObjectItemCaseSensitive(param, "shape"))
    {
        n *= dim->valuedouble;
    }
    return n;
}

static bool
is_class(const cJSON *param, const char *cls)
{
    cJSON *c = cJSON_GetObjectItemCaseSensitive(param, "class");
    return cJSON_IsString(c) && !strcmp(c->valuestring, cls);
}

/* The trained ones, with as much of them as the page shows. */
static void
put_parameters(rt_text *t, const cJSON *list)
{
    double trained = 0, all = 0;
    int n = 0;
    const cJSON *p;
    rt_putf(t, ",\n\"trained\": [");
    cJSON_ArrayForEach(p, list)
    {
        all += is_class(p, "constant") ? 0 : elements(p);
        if (!is_class(p, "trained"))
            continue;
        trained += elements(p);
        if (++n > MAX_LISTED)
            continue;
        rt_putf(t, n > 1 ? ",\n{" : "\n{");
        rt_putf(t, "\"elements\": %.0f", elements(p));
        static const char *const key[] = {"name", "pytorch", "shape", "unit"};
        for (int i = 0; i < 4; i++)
            put_item(t, key[i], cJSON_GetObjectItemCaseSensitive(p, key[i]));
        rt_putf(t, "}");
    }
    rt_putf(t, "],\n\"count\": {\"tensors\": %d, \"trained\": %.0f, \"all\": %.0f}", n,
            trained, all);
}

/* Cuts a list of plan.json; how many it had is put beside it. */
static void
limit_list(cJSON *o, const char *name)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(o, name);
    int n = cJSON_GetArraySize(list);
    if (cJSON_IsObject(o))
        cJSON_AddNumberToObject(o, "count", n);
    for (; n > MAX_LISTED; n--)
        cJSON_DeleteItemFromArray(list, n - 1);
}

static void
put_plan(rt_text *t, cJSON *plan)
{
    static const char *const key[] = {"efficc", "command", "threads", "schedule_hash",
                                      "facts",  "memory",  "lora"};
    limit_list(cJSON_GetObjectItemCaseSensitive(plan, "lora"), "matches");
    for (size_t i = 0; i < sizeof key / sizeof *key; i++)
        put_item(t, key[i], cJSON_GetObjectItemCaseSensitive(plan, key[i]));
    put_parameters(t, cJSON_GetObjectItemCaseSensitive(plan, "parameters"));
}

static void
put_run(rt_text *t, const report *r)
{
    char when[64] = "";
    time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", &local);
    rt_putf(t, "{\"written\": \"%s\", \"rows\": %lld, \"step\": %.10g", when,
            (long long)r->rows, r->step);
    put_item(t, "ending", r->ending);
    put_item(t, "options", r->options);
    put_plan(t, r->plan);
    rt_putf(t, ",\n\"curves\": [");
    for (int i = 0; i < r->ncurve; i++) {
        rt_text curve = {0};
        rt_curve_json(&r->curve[i], !strcmp(r->curve[i].key, "loss"), &curve);
        rt_putf(t, i ? ",\n" : "\n");
        put_safely(t, curve.s);
        free(curve.s);
    }
    rt_putf(t, "]}");
}

/* ---- the file ---- */

static void
write_page(const report *r, const char *dir)
{
    static const char place[] = "{{RUN}}";
    const char *at = strstr(rt_report_page, place);
    rt_text t = {0};
    rt_putf(&t, "%.*s", (int)(at - rt_report_page), rt_report_page);
    put_run(&t, r);
    rt_putf(&t, "%s", at + sizeof place - 1);
    char *path = rt_path(dir, "report.html");
    rt_file f;
    rt_file_begin(&f, path, NULL);
    rt_file_write(&f, t.s, t.n);
    rt_file_done(&f);
    free(path);
    free(t.s);
}

/* A plan that is not there, or not whole, leaves its part of the page empty. */
static cJSON *
read_plan(const char *program_dir)
{
    int err;
    char *path = rt_path(program_dir, "plan.json");
    char *text = rt_read_text(path, MAX_PLAN, &err);
    cJSON *plan = text ? cJSON_Parse(text) : NULL;
    free(path);
    free(text);
    return plan;
}

void
rt_report_write(const char *dir, const char *program_dir, const char *options)
{
    report r = {0};
    if (read_log(&r, dir)) {
        r.options = cJSON_Parse(options);
        r.plan = read_plan(program_dir);
        write_page(&r, dir);
    }
    for (int i = 0; i < r.ncurve; i++)
        rt_curve_free(&r.curve[i]);
    cJSON_Delete(r.ending);
    cJSON_Delete(r.options);
    cJSON_Delete(r.plan);
}

void
rt_report_update(const char *dir, const char *program_dir, const char *options)
{
    static double ended, took;
    double start = rt_now();
    if (start - ended < UPDATE_SHARE * took)
        return;
    rt_report_write(dir, program_dir, options);
    ended = rt_now();
    took = ended - start;
}
