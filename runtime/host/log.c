/* log.c -- log.jsonl: one object a line, numbers with 9 significant digits, written through
 * to the file row by row so that a run can be watched.
 *
 * The file always ends with a whole row: what a failed write left of a row is cut off again,
 * and a run that goes on cuts the file at the first row that it will write again, which also
 * is the way out of a half row after a crash. Cutting shortens the file in place; the rows
 * before are not touched. A failed write does not stop the training; it is said at once and
 * again at the end.
 */
#include "host_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The step of a row of n bytes; -1: it has none; -2: it is no row. */
static double
step_of(const char *line, size_t n)
{
    if (!n || line[n - 1] != '\n')
        return -2;
    cJSON *row = cJSON_ParseWithLength(line, n);
    cJSON *step = cJSON_GetObjectItemCaseSensitive(row, "step");
    double result = !cJSON_IsObject(row)   ? -2
                    : cJSON_IsNumber(step) ? step->valuedouble
                                           : -1;
    cJSON_Delete(row);
    return result;
}

/* Where the rows end that stay. A file that can't be read stays as far as it can. */
static int64_t
kept_bytes(const char *path, int64_t keep)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int64_t at = 0;
    ssize_t n;
    for (int64_t number = 1; f && (n = getline(&line, &cap, f)) > 0; number++) {
        double step = step_of(line, (size_t)n);
        if (step == -2)
            rt_warn("%s, line %lld is not a whole row; the log is cut there", path,
                    (long long)number);
        if (step < 0 || step > (double)keep)
            break;
        at += n;
    }
    free(line);
    if (f)
        fclose(f);
    return at;
}

int
rt_log_open(rt_log *l, const char *dir, int64_t keep)
{
    *l = (rt_log){.path = rt_path(dir, "log.jsonl")};
    l->at = keep < 0 ? 0 : kept_bytes(l->path, keep);
    l->fd = open(l->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    bool ok = l->fd >= 0 && !ftruncate(l->fd, l->at) &&
              lseek(l->fd, l->at, SEEK_SET) == l->at;
    if (ok)
        return RT_OK;
    int code = rt_fail(rt_errno_code(errno), "%s: %s", l->path, strerror(errno));
    if (l->fd >= 0)
        close(l->fd);
    free(l->path);
    *l = (rt_log){0};
    return code;
}

static void
failed(rt_log *l, int err)
{
    if (l->err)
        return;
    l->err = err;
    rt_warn("%s: %s; training goes on without it", l->path, strerror(err));
}

/* Appends the row, or nothing. */
static void
append(rt_log *l, const rt_text *t)
{
    for (size_t done = 0; done < t->n;) {
        ssize_t n = write(l->fd, t->s + done, t->n - done);
        if (n >= 0) {
            done += (size_t)n;
        } else if (errno != EINTR) {
            failed(l, errno);
            if (ftruncate(l->fd, l->at) || lseek(l->fd, l->at, SEEK_SET) != l->at)
                failed(l, errno);
            return;
        }
    }
    l->at += (int64_t)t->n;
}

void
rt_log_row(rt_log *l, int n, const rt_log_value *v)
{
    if (!l->path)
        return;
    rt_text t = {0};
    for (int i = 0; i < n; i++) {
        rt_putf(&t, "%s\"%s\": ", i ? ", " : "{", v[i].key);
        if (v[i].json)
            rt_putf(&t, "%s", v[i].json);
        else
            rt_putf(&t, isfinite(v[i].value) ? "%.9g" : "null", v[i].value);
    }
    rt_putf(&t, "}\n");
    append(l, &t);
    free(t.s);
}

void
rt_log_sync(rt_log *l)
{
    if (l->path && fsync(l->fd) && errno != EINVAL && errno != EROFS)
        failed(l, errno);
}

int
rt_log_close(rt_log *l)
{
    int code = RT_OK;
    if (l->path && close(l->fd) && !l->err)
        l->err = errno;
    if (l->err)
        code = rt_fail(rt_errno_code(l->err), "%s lacks rows: %s", l->path,
                       strerror(l->err));
    free(l->path);
    *l = (rt_log){0};
    return code;
}
