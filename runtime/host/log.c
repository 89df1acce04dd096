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

/* Where the rows end that stay; -1: errno says why they can't be read. */
static int64_t
kept_bytes(const char *path, int64_t keep)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int64_t at = 0;
    ssize_t n;
    if (!f)
        return errno == ENOENT ? 0 : -1;
    for (int64_t number = 1; (n = getline(&line, &cap, f)) > 0; number++) {
        double step = step_of(line, (size_t)n);
        if (step == -2)
            rt_warn("%s, line %lld is not a whole row; the log is cut there", path,
                    (long long)number);
        if (step < 0 || step > (double)keep)
            break;
        at += n;
    }
    if (ferror(f))
        at = -1;
    free(line);
    int err = errno;
    fclose(f);
    errno = err;
    return at;
}

char *
rt_log_end(const char *dir)
{
    char tail[4096] = "", *path = rt_path(dir, "log.jsonl"), *line = tail;
    FILE *f = fopen(path, "r");
    free(path);
    if (!f)
        return NULL;
    if (fseek(f, -(long)(sizeof tail - 1), SEEK_END))
        rewind(f); /* it is shorter */
    tail[fread(tail, 1, sizeof tail - 1, f)] = 0;
    fclose(f);
    for (char *c = tail; *c; c++)
        if (*c == '\n' && c[1])
            line = c + 1;
    cJSON *row = cJSON_Parse(line);
    const char *word =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "end"));
    char *end = word ? strdup(word) : NULL;
    cJSON_Delete(row);
    return end;
}

int
rt_log_open(rt_log *l, const char *dir, int64_t keep)
{
    *l = (rt_log){.file.path = rt_path(dir, "log.jsonl")};
    rt_records *f = &l->file;
    f->at = keep < 0 ? 0 : kept_bytes(f->path, keep);
    f->fd = f->at < 0 ? -1 : open(f->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    bool ok = f->fd >= 0 && !ftruncate(f->fd, f->at) &&
              lseek(f->fd, f->at, SEEK_SET) == f->at;
    if (ok)
        return RT_OK;
    int code = rt_fail(rt_errno_code(errno), "%s: %s", f->path, strerror(errno));
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    *l = (rt_log){0};
    return code;
}

static void
failed(rt_records *f)
{
    if (f->err)
        return;
    f->err = errno;
    rt_warn("%s: %s; training goes on without it", f->path, strerror(errno));
}

void
rt_records_add(rt_records *f, const void *data, size_t n)
{
    const char *s = data;
    for (size_t done = 0; done < n;) {
        ssize_t part = write(f->fd, s + done, n - done);
        if (part >= 0) {
            done += (size_t)part;
        } else if (errno != EINTR) {
            failed(f);
            if (ftruncate(f->fd, f->at) || lseek(f->fd, f->at, SEEK_SET) != f->at)
                failed(f);
            return;
        }
    }
    f->at += (int64_t)n;
}

void
rt_log_row(rt_log *l, int n, const rt_log_value *v)
{
    if (!l->file.path)
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
    rt_records_add(&l->file, t.s, t.n);
    free(t.s);
    if (l->board)
        rt_board_row(l->board, n, v);
}

void
rt_log_sync(rt_log *l)
{
    if (l->file.path && fsync(l->file.fd) && errno != EINVAL && errno != EROFS)
        failed(&l->file);
}

int
rt_log_close(rt_log *l)
{
    rt_records *f = &l->file;
    int code = RT_OK;
    rt_board_close(l->board);
    if (f->path && close(f->fd) && !f->err)
        f->err = errno;
    if (f->err)
        code = rt_fail(rt_errno_code(f->err), "%s lacks rows: %s", f->path,
                       strerror(f->err));
    free(f->path);
    *l = (rt_log){0};
    return code;
}
