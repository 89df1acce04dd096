/* data_sweep.c -- checks in parallel: a range in pieces, which threads take in order, and the
 * faults that they find, of which the first are shown whichever thread found them.
 */
#include "data_int.h"

#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 16 };

/* ---- faults ---- */

/* The place for a fault at `at`; NULL: the first ones are all before it. */
static struct rt_fault *
place(rt_faults *f, int64_t at)
{
    int n = f->n < RT_SHOWN ? (int)f->n : RT_SHOWN, i = n;
    f->n++;
    while (i > 0 && f->first[i - 1].at > at)
        i--;
    if (i == RT_SHOWN)
        return NULL;
    int move = (n < RT_SHOWN ? n : RT_SHOWN - 1) - i;
    memmove(&f->first[i + 1], &f->first[i], (size_t)move * sizeof *f->first);
    f->first[i].at = at;
    return &f->first[i];
}

void
rt_faults_add(rt_faults *f, int64_t at, const char *fmt, ...)
{
    struct rt_fault *one = place(f, at);
    if (!one)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(one->text, sizeof one->text, fmt, ap);
    va_end(ap);
}

void
rt_faults_join(rt_faults *f, const rt_faults *more, int64_t base)
{
    int64_t shown = more->n < RT_SHOWN ? more->n : RT_SHOWN;
    for (int64_t i = 0; i < shown; i++) {
        struct rt_fault *one = place(f, more->first[i].at + base);
        if (one)
            memcpy(one->text, more->first[i].text, sizeof one->text);
    }
    f->n += more->n - shown;
}

int
rt_faults_say(const rt_faults *f, const char *path, bool lines)
{
    for (int i = 0; i < RT_SHOWN && i < f->n; i++)
        if (lines)
            rt_fail(RT_USER, "%s:%lld: %s", path, (long long)f->first[i].at,
                    f->first[i].text);
        else
            rt_fail(RT_USER, "%s: %s", path, f->first[i].text);
    if (f->n > RT_SHOWN)
        rt_fail(RT_USER, "%s: %lld more bad %s", path, (long long)f->n - RT_SHOWN,
                lines ? "rows" : "values");
    return f->n ? RT_USER : RT_OK;
}

/* ---- threads ---- */

int
rt_sweep_threads(const rt_data_spec *spec, int64_t pieces)
{
    cpu_set_t set;
    int64_t n = spec->threads;
    if (n <= 0 && sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    n = n > MOST_THREADS ? MOST_THREADS : n;
    n = n > pieces ? pieces : n;
    return n < 1 ? 1 : (int)n;
}

static void *
worker(void *ctx)
{
    rt_sweep *s = ctx;
    pthread_mutex_lock(&s->lock);
    while (s->taken < s->n && !s->code) {
        int64_t from = s->taken, left = s->n - from;
        int64_t n = left < s->grain ? left : s->grain;
        s->taken += n;
        pthread_mutex_unlock(&s->lock);
        s->work(s, from, from + n);
        pthread_mutex_lock(&s->lock);
        s->ended += n;
        rt_progress_part(&s->bar, "checking", s->ended, s->n);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int
rt_sweep_run(rt_sweep *s)
{
    pthread_t thread[MOST_THREADS];
    int started = 0;
    pthread_mutex_init(&s->lock, NULL);
    rt_progress_start(&s->bar, 0);
    while (started + 1 < s->threads &&
           pthread_create(&thread[started], NULL, worker, s) == 0)
        started++; /* fewer threads do as well */
    worker(s);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    rt_progress_clear(&s->bar);
    pthread_mutex_destroy(&s->lock);
    return s->code;
}
