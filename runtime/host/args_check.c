/* args_check.c -- what no single option of a trainer can see. Options that would change nothing
 * are refused: who gives one wants something.
 */
#include "args_int.h"

#include <string.h>

/* "--" and the option as it stands now: "--no-" where a flag was turned off. */
static const char *
as_given(const rt_parser *p, rt_opt_id i)
{
    static char text[64];
    const rt_opt_row *r = &rt_opt_table[i];
    bool off = r->kind == KIND_FLAG && !*(const bool *)((const char *)p->o + r->at);
    snprintf(text, sizeof text, "--%s%s", off ? "no-" : "", rt_opt_name(r));
    return text;
}

/* Options that would change nothing without training. */
static bool
check_training(rt_parser *p)
{
    bool go_on = true;
    for (int i = 0; i < RT_NOPTS && go_on && !p->o->train_data.n; i++)
        if (p->given[i] && rt_opt_table[i].when == TRAINING)
            go_on =
                rt_more(p, rt_fail(RT_USER, "%s is for training: it needs --train-data",
                                   as_given(p, (rt_opt_id)i)));
    return go_on;
}

static int
check_batch(const rt_opts *o, const rt_program *p)
{
    int64_t b = o->per_device_train_batch_size;
    if (!b || b == p->batch)
        return RT_OK;
    return rt_fail(RT_USER,
                   "--per-device-train-batch-size %lld, but this trainer was compiled "
                   "for %lld rows\ncompile again with efficc --batch %lld, or use "
                   "--gradient-accumulation-steps",
                   (long long)b, (long long)p->batch, (long long)b);
}

static int
check_max_time(const rt_opts *o)
{
    if (!o->max_time || rt_seconds(o->max_time) > 0)
        return RT_OK;
    return rt_fail(RT_USER,
                   "--max-time must be a time such as 90s, 30m, 12h or 01:30:00, not "
                   "'%s'",
                   o->max_time);
}

/* What is given for nothing: option a is given, and `without` is so. */
typedef struct rule {
    rt_opt_id a;
    bool without;
    const char *text;
} rule;

static bool
check_rules(rt_parser *s, int n, const rule *r)
{
    bool go_on = true;
    for (int i = 0; i < n && go_on; i++)
        if (s->given[r[i].a] && r[i].without)
            go_on =
                rt_more(s, rt_fail(RT_USER, "%s %s", as_given(s, r[i].a), r[i].text));
    return go_on;
}

static bool
check_optimizer(rt_parser *s)
{
    const rt_opts *o = s->o;
    bool sgd = !strcmp(o->optim, "sgd");
    const char *adamw = "is of adamw, not of --optim sgd";
    const rule rules[] = {
        {OPT_momentum, !sgd, "needs --optim sgd; adamw has --adam-beta1"},
        {OPT_nesterov, o->nesterov && o->momentum == 0, "needs --momentum"},
        {OPT_adam_beta1, sgd, adamw},
        {OPT_adam_beta2, sgd, adamw},
        {OPT_adam_epsilon, sgd, adamw},
        {OPT_gradient_accumulation_steps, s->given[OPT_global_batch_size],
         "and --global-batch-size say the same twice; give one of them"},
    };
    return check_rules(s, sizeof rules / sizeof *rules, rules);
}

static bool
check_evaluation(rt_parser *s)
{
    const rt_opts *o = s->o;
    bool none = !o->eval_data.n, end_only = none || !strcmp(o->eval_strategy, "no");
    const char *on_the_way =
        none ? "needs --eval-data, and --eval-steps or --eval-strategy epoch"
             : "needs evaluations on the way: --eval-steps or --eval-strategy epoch";
    const rule rules[] = {
        {OPT_eval_steps, none, "needs --eval-data"},
        {OPT_eval_steps, !none && o->eval_steps && strcmp(o->eval_strategy, "steps"),
         "is of --eval-strategy steps"},
        {OPT_eval_strategy, none, "needs --eval-data"},
        {OPT_early_stopping_patience, end_only, on_the_way},
        {OPT_early_stopping_threshold, !o->early_stopping_patience,
         "needs --early-stopping-patience"},
        {OPT_load_best_model_at_end, o->load_best_model_at_end && end_only, on_the_way},
        {OPT_metric_for_best_model, none, "needs --eval-data"},
    };
    return check_rules(s, sizeof rules / sizeof *rules, rules);
}

static bool
check_saving(rt_parser *s)
{
    const rule rules[] = {
        {OPT_save_steps, strcmp(s->o->save_strategy, "steps") != 0,
         "is of --save-strategy steps"},
    };
    return check_rules(s, sizeof rules / sizeof *rules, rules);
}

/* What one option means for another. */
static void
fill_in(rt_parser *s)
{
    rt_opts *o = s->o;
    const char *resume = o->resume_from_checkpoint;
    if (o->eval_steps && !s->given[OPT_eval_strategy])
        o->eval_strategy = "steps";
    if (!strcmp(o->eval_strategy, "steps") && !o->eval_steps)
        o->eval_steps = o->logging_steps;
    if (resume && (!strcmp(resume, "True") || !strcmp(resume, "true")))
        o->resume_from_checkpoint = "auto"; /* scripts for Hugging Face say so */
}

/* Only work that goes on while the host looks away comes in graphs. */
static bool
check_machine(rt_parser *s)
{
    const rule rules[] = {
        {OPT_graphs, rt_unified,
         "is of trainers for a GPU: this one is for the processor, where there are no "
         "graphs"},
    };
    return check_rules(s, sizeof rules / sizeof *rules, rules);
}

void
rt_opts_check(rt_parser *s, const rt_program *p)
{
    const rt_opts *o = s->o;
    fill_in(s);
    if (!o->train_data.n && !o->eval_data.n && !o->predict.n) {
        s->wrong++;
        rt_fail(RT_USER, "nothing to do: give --train-data FILE (or --eval-data, "
                         "--predict)\n--help lists the options");
        return;
    }
    bool go_on = check_training(s) && rt_more(s, check_batch(o, p)) && check_machine(s);
    if (go_on && o->train_data.n)
        go_on = rt_more(s, check_max_time(o)) && check_optimizer(s) &&
                check_evaluation(s) && check_saving(s);
    if (go_on && o->train_data.n && o->eval_data.n)
        go_on = rt_more(s, rt_best_check(o, p));
    if (go_on && o->init_adapter && !p->lora_r)
        rt_more(s, rt_fail(RT_USER, "--init-adapter: this trainer has no adapters\n"
                                    "compile with efficc --lora-r R"));
}
