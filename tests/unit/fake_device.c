/* fake_device.c -- a device whose memory the host can't touch, for tests of runtime/host.
 *
 * Linked into a test it takes the place of runtime/cpu/execute.c and memory.c; kernels are still
 * the processor's. The memory is protected but while the device works, so a host part that
 * reads or writes it without a copy dies. Work is only done when somebody waits for it, as
 * late as may be: what was put into staging memory too early, or read from it too early, shows
 * in the results. Kernels that the host part calls itself are wrapped by the linker.
 */
#include "runtime/include/efficc_rt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const bool rt_unified = false;

typedef struct task {
    enum { COPY, ZERO, NORM, PART } kind;
    void *to;
    const void *from;
    void *made; /* a copy of what was at `from`; NULL: there is none */
    int64_t n;
    rt_run *run;
    rt_part part;
    rt_hyper hyper;
    int64_t size[RT_NSYMS];
    int64_t behind; /* marks given out before */
} task;

enum { MOST = 4096, STAGINGS = 16 };
static struct {
    char *p;
    size_t bytes;
} staging[STAGINGS];
static task queue[MOST];
static int first, last; /* of those that are not done yet */
static int64_t marks;
static char *memory;
static size_t memory_bytes;
static int opened;
static bool working; /* in a task: kernels run at once */
static rt_hyper prepared;
int fake_device_ahead; /* the most updates that were enqueued and not done */

static void
die(const char *what)
{
    fprintf(stderr, "fake device: %s\n", what);
    abort();
}

static void
open_memory(void)
{
    if (memory && opened++ == 0 &&
        mprotect(memory, memory_bytes, PROT_READ | PROT_WRITE))
        die("mprotect");
}

static void
close_memory(void)
{
    if (memory && --opened == 0 && mprotect(memory, memory_bytes, PROT_NONE))
        die("mprotect");
}

static bool
on_device(const void *p)
{
    return memory && (const char *)p >= memory &&
           (const char *)p < memory + memory_bytes;
}

/* ---- work ---- */

void __real_rt_zero(rt_stream *, void *, int64_t);
void __real_rt_norm2(rt_stream *, float *, rt_run *);
void __real_rt_convert(rt_stream *, void *, rt_dtype, const void *, rt_dtype, int64_t);
rt_scan __real_rt_scan_floats(rt_stream *, const void *, rt_dtype, int64_t);
void __wrap_rt_zero(rt_stream *, void *, int64_t);
void __wrap_rt_norm2(rt_stream *, float *, rt_run *);
void __wrap_rt_convert(rt_stream *, void *, rt_dtype, const void *, rt_dtype, int64_t);
rt_scan __wrap_rt_scan_floats(rt_stream *, const void *, rt_dtype, int64_t);

static void
do_micro(rt_run *run)
{
    const rt_program *p = run->program;
    run->program->micro(run);
    ((rt_tally *)(void *)run->device)->loss +=
        (double)*(const float *)(const void *)(run->arena + p->loss_at);
}

static void
do_update(rt_run *run)
{
    const rt_program *p = run->program;
    rt_tally *t = (rt_tally *)(void *)run->device;
    const float *scaler = p->scaled ? (float *)(void *)run->base[RT_SCALER][0] : NULL;
    bool answer = scaler && scaler[RT_SCALE_AT] > 1;
    p->update(run);
    if (scaler)
        memcpy(t->scaler, scaler, sizeof t->scaler);
    t->norm2 = *(const float *)(const void *)(run->arena + p->norm2_at);
    if (isfinite(t->norm2) ? !isfinite(t->loss) : !answer)
        t->halted = 1;
}

/* With sizes and hyper-parameters as they were when it was enqueued. */
static void
do_part(const task *t)
{
    rt_run *run = t->run;
    rt_hyper hyper = run->hyper;
    int64_t size[RT_NSYMS];
    memcpy(size, run->size, sizeof size);
    memcpy(run->size, t->size, sizeof size);
    run->hyper = t->hyper;
    if (t->part == RT_MICRO)
        do_micro(run);
    if (t->part == RT_UPDATE)
        do_update(run);
    if (t->part == RT_EVAL)
        run->program->eval(run);
    run->hyper = hyper;
    memcpy(run->size, size, sizeof size);
}

static void
do_task(task *t)
{
    switch (t->kind) {
    case COPY:
        memcpy(t->to, t->made ? t->made : t->from, (size_t)t->n);
        break;
    case ZERO:
        __real_rt_zero(NULL, t->to, t->n);
        break;
    case NORM:
        __real_rt_norm2(t->run->compute, t->to, t->run);
        break;
    default:
        do_part(t);
    }
    free(t->made);
}

/* All that is before the mark. */
static void
work(int64_t mark)
{
    if (working)
        return;
    open_memory();
    working = true;
    while (first != last && queue[first % MOST].behind < mark)
        do_task(&queue[first++ % MOST]);
    working = false;
    close_memory();
}

static void
work_all(void)
{
    work(marks + 1);
}

static void
enqueue(task t)
{
    t.behind = marks;
    if (last - first == MOST)
        die("too much to do");
    queue[last++ % MOST] = t;
}

static int
updates_waiting(void)
{
    int n = 0;
    for (int i = first; i < last; i++)
        n += queue[i % MOST].kind == PART && queue[i % MOST].part == RT_UPDATE;
    return n;
}

/* ---- what the host part asks of a device ---- */

int64_t
rt_device_bytes(const rt_program *p)
{
    (void)p;
    return 64;
}

void
rt_device_text(const rt_stream *s, char *text, size_t n)
{
    (void)s;
    snprintf(text, n, "a fake one");
}

/* It has measured in all memory that may be lost. */
bool
rt_prepare(rt_run *run, char *error, size_t n)
{
    const rt_program *p = run->program;
    (void)error, (void)n;
    work_all();
    open_memory();
    memset(run->arena, 0xff, (size_t)p->arena_bytes);
    for (int u = 0; u < p->nunit; u++)
        if (run->base[RT_GRAD][u])
            memset(run->base[RT_GRAD][u], 0xff, (size_t)p->unit_bytes[u][RT_GRAD]);
    close_memory();
    prepared = run->hyper;
    return true;
}

void
rt_execute(rt_run *run, rt_part part)
{
    task t = {.kind = PART, .run = run, .part = part, .hyper = run->hyper};
    rt_hyper same = run->hyper;
    same.lr = prepared.lr;
    same.step = prepared.step;
    if (part == RT_UPDATE && memcmp(&same, &prepared, sizeof same))
        die("hyper-parameters have changed since rt_prepare()");
    memcpy(t.size, run->size, sizeof t.size);
    if (!run->check) {
        enqueue(t);
        int ahead = updates_waiting();
        fake_device_ahead = ahead > fake_device_ahead ? ahead : fake_device_ahead;
        return;
    }
    work_all();
    open_memory();
    do_part(&t);
    close_memory();
}

void *
rt_alloc(size_t bytes)
{
    if (memory && munmap(memory, memory_bytes))
        die("munmap");
    memory_bytes = (bytes + 4095) / 4096 * 4096;
    memory = mmap(NULL, memory_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    opened = 0;
    return memory == MAP_FAILED ? NULL : memory;
}

int64_t
rt_free_bytes(void)
{
    const char *bytes = getenv("FAKE_DEVICE_BYTES");
    return bytes ? atoll(bytes) : (int64_t)1 << 30;
}

void *
rt_staging(size_t bytes)
{
    int i = 0;
    while (i < STAGINGS && staging[i].p)
        i++;
    if (i == STAGINGS)
        die("too much staging memory");
    staging[i].p = calloc(bytes + !bytes, 1);
    staging[i].bytes = bytes;
    return staging[i].p;
}

static int
staging_of(const void *p)
{
    for (int i = 0; i < STAGINGS; i++)
        if (staging[i].p && (const char *)p >= staging[i].p &&
            (const char *)p < staging[i].p + staging[i].bytes)
            return i;
    return -1;
}

void
rt_staging_free(void *p)
{
    if (p && first != last)
        die("staging memory is freed while copies may be on their way");
    if (p)
        staging[staging_of(p)].p = NULL;
    free(p);
}

/* From staging memory when it is done. */
void
rt_upload(rt_stream *s, void *device, const void *host, int64_t bytes)
{
    task t = {.kind = COPY, .to = device, .from = host, .n = bytes};
    (void)s;
    if (!on_device(device) || on_device(host))
        die("upload");
    if (staging_of(host) < 0) {
        t.made = malloc((size_t)bytes + 1);
        memcpy(t.made, host, (size_t)bytes);
    }
    enqueue(t);
}

void
rt_fetch(rt_stream *s, void *to, const void *device, int64_t bytes)
{
    (void)s;
    if (!on_device(device) || staging_of(to) < 0)
        die("fetch");
    enqueue((task){.kind = COPY, .to = to, .from = device, .n = bytes});
}

void
rt_download(rt_stream *s, void *host, const void *device, int64_t bytes)
{
    (void)s;
    if (!on_device(device) || on_device(host))
        die("download");
    work_all();
    open_memory();
    memcpy(host, device, (size_t)bytes);
    close_memory();
}

int64_t
rt_mark(rt_stream *s)
{
    (void)s;
    return ++marks;
}

void
rt_await(rt_stream *s, int64_t mark)
{
    (void)s;
    work(mark);
}

/* ---- kernels that the host part calls ---- */

void
__wrap_rt_zero(rt_stream *s, void *y, int64_t bytes)
{
    if (working || opened)
        __real_rt_zero(s, y, bytes);
    else
        enqueue((task){.kind = ZERO, .to = y, .n = bytes});
}

void
__wrap_rt_norm2(rt_stream *s, float *norm2, rt_run *run)
{
    if (working || opened)
        __real_rt_norm2(s, norm2, run);
    else
        enqueue((task){.kind = NORM, .to = norm2, .run = run});
}

void
__wrap_rt_convert(rt_stream *s, void *y, rt_dtype to, const void *x, rt_dtype from,
                  int64_t n)
{
    work_all();
    open_memory();
    __real_rt_convert(s, y, to, x, from, n);
    close_memory();
}

rt_scan
__wrap_rt_scan_floats(rt_stream *s, const void *x, rt_dtype type, int64_t n)
{
    work_all();
    open_memory();
    rt_scan found = __real_rt_scan_floats(s, x, type, n);
    close_memory();
    return found;
}
