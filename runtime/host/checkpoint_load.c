/* checkpoint_load.c -- finding a checkpoint, checking it and going on from it.
 *
 * Nothing is believed before it was checked: the manifest has its own hash, every file its
 * size and hash, and each tensor must be there with its shape before the first is read into
 * the program's memory.
 */
#include "checkpoint_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

enum { PART = 1 << 20 };

/* ---- is it whole? ---- */

static ssize_t
read_some(int fd, void *to, size_t n)
{
    ssize_t got;
    do
        got = read(fd, to, n);
    while (got < 0 && errno == EINTR);
    return got;
}

/* Why a file of the checkpoint can't be opened. */
static void
put_why(char why[RT_WHY], const char *name)
{
    bool absent = errno == ENOENT || errno == ENOTDIR;
    bool other = errno == EINVAL || errno == EISDIR; /* of rt_open_regular() */
    if (absent || other)
        snprintf(why, RT_WHY, "%s is %s", name, absent ? "missing" : "not a file");
    else
        snprintf(why, RT_WHY, "%s: %s", name, strerror(errno));
}

rt_manifest *
rt_manifest_read(const char *dir, char why[RT_WHY])
{
    enum { MOST = 16 << 20 };
    char *path = rt_path(dir, RT_MANIFEST);
    int64_t size = 0;
    int fd = rt_open_regular(path, &size);
    free(path);
    if (fd < 0) {
        put_why(why, RT_MANIFEST);
        return NULL;
    }
    size_t n = (size_t)(size < MOST ? size : MOST), done = 0;
    char *text = rt_new(n + 1, 1);
    for (ssize_t got; done < n && (got = read_some(fd, text + done, n - done)) > 0;)
        done += (size_t)got;
    close(fd);
    rt_manifest *m = rt_manifest_parse(text, done, why);
    free(text);
    return m;
}

/* Hash of an open file; false: errno. */
static bool
hash_file(int fd, uint64_t *hash)
{
    char *buf = rt_new(PART, 1);
    XXH3_state_t *state = rt_hash_new();
    ssize_t got;
    while ((got = read_some(fd, buf, PART)) > 0)
        XXH3_64bits_update(state, buf, (size_t)got);
    int err = errno;
    *hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(buf);
    errno = err;
    return !got;
}

static bool
check_piece(const char *dir, const rt_piece *p, char why[RT_WHY])
{
    char *path = rt_path(dir, p->name);
    int64_t size = 0;
    uint64_t hash = 0;
    int fd = rt_open_regular(path, &size);
    free(path);
    *why = 0;
    if (fd < 0)
        put_why(why, p->name);
    else if (size != p->bytes)
        snprintf(why, RT_WHY, "%s is %s: %" PRId64 " bytes instead of %" PRId64,
                 p->name, size < p->bytes ? "truncated" : "too long", size, p->bytes);
    else if (!hash_file(fd, &hash))
        snprintf(why, RT_WHY, "%s: %s", p->name, strerror(errno));
    else if (hash != p->hash)
        snprintf(why, RT_WHY,
                 "%s is damaged: its hash is %016" PRIx64 " instead of %016" PRIx64,
                 p->name, hash, p->hash);
    if (fd >= 0)
        close(fd);
    return !*why;
}

static bool
check_pieces(const char *dir, const rt_manifest *m, char why[RT_WHY])
{
    for (int i = 0; i < m->npiece; i++)
        if (!check_piece(dir, &m->piece[i], why))
            return false;
    return true;
}

rt_manifest *
rt_checkpoint_check(const char *dir, char why[RT_WHY])
{
    rt_manifest *m = rt_manifest_read(dir, why);
    if (m && check_pieces(dir, m, why))
        return m;
    rt_manifest_free(m);
    return NULL;
}

/* ---- its tensors ---- */

static bool
fits(const rt_st_tensor *t, const rt_param *p)
{
    bool same = t && t->rank == p->rank && !strcmp(t->dtype, "F32");
    for (int d = 0; same && d < p->rank; d++)
        same = t->dim[d] == p->dim[d];
    return same;
}

/* Class c of all trained params, under their names with the suffix: checks them, or reads
 * them. *n counts them. */
static int
each_tensor(const rt_run *run, const rt_st *st, rt_class c, bool read, int *n)
{
    static const char *const suffix[] = {[RT_STATE_M] = ".m", [RT_STATE_V] = ".v"};
    const rt_program *p = run->program;
    int code = RT_OK;
    for (int i = 0; i < p->nparam && !code; i++) {
        const rt_param *param = &p->param[i];
        float *to = param->cls == RT_TRAIN ? rt_param_state(run, param, c) : NULL;
        if (!to)
            continue;
        rt_text name = {0};
        rt_putf(&name, "%s%s", param->name, c == RT_TRAIN ? "" : suffix[c]);
        const rt_st_tensor *t = rt_st_find(st, name.s);
        if (!fits(t, param))
            code = rt_fail(RT_USER, "%s: '%s' is not there in its shape", st->path,
                           name.s);
        else if (read)
            code = rt_st_load(run, st, t, to, NULL);
        free(name.s);
        ++*n;
    }
    return code;
}

typedef struct half { /* one of the two files, open, and the classes in it */
    const char *name;
    rt_class first, last;
    rt_st st;
    int n; /* tensors that the program has there */
} half;

static int
open_half(const rt_run *run, const char *dir, half *h)
{
    int code = RT_OK;
    h->st.fd = -1;
    h->n = 0;
    for (int i = 0; i < run->program->nparam; i++)
        for (rt_class c = h->first; c <= h->last; c++)
            h->n += run->program->param[i].cls == RT_TRAIN &&
                    rt_param_state(run, &run->program->param[i], c);
    if (!h->n)
        return RT_OK;
    char *path = rt_path(dir, h->name);
    int found = 0;
    code = rt_st_open(&h->st, path);
    for (rt_class c = h->first; c <= h->last && !code; c++)
        code = each_tensor(run, &h->st, c, false, &found);
    if (!code && h->st.n != h->n)
        code =
            rt_fail(RT_USER, "%s holds %d tensors instead of %d", path, h->st.n, h->n);
    free(path);
    return code;
}

/* The first n halves: weights, and what the optimizer keeps. */
static int
load_tensors(const rt_run *run, const char *dir, int n)
{
    half h[] = {{.name = RT_WEIGHTS, .first = RT_TRAIN, .last = RT_TRAIN},
                {.name = RT_OPTIMIZER, .first = RT_STATE_M, .last = RT_STATE_V}};
    int code = RT_OK, read = 0;
    for (int i = 0; i < n && !code; i++)
        code = open_half(run, dir, &h[i]);
    for (int i = 0; i < n && !code; i++)
        for (rt_class c = h[i].first; c <= h[i].last && h[i].n && !code; c++)
            code = each_tensor(run, &h[i].st, c, true, &read);
    for (int i = 0; i < n; i++)
        if (h[i].st.path)
            rt_st_close(&h[i].st);
    if (!code)
        rt_images_fill(run);
    return code;
}

/* ---- going on ---- */

/* What became of the look at a checkpoint. */
typedef enum verdict { GOOD, DAMAGED, EARLIER, FOREIGN, REFUSED } verdict;

static verdict
look(const char *dir, const rt_manifest *own, rt_manifest **m, char why[RT_WHY])
{
    *m = rt_manifest_read(dir, why);
    if (!*m)
        return DAMAGED;
    if (!rt_same_check(*m, own, RT_OF_PROGRAM, why))
        return FOREIGN;
    if (!check_pieces(dir, *m, why))
        return DAMAGED;
    return rt_same_check(*m, own, RT_OF_RUN, why) ? GOOD : REFUSED;
}

static int
load(const rt_job *job, const char *dir, const rt_manifest *m, const rt_manifest *own,
     rt_train_state *state)
{
    int code = load_tensors(job->run, dir, 2);
    if (code)
        return code;
    *state = m->state;
    rt_say("resume", "%s: goes on after step %" PRId64, dir, state->step);
    rt_options_note(m, own);
    return RT_OK;
}

/* For auto: a whole checkpoint may be one of another step or run all the same. */
static verdict
look_closer(const rt_train_state *s, int64_t step, int64_t run, char why[RT_WHY])
{
    if (s->step == step && (!run || s->run == run))
        return GOOD;
    if (s->step != step)
        snprintf(why, RT_WHY, "it is of step %" PRId64, s->step);
    else
        snprintf(why, RT_WHY,
                 "it is of an earlier run, which the one that saved here last "
                 "replaced\nname its path to go on from it");
    return EARLIER;
}

/* Looks at output_dir/checkpoint-<step> and loads it if it is good and of the run. */
static verdict
try_step(const rt_job *job, int64_t step, const rt_manifest *own, rt_train_state *state,
         int *code)
{
    char why[RT_WHY];
    rt_manifest *m;
    char *dir = rt_checkpoint_path(job->opts->output_dir, step);
    verdict v = look(dir, own, &m, why);
    if (v == GOOD)
        v = look_closer(&m->state, step, own->state.run, why);
    if (v == GOOD)
        *code = load(job, dir, m, own, state);
    else if (v == REFUSED)
        *code = rt_fail(RT_USER, "%s does not belong to this run: %s", dir, why);
    else
        rt_warn("%s is passed over: %s", dir, why);
    rt_manifest_free(m);
    free(dir);
    return v;
}

/* The newest good one. Without any the run starts anew, but not where another program's are:
 * a wrong trainer or folder is likelier than a new start there. */
static int
resume_newest(const rt_job *job, const rt_manifest *own, rt_train_state *state)
{
    const char *dir = job->opts->output_dir;
    int n, code = RT_OK;
    int64_t *step = rt_checkpoint_list(dir, &n);
    bool seen[REFUSED + 1] = {false};
    rt_checkpoint_strangers(dir);
    for (int i = 0; i < n && !seen[GOOD] && !seen[REFUSED]; i++)
        seen[try_step(job, step[i], own, state, &code)] = true;
    free(step);
    if (seen[GOOD] || seen[REFUSED] || !seen[FOREIGN] ||
        job->opts->overwrite_output_dir)
        return code;
    return rt_fail(
        RT_USER,
        "--output-dir %s holds no good checkpoint of this trainer, but of "
        "another one\nname another --output-dir, go on with the trainer that "
        "made them, or give --overwrite-output-dir to start anew",
        dir);
}

/* What to do about a path that is not a good checkpoint. */
static void
put_advice(rt_text *t, const char *path)
{
    int n;
    int64_t *step = rt_checkpoint_list(path, &n);
    char *newest = n ? rt_checkpoint_path(path, step[0]) : NULL;
    if (newest)
        rt_putf(t, "it holds checkpoints; name one of them, such as %s", newest);
    else
        rt_putf(t, "name another one, or auto for the newest good one in --output-dir");
    free(newest);
    free(step);
}

static int
resume_path(const rt_job *job, const rt_manifest *own, rt_train_state *state)
{
    const char *dir = job->opts->resume_from_checkpoint;
    char why[RT_WHY];
    rt_manifest *m;
    rt_text advice = {0};
    verdict v = look(dir, own, &m, why);
    if (v == DAMAGED)
        put_advice(&advice, dir);
    int code = v == GOOD ? load(job, dir, m, own, state)
                         : rt_fail(RT_USER, "--resume-from-checkpoint %s: %s%s%s", dir,
                                   why, advice.s ? "\n" : "", advice.s ? advice.s : "");
    rt_manifest_free(m);
    free(advice.s);
    return code;
}

/* Says what auto would do with checkpoints that are there and later than this run. */
static void
tell_of_later(const char *dir, const rt_train_state *s)
{
    int n;
    char why[RT_WHY];
    int64_t *found = rt_checkpoint_list(dir, &n);
    char *newest = rt_checkpoint_path(dir, n ? found[0] : 0);
    rt_manifest *m = n && found[0] > s->step ? rt_manifest_read(newest, why) : NULL;
    if (m && m->state.run == s->run)
        rt_warn("%s holds later checkpoints, up to step %" PRId64
                ", which --resume-from-checkpoint auto would take\nmove them away if "
                "this run is to replace them",
                dir, found[0]);
    else if (m)
        rt_say("note",
               "%s holds checkpoints of an earlier run; once this one has saved its "
               "own, --resume-from-checkpoint auto passes them over",
               dir);
    rt_manifest_free(m);
    free(newest);
    free(found);
}

/* A number that no other run has; as large as a manifest's numbers may be. */
static int64_t
new_run(void)
{
    uint64_t x;
    if (getrandom(&x, sizeof x, 0) != sizeof x)
        x = (uint64_t)(rt_now() * 1e9) ^ (uint64_t)getpid() << 32;
    return (int64_t)(x % ((uint64_t)1 << 53)) | 1;
}

int
rt_checkpoint_resume(const rt_job *job, rt_train_state *state)
{
    const char *from = job->opts->resume_from_checkpoint, *dir = job->opts->output_dir;
    int code = RT_OK;
    *state = (rt_train_state){0};
    rt_folder_tidy(dir);
    rt_manifest *own = rt_manifest_of(job);
    own->state.run = rt_folder_run(dir);
    if (from && !strcmp(from, "auto"))
        code = resume_newest(job, own, state);
    else if (from)
        code = resume_path(job, own, state);
    rt_manifest_free(own);
    if (code)
        return code;
    if (!state->step)
        state->run = new_run();
    if (!from || strcmp(from, "auto"))
        tell_of_later(dir, state);
    return RT_OK;
}

int
rt_checkpoint_load_best(const rt_job *job, const rt_train_state *state)
{
    char why[RT_WHY];
    rt_manifest *m, *own = rt_manifest_of(job);
    char *dir = rt_checkpoint_path(job->opts->output_dir, state->best_step);
    verdict v = look(dir, own, &m, why);
    if (v == GOOD)
        v = look_closer(&m->state, state->best_step, state->run, why);
    int code = v == GOOD ? load_tensors(job->run, dir, 1)
                         : rt_fail(RT_USER, "the best checkpoint %s can't be used: %s",
                                   dir, why);
    rt_manifest_free(m);
    rt_manifest_free(own);
    free(dir);
    return code;
}
