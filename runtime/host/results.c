/* results.c -- what training leaves: an adapter for PEFT, or a model for onnxruntime and one
 * for PyTorch.
 */
#include "host_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

static bool
is_weight(const rt_param *p)
{
    return p->cls == RT_TRAIN || p->cls == RT_FROZEN;
}

/* All weights under PyTorch's names in PyTorch's layout; a tied one once. */
static int
save_torch(const rt_run *run, const char *path)
{
    const rt_program *p = run->program;
    rt_st_out *out = rt_new((size_t)p->nparam + 1, sizeof *out);
    float *shifted = rt_torch_room(p), *room = shifted;
    int n = 0, unknown = 0;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *param = &p->param[i];
        if (!is_weight(param))
            continue;
        rt_st_out *o = &out[n++];
        o->name = param->hf ? param->hf : param->name;
        unknown += !param->hf && param->role == RT_BASE;
        rt_torch_data(run, param, &room, o);
        o->rank = param->rank;
        o->transposed = param->transposed && param->rank == 2;
        for (int d = 0; d < o->rank; d++)
            o->dim[d] = param->dim[o->transposed ? 1 - d : d];
    }
    int code = rt_st_write(path, out, n, true);
    free(out);
    free(shifted);
    if (code)
        return code;
    rt_say("saved", "%s: %d tensors under PyTorch's names, as float32", path, n);
    if (unknown)
        rt_say("", "%d of them have no known PyTorch name and keep the file's",
               unknown);
    return RT_OK;
}

int
rt_results_save(const rt_run *run, const char *program_dir, const char *dir)
{
    if (run->program->lora_r)
        return rt_adapter_save(run, program_dir, dir);
    char *onnx = rt_path(dir, "model.onnx"), *torch = rt_path(dir, "model.safetensors");
    int code = rt_onnx_save(run, program_dir, onnx);
    if (!code)
        code = save_torch(run, torch);
    free(onnx);
    free(torch);
    return code;
}

/* The most checkpoints that the run adds to those that are there: all that are due, as far
 * as --save-total-limit lets them be, the best, one that replaces another, one for a stop or
 * the end. */
static double
most_checkpoints(const rt_job *job)
{
    const rt_opts *o = job->opts;
    rt_schedule s = rt_schedule_of(o, job->train->n, job->run->program->batch);
    double due = 0, kept = (double)o->save_total_limit + o->load_best_model_at_end;
    if (!strcmp(o->save_strategy, "steps"))
        due = (double)(s.total / o->save_steps);
    if (!strcmp(o->save_strategy, "epoch"))
        due = (double)(s.total / s.per_epoch);
    if (o->resume_from_checkpoint)
        due = 0; /* most of them are there */
    return 1 + (o->save_total_limit && kept < due ? kept : due);
}

int
rt_results_fit(const rt_job *job)
{
    const rt_program *p = job->run->program;
    const char *dir = job->opts->output_dir;
    struct statvfs fs;
    int64_t results = 1 << 20, one = rt_checkpoint_bytes(job);
    for (int i = 0; i < p->nparam; i++)
        if (p->lora_r ? p->param[i].cls == RT_TRAIN : is_weight(&p->param[i]))
            results += 8 * p->param[i].n; /* two files, or block-structured adapters */
    if (statvfs(dir, &fs))
        return RT_OK; /* writing will tell */
    double n = most_checkpoints(job), need = (double)results + n * (double)one;
    double room = (double)fs.f_bavail * (double)fs.f_frsize;
    if (room >= need)
        return RT_OK;
    return rt_fail(RT_USER,
                   "--output-dir %s: the results (%s) and %.0f checkpoint%s of %s need "
                   "%s, but the disk has %s left\n--save-total-limit, --save-steps and "
                   "--save-strategy decide how many there are at once",
                   dir, rt_bytes_text((double)results), n, n > 1 ? "s" : "",
                   rt_bytes_text((double)one), rt_bytes_text(need),
                   rt_bytes_text(room));
}
