/* checkpoint.c -- writing a checkpoint.
 *
 * All files go into checkpoint-<step>.tmp, each flushed to the disk before the next, the
 * manifest last; then the folder gets its name, and that name is flushed, too. Only after
 * that are older checkpoints removed. Wherever it fails, the temporary folder goes and the
 * older ones are as they were.
 */
#include "checkpoint_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct save {
    const rt_job *job;
    char *dir, *tmp;
    rt_text advice; /* where space runs out */
    rt_manifest *manifest;
    int code;
} save;

static void
failed(save *s, const char *path, const char *what)
{
    int err = errno;
    s->code = rt_errno_code(err);
    rt_fail(s->code, "%s: %s: %s%s%s", path, what, strerror(err),
            s->code == RT_STOPPED ? "\n" : "",
            s->code == RT_STOPPED ? s->advice.s : "");
}

/* Tensors of all trained params in class c; the names get the suffix. */
static int
tensors_of(const rt_run *run, rt_class c, const char *suffix, rt_st_out *out)
{
    const rt_program *p = run->program;
    int n = 0;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *param = &p->param[i];
        const float *data =
            param->cls == RT_TRAIN ? rt_param_state(run, param, c) : NULL;
        if (!data)
            continue;
        rt_text name = {0};
        rt_putf(&name, "%s%s", param->name, suffix);
        out[n] =
            (rt_st_out){.name = name.s, .rank = param->rank, .data = data, .of = run};
        memcpy(out[n++].dim, param->dim, sizeof out->dim);
    }
    return n;
}

/* Ends a file of the checkpoint; it becomes a row of the manifest. */
static void
end_piece(save *s, rt_file *f, const char *name)
{
    rt_manifest *m = s->manifest;
    s->code = rt_file_done(f);
    rt_piece *p = &m->piece[m->npiece++];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->bytes = (int64_t)f->at;
    p->hash = f->hash;
}

static void
write_tensors(save *s, const char *name, rt_st_out *t, int n)
{
    char *path = rt_path(s->tmp, name);
    rt_file f;
    rt_file_begin(&f, path, s->advice.s);
    rt_file_tensors(&f, t, n, false);
    end_piece(s, &f, name);
    for (int i = 0; i < n; i++)
        free((char *)t[i].name);
    free(path);
}

static void
write_manifest(save *s)
{
    char *path = rt_path(s->tmp, RT_MANIFEST), *text = rt_manifest_text(s->manifest);
    rt_file f;
    rt_file_begin(&f, path, s->advice.s);
    rt_file_write(&f, text, strlen(text));
    s->code = rt_file_done(&f);
    free(text);
    free(path);
}

static void
write_folder(save *s)
{
    const rt_run *run = s->job->run;
    rt_st_out *t = rt_new(2 * (size_t)run->program->nparam + 1, sizeof *t);
    write_tensors(s, RT_WEIGHTS, t, tensors_of(run, RT_TRAIN, "", t));
    if (!s->code) {
        int n = tensors_of(run, RT_STATE_M, ".m", t);
        n += tensors_of(run, RT_STATE_V, ".v", t + n);
        if (n)
            write_tensors(s, RT_OPTIMIZER, t, n);
    }
    if (!s->code)
        write_manifest(s);
    free(t);
}

static void
put_in_place(save *s)
{
    const char *parent = s->job->opts->output_dir;
    if (!rt_folder_sync(s->tmp))
        failed(s, s->tmp, "writing failed");
    else if (!rt_folder_replace(s->tmp, s->dir))
        failed(s, s->dir, "the new checkpoint can't be put in its place");
    else if (!rt_folder_sync(parent))
        failed(s, parent, "writing failed");
}

/* The folder is now this run's: auto goes on from no other. */
static void
after_saving(const rt_job *job, const rt_train_state *state)
{
    const char *dir = job->opts->output_dir;
    if (rt_folder_run(dir) != state->run)
        rt_folder_set_run(dir, state->run);
    rt_checkpoint_rotate(job, state);
}

int
rt_checkpoint_save(const rt_job *job, const rt_train_state *state)
{
    save s = {.job = job, .manifest = rt_manifest_of(job)};
    s.manifest->state = *state;
    s.dir = rt_checkpoint_path(job->opts->output_dir, state->step);
    rt_text tmp = {0};
    rt_putf(&tmp, "%s.tmp", s.dir);
    s.tmp = tmp.s;
    rt_putf(&s.advice,
            "a checkpoint needs %s; nothing of this one stays, those before it are "
            "whole\nmake room, then go on with: %s",
            rt_bytes_text((double)rt_checkpoint_bytes(job)), job->go_on);
    rt_folder_remove(s.tmp);
    if (mkdir(s.tmp, 0777))
        failed(&s, s.tmp, "cannot be made");
    else
        write_folder(&s);
    if (!s.code)
        put_in_place(&s);
    if (s.code)
        rt_folder_remove(s.tmp);
    else
        after_saving(job, state);
    rt_manifest_free(s.manifest);
    free(s.advice.s);
    free(s.tmp);
    free(s.dir);
    return s.code;
}

int64_t
rt_checkpoint_bytes(const rt_job *job)
{
    enum { HEADER = 192, MANIFEST = 16 << 10 };
    const rt_program *p = job->run->program;
    static const rt_class c[] = {RT_TRAIN, RT_STATE_M, RT_STATE_V};
    int64_t bytes = MANIFEST;
    for (int i = 0; i < p->nparam; i++)
        for (int k = 0; k < 3 && p->param[i].cls == RT_TRAIN; k++)
            if (rt_param_state(job->run, &p->param[i], c[k]))
                bytes += 4 * p->param[i].n + HEADER + (int64_t)strlen(p->param[i].name);
    return bytes;
}
