/* checkpoint_same.c -- what a checkpoint and the run that goes on from it have in common.
 *
 * Each row of checkpoint.def is a text that a function here makes from a run; two runs agree
 * where the texts are equal. Long tables are hashed. Options beyond these may differ, and each
 * that does is shown.
 */
#include "checkpoint_int.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- the texts ---- */

static int
by_name(const void *a, const void *b)
{
    return strcmp((*(const rt_param *const *)a)->name,
                  (*(const rt_param *const *)b)->name);
}

/* Params of the classes in the set, by name: how they lie in memory is the plan's matter. */
static const rt_param **
params_of(const rt_program *p, unsigned classes, int *n)
{
    const rt_param **param = rt_new((size_t)p->nparam + 1, sizeof(rt_param *));
    *n = 0;
    for (int i = 0; i < p->nparam; i++)
        if (classes >> p->param[i].cls & 1)
            param[(*n)++] = &p->param[i];
    qsort(param, (size_t)*n, sizeof *param, by_name);
    return param;
}

static void
hash_data(const rt_run *run, const rt_param *p, XXH3_state_t *state)
{
    enum { PIECE = 16 << 20 };
    int64_t bytes = (int64_t)rt_param_bytes(p);
    const char *data = rt_param_data(run, p);
    for (int64_t at = 0; at < bytes; at += PIECE) {
        int64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        const char *piece = rt_look(run, data + at, n);
        XXH3_64bits_update(state, piece, (size_t)n);
        rt_looked(piece);
    }
}

uint64_t
rt_frozen_hash(const rt_run *run)
{
    int n;
    const rt_param **p = params_of(run->program, 1 << RT_FROZEN | 1 << RT_CONST, &n);
    XXH3_state_t *state = rt_hash_new();
    for (int i = 0; i < n; i++) {
        XXH3_64bits_update(state, p[i]->name, strlen(p[i]->name) + 1);
        hash_data(run, p[i], state);
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(p);
    return hash;
}

static void
same_task(const rt_job *job, rt_text *t)
{
    rt_putf(t, "%s", job->run->program->task);
}

static void
same_adapter(const rt_job *job, rt_text *t)
{
    const rt_program *p = job->run->program;
    if (!p->lora_r)
        rt_putf(t, "none");
    else
        rt_putf(t, "LoRA of rank %" PRId64 ", scale %.17g", p->lora_r, p->lora_scale);
}

static void
same_params(const rt_job *job, rt_text *t)
{
    int n;
    const rt_param **p =
        params_of(job->run->program, 1 << RT_TRAIN | 1 << RT_FROZEN, &n);
    rt_text all = {0};
    for (int i = 0; i < n; i++) {
        rt_putf(&all, "%s %d", p[i]->name, p[i]->cls == RT_TRAIN);
        for (int d = 0; d < p[i]->rank; d++)
            rt_putf(&all, " %" PRId64, p[i]->dim[d]);
        rt_putf(&all, "\n");
    }
    rt_putf(t, "%016" PRIx64, (uint64_t)XXH3_64bits(all.s ? all.s : "", all.n));
    free(all.s);
    free(p);
}

static void
same_precision(const rt_job *job, rt_text *t)
{
    rt_putf(t, "%s", rt_precision(job->run->program));
}

static void
same_frozen(const rt_job *job, rt_text *t)
{
    rt_putf(t, "%016" PRIx64, job->frozen);
}

static void
same_data(const rt_job *job, rt_text *t)
{
    rt_data_identity(job->train, t);
}

static void
same_seed(const rt_job *job, rt_text *t)
{
    rt_putf(t, "%" PRId64, job->opts->seed);
}

static void
same_shuffle(const rt_job *job, rt_text *t)
{
    rt_putf(t, "%s", job->opts->shuffle ? "true" : "false");
}

static void
same_global_batch(const rt_job *job, rt_text *t)
{
    rt_schedule s = rt_schedule_of(job->opts, job->train->n, job->run->program->batch);
    rt_putf(t, "%" PRId64, s.global);
}

static void
same_optim(const rt_job *job, rt_text *t)
{
    const rt_opts *o = job->opts;
    bool sgd = !strcmp(o->optim, "sgd");
    rt_putf(t, "%s", sgd ? o->momentum > 0 ? "sgd with momentum" : "sgd" : "adamw");
}

static const struct row {
    void (*put)(const rt_job *, rt_text *);
    rt_whose whose;
    const char *text, *advice;
} row[] = {
#define SAME(key, whose, text, advice) {same_##key, RT_##whose, text, advice},
#include "checkpoint.def"
#undef SAME
};

rt_manifest *
rt_manifest_of(const rt_job *job)
{
    rt_manifest *m = rt_new(1, sizeof *m);
    m->efficc = strdup(job->run->program->efficc);
    m->program = strdup(job->run->program->hash);
    for (int i = 0; i < RT_NSAME; i++) {
        rt_text t = {0};
        row[i].put(job, &t);
        m->same[i] = t.s;
    }
    m->options = strdup(job->options);
    return m;
}

/* ---- comparing ---- */

/* Where the first part that differs begins; parts end with "; ". */
static size_t
first_difference(const char *a, const char *b)
{
    size_t part = 0;
    for (size_t i = 0; a[i] && a[i] == b[i]; i++)
        if (i && a[i - 1] == ';')
            part = i + 1;
    return part;
}

bool
rt_same_check(const rt_manifest *saved, const rt_manifest *own, rt_whose whose,
              char why[RT_WHY])
{
    for (int i = 0; i < RT_NSAME; i++) {
        const char *there = saved->same[i], *here = own->same[i];
        if (row[i].whose != whose || !strcmp(there, here))
            continue;
        size_t at = first_difference(there, here);
        const char *more = at ? ".. " : "";
        snprintf(why, RT_WHY, "%s is %s%.90s there and %s%.90s here\n%s", row[i].text,
                 more, there + at, more, here + at, row[i].advice);
        return false;
    }
    return true;
}

/* Options that checkpoint.def covers, or that belong to one part of a run. */
static bool
is_covered(const char *option)
{
    static const char *const covered[] = {
        "train_data",        "seed",
        "shuffle",           "optim",
        "output_dir",        "gradient_accumulation_steps",
        "max_time",          "overwrite_output_dir",
        "global_batch_size", "resume_from_checkpoint"};
    for (size_t i = 0; i < sizeof covered / sizeof *covered; i++)
        if (!strcmp(option, covered[i]))
            return true;
    return false;
}

static char *
value_text(const cJSON *value)
{
    if (!value)
        return strdup("the default");
    return cJSON_IsString(value) ? strdup(value->valuestring)
                                 : cJSON_PrintUnformatted(value);
}

/* Says it if the options a has under key are other ones in b. */
static void
note(const char *key, const cJSON *here, const cJSON *there)
{
    char *name = strdup(key), *own = value_text(here), *saved = value_text(there);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    if (strcmp(own, saved) && !is_covered(key))
        rt_say("note", "--%s %s (checkpoint: %s)", name, own, saved);
    free(name);
    free(own);
    free(saved);
}

void
rt_options_note(const rt_manifest *saved, const rt_manifest *own)
{
    cJSON *here = cJSON_Parse(own->options), *there = cJSON_Parse(saved->options);
    const cJSON *item;
    cJSON_ArrayForEach(item, here)
        note(item->string, item, cJSON_GetObjectItemCaseSensitive(there, item->string));
    cJSON_ArrayForEach(item,
                       there) if (!cJSON_GetObjectItemCaseSensitive(here, item->string))
        note(item->string, NULL, item);
    cJSON_Delete(here);
    cJSON_Delete(there);
    if (strcmp(saved->program, own->program) || strcmp(saved->efficc, own->efficc))
        rt_say(
            "note",
            "the trainer was compiled anew (efficc %s, schedule %.12s; checkpoint: "
            "%s, %.12s): what follows may differ in the last bits, and by more under "
            "another --dropout or --residual",
            own->efficc, own->program, saved->efficc, saved->program);
}
