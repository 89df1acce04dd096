/* log.c -- log.jsonl: one object a line, numbers with 9 significant digits, written through
 * to the file row by row so that a run can be watched. A failed write does not stop the
 * training; it is said at once and again at the end.
 */
#include "host_int.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int
rt_log_open(rt_log *l, const char *dir, int64_t keep)
{
    (void)keep;
    *l = (rt_log){.path = rt_path(dir, "log.jsonl")};
    l->f = fopen(l->path, "w");
    if (l->f)
        return RT_OK;
    int code = rt_fail(rt_errno_code(errno), "%s: %s", l->path, strerror(errno));
    free(l->path);
    *l = (rt_log){0};
    return code;
}

void
rt_log_row(rt_log *l, int n, const rt_log_value *v)
{
    if (!l->f)
        return;
    rt_text t = {0};
    for (int i = 0; i < n; i++) {
        rt_putf(&t, "%s\"%s\": ", i ? ", " : "{", v[i].key);
        rt_putf(&t, isfinite(v[i].value) ? "%.9g" : "null", v[i].value);
    }
    rt_putf(&t, "}\n");
    bool ok = fwrite(t.s, 1, t.n, l->f) == t.n;
    ok &= !fflush(l->f);
    free(t.s);
    if (ok || l->err)
        return;
    l->err = errno;
    rt_warn("%s: %s; training goes on without it", l->path, strerror(l->err));
}

int
rt_log_close(rt_log *l)
{
    int code = RT_OK;
    if (l->f && fclose(l->f) && !l->err)
        l->err = errno;
    if (l->err)
        code = rt_fail(rt_errno_code(l->err), "%s lacks rows: %s", l->path,
                       strerror(l->err));
    free(l->path);
    *l = (rt_log){0};
    return code;
}
