/* The trainer's command line. */
#include "test.h"

#include "host_toy.h"

static rt_opts o;

static int
parse(int n, char **words)
{
    char *argv[32] = {"trainer"};
    memcpy(argv + 1, words, (size_t)n * sizeof *words);
    rt_program p = toy_program();
    rt_opts_free(&o); /* of the test before */
    toy_listen();
    int code = rt_args(n + 1, argv, &p, &o);
    toy_heard();
    return code;
}
#define PARSE(...) \
    parse(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *), (char *[]){__VA_ARGS__})

TEST(defaults_are_those_of_hugging_face)
{
    CHECK(PARSE("--train-data", "x") == -1);
    CHECK(o.learning_rate == 5e-5 && o.num_train_epochs == 3 && o.max_steps == -1);
    CHECK(o.weight_decay == 0 && o.max_grad_norm == 1 && o.seed == 42 && o.shuffle);
    CHECK(o.adam_beta1 == 0.9 && o.adam_beta2 == 0.999 && o.adam_epsilon == 1e-8);
    CHECK(o.gradient_accumulation_steps == 1 && o.warmup_steps == 0);
    CHECK_STR(o.lr_scheduler_type, "linear");
    CHECK_STR(o.optim, "adamw");
    CHECK_STR(o.decay_params, "matrices");
    CHECK_STR(o.output_dir, "trainer_output");
}

TEST(the_fixed_words)
{
    CHECK(PARSE("--train-data", "F", "--shuffle", "false", "--max-steps", "20",
                "--learning-rate", "1e-3", "--lr-scheduler-type", "constant",
                "--weight-decay", "0.01", "--decay-params", "all", "--max-grad-norm",
                "0", "--logging-steps", "1", "--output-dir", "D",
                "--gradient-accumulation-steps", "2") == -1);
    CHECK(!o.shuffle && o.max_steps == 20 && o.learning_rate == 1e-3);
    CHECK(o.max_grad_norm == 0 && o.logging_steps == 1);
    CHECK(o.gradient_accumulation_steps == 2);
    CHECK_STR(o.decay_params, "all");
    CHECK_STR(o.output_dir, "D");
}

TEST(dash_and_underscore_are_the_same)
{
    CHECK(PARSE("--train_data=F", "--max_grad-norm=2", "--overwrite_output_dir") == -1);
    CHECK(o.train_data.n == 1);
    CHECK_STR(o.train_data.at[0], "F");
    CHECK(o.max_grad_norm == 2 && o.overwrite_output_dir);
}

TEST(flags)
{
    CHECK(PARSE("--no-shuffle", "--train-data", "F") == -1 && !o.shuffle);
    CHECK(PARSE("--shuffle=no", "--train-data", "F") == -1 && !o.shuffle);
    CHECK(PARSE("--shuffle", "--train-data", "F") == -1 && o.shuffle);
    CHECK(PARSE("--shuffle=maybe", "--train-data", "F") == 1);
    TOY_HEARD("true or false");
}

TEST(wrong_values_are_refused)
{
    CHECK(PARSE("--train-data", "F", "--max-steps", "1.5") == 1);
    TOY_HEARD("--max-steps needs a whole number, not '1.5'");
    CHECK(PARSE("--train-data", "F", "--learning-rate", "fast") == 1);
    TOY_HEARD("--learning-rate needs a number");
    CHECK(PARSE("--train-data", "F", "--learning-rate", "nan") == 1);
    CHECK(PARSE("--train-data", "F", "--learning-rate", "-1") == 1);
    TOY_HEARD("must be from 0");
    CHECK(PARSE("--train-data", "F", "--adam-beta1", "1") == 1);
    TOY_HEARD("--adam-beta1 must be from 0 up to but not including 1, not 1");
    CHECK(PARSE("--train-data", "F", "--adam-beta2", "0.9999999") == -1);
    CHECK(PARSE("--train-data", "F", "--threads", "0") == 1);
    TOY_HEARD("must be from 1");
    CHECK(PARSE("--train-data", "F", "--optim", "lion") == 1);
    TOY_HEARD("adamw|");
    CHECK(PARSE("--train-data", "F", "--optim", "adam") == 1); /* not a prefix match */
    CHECK(PARSE("--train-data") == 1);
    TOY_HEARD("needs a value");
    CHECK(PARSE("F") == 1);
    TOY_HEARD("unexpected argument 'F'");
}

TEST(unknown_options_get_a_suggestion)
{
    CHECK(PARSE("--learning-rat", "1") == 1);
    TOY_HEARD("did you mean --learning-rate?");
    CHECK(PARSE("--weight_dekay", "1") == 1);
    TOY_HEARD("did you mean --weight-decay?");
    CHECK(PARSE("--epochs", "1") == 1);
    TOY_HEARD("--num-train-epochs");
    CHECK(PARSE("--bf16") == 1);
    TOY_HEARD("the precision is compiled in: efficc --bf16");
    CHECK(PARSE("--zzzzzzzzzz") == 1);
    TOY_HEARD("--help lists them");
}

TEST(options_of_training_need_training)
{
    CHECK(PARSE("--eval-data", "F", "--max-steps", "5", "--no-shuffle",
                "--learning-rate=1e-3") == 1);
    TOY_HEARD("--max-steps is for training: it needs --train-data");
    TOY_HEARD("--no-shuffle is for training");
    TOY_HEARD("--learning-rate is for training");
    CHECK(PARSE("--predict", "F", "--max-steps", "-1") == 1);
    CHECK(PARSE("--predict", "F", "--eval-steps", "5") == 1);
    TOY_HEARD("--eval-steps is for training");
    CHECK(PARSE("--predict", "F", "--seed", "1", "--init-tensors", "T", "--output-dir",
                "D", "--overwrite-output-dir", "--threads", "1",
                "--per-device-train-batch-size", "2") == -1);
}

static int
count(const char *words)
{
    int n = 0;
    for (const char *p = toy_said; (p = strstr(p, words)); p++)
        n++;
    return n;
}

TEST(all_wrong_options_are_told)
{
    CHECK(PARSE("--max-stepz", "5", "F", "--optim", "lion", "--bf16", "--lr", "1e-3",
                "--threads", "--seed", "x") == 1);
    CHECK(count("error:") == 7);
    TOY_HEARD("did you mean --max-steps?");
    TOY_HEARD("unexpected argument 'F'");
    TOY_HEARD("not 'lion'");
    TOY_HEARD("the precision is compiled in: efficc --bf16");
    TOY_HEARD("the option is --learning-rate");
    TOY_HEARD("--threads needs a value");
    TOY_HEARD("--seed needs a whole number, not 'x'");
    CHECK(PARSE("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l") == 1);
    CHECK(count("error:") == 10);
    CHECK(PARSE("--predict", "F", "--init-adapter", "A",
                "--per-device-train-batch-size", "8", "--optim", "sgd") == 1);
    CHECK(count("error:") == 3);
    CHECK(PARSE("--zzzzzzzzzz", "--help") == 1);
}

TEST(options_that_do_not_go_together)
{
    CHECK(PARSE("--output-dir", "D") == 1);
    TOY_HEARD("nothing to do");
    CHECK(PARSE("--train-data", "F", "--per-device-train-batch-size", "8") == 1);
    TOY_HEARD("efficc --batch 8");
    CHECK(PARSE("--train-data", "F", "--per-device-train-batch-size", "2") == -1);
    CHECK(PARSE("--train-data", "F", "--eval-steps", "8") == 1);
    CHECK(PARSE("--predict", "F", "--save-gradients", "G") == 1);
    CHECK(PARSE("--predict", "F", "--init-adapter", "A") == 1);
    TOY_HEARD("has no adapters");
    CHECK(PARSE("--predict", "F") == -1 && !o.output_dir);
}

#define REFUSED(text, ...)                                   \
    do {                                                     \
        CHECK(PARSE("--train-data", "F", __VA_ARGS__) == 1); \
        CHECK(count("error:") == 1);                         \
        TOY_HEARD(text);                                     \
    } while (0)
#define TAKEN(...) CHECK(PARSE("--train-data", "F", __VA_ARGS__) == -1)

TEST(options_given_for_nothing)
{
    REFUSED("--momentum needs --optim sgd", "--momentum", "0.9");
    REFUSED("--nesterov needs --momentum", "--nesterov", "--optim", "sgd");
    TAKEN("--nesterov=no");
    TAKEN("--nesterov", "--optim", "sgd", "--momentum", "0.9");
    REFUSED("--adam-beta1 is of adamw", "--optim", "sgd", "--adam-beta1", "0.8");
    REFUSED("--adam-epsilon is of adamw", "--optim", "sgd", "--adam-epsilon", "1e-6");
    REFUSED("--gradient-accumulation-steps and --global-batch-size say the same",
            "--global-batch-size", "7", "--gradient-accumulation-steps", "1");
    REFUSED("--save-steps is of --save-strategy steps", "--save-strategy", "no",
            "--save-steps", "5");
    TAKEN("--save-strategy", "steps", "--save-steps", "5");
    REFUSED("--max-time must be a time such as 90s", "--max-time", "soon");
    TAKEN("--max-time", "1:30:00");
    REFUSED("--eval-data: the name of a file is empty", "--eval-data", "");
    REFUSED("--save-strategy must be one of", "--save-strategy", "best");
}

TEST(options_of_evaluations)
{
    REFUSED("--eval-strategy needs --eval-data", "--eval-strategy", "epoch");
    REFUSED("--early-stopping-patience needs --eval-data", "--early-stopping-patience",
            "2");
    REFUSED("--load-best-model-at-end needs --eval-data", "--load-best-model-at-end");
    REFUSED("--metric-for-best-model needs --eval-data", "--metric-for-best-model",
            "loss");
    REFUSED("--early-stopping-patience needs evaluations on the way", "--eval-data",
            "E", "--early-stopping-patience", "2");
    REFUSED("--load-best-model-at-end needs evaluations on the way", "--eval-data", "E",
            "--load-best-model-at-end");
    TAKEN("--eval-data", "E", "--load-best-model-at-end=false");
    REFUSED("--early-stopping-threshold needs --early-stopping-patience", "--eval-data",
            "E", "--eval-steps", "5", "--early-stopping-threshold", "0.1");
    REFUSED("--eval-steps is of --eval-strategy steps", "--eval-data", "E",
            "--eval-steps", "5", "--eval-strategy", "epoch");
    REFUSED("has no 'eval_f1'", "--eval-data", "E", "--metric-for-best-model",
            "eval_f1");
    TOY_HEARD("it has loss, accuracy");
    REFUSED("has no 'perplexity'", "--eval-data", "E", "--metric-for-best-model",
            "perplexity"); /* it classifies */
    TAKEN("--eval-data", "E", "--eval-steps", "5", "--early-stopping-patience", "2",
          "--load-best-model-at-end", "--metric-for-best-model", "eval_accuracy");
    CHECK_STR(o.eval_strategy, "steps");
    TAKEN("--eval-data", "E", "--eval-strategy", "steps", "--logging-steps", "7");
    CHECK(o.eval_steps == 7);
    TAKEN("--eval-data", "E", "--eval-steps", "0");
    CHECK_STR(o.eval_strategy, "no");
}

TEST(a_checkpoint_may_go_without_a_name)
{
    TAKEN("--resume-from-checkpoint");
    CHECK_STR(o.resume_from_checkpoint, "auto");
    TAKEN("--resume-from-checkpoint", "--seed", "3");
    CHECK_STR(o.resume_from_checkpoint, "auto");
    CHECK(o.seed == 3);
    TAKEN("--resume_from_checkpoint", "True");
    CHECK_STR(o.resume_from_checkpoint, "auto");
    TAKEN("--resume-from-checkpoint", "D/checkpoint-5");
    CHECK_STR(o.resume_from_checkpoint, "D/checkpoint-5");
}

TEST(options_as_json)
{
    rt_text t = {0};
    TAKEN("--learning-rate", "0.1", "--no-shuffle", "--max-steps", "7", "--report-to",
          "tensorboard", "--output-dir", "a \"b\"", "--eval-data", "x", "y", "--seed",
          "42");
    rt_opts_json(&o, &t);
    CHECK_STR(t.s, "{\"train_data\": [\"F\"], \"eval_data\": [\"x\", \"y\"], "
                   "\"shuffle\": false, \"max_steps\": 7, \"learning_rate\": "
                   "0.10000000000000001, \"output_dir\": \"a \\\"b\\\"\", "
                   "\"report_to\": \"tensorboard\"}");
    free(t.s);
}

static const char *
go_on(int n, char **words)
{
    static rt_text t; /* reachable to the end, so no leak */
    t.n = 0;
    rt_go_on(n, words, &t);
    return t.s;
}
#define GO_ON(...) \
    go_on(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *), (char *[]){__VA_ARGS__})

TEST(the_command_that_goes_on)
{
    CHECK_STR(GO_ON("m.efficc/trainer", "--train-data", "a.jsonl:0.7", "--seed=1"),
              "m.efficc/trainer --train-data a.jsonl:0.7 --seed=1 "
              "--resume-from-checkpoint");
    CHECK_STR(GO_ON("t", "--output_dir", "my run", "--overwrite_output_dir", "true",
                    "--resume-from-checkpoint", "old/checkpoint-3", "--max-time", "1h"),
              "t --output_dir 'my run' --max-time 1h --resume-from-checkpoint");
    CHECK_STR(GO_ON("t", "--resume-from-checkpoint", "--seed", "1", "--train-data",
                    "it's", "$x", ""),
              "t --seed 1 --train-data 'it'\\''s' '$x' '' --resume-from-checkpoint");
    CHECK_STR(GO_ON("t", "--resume_from_checkpoint=auto", "--overwrite-output-dir"),
              "t --resume-from-checkpoint");
}

TEST(times)
{
    CHECK(rt_seconds("90") == 90 && rt_seconds("90s") == 90 &&
          rt_seconds("1.5h") == 5400);
    CHECK(rt_seconds("30m") == 1800 && rt_seconds("2d") == 172800);
    CHECK(rt_seconds("01:02:03") == 3723 && rt_seconds("100:00:00") == 360000);
    CHECK(rt_seconds("") < 0 && rt_seconds("s") < 0 && rt_seconds("-5s") < 0);
    CHECK(rt_seconds("5x") < 0 && rt_seconds("5 s") < 0 && rt_seconds("5ms") < 0);
    CHECK(rt_seconds("10:30") < 0 && rt_seconds("1:2:3:4") < 0 &&
          rt_seconds("1:2:") < 0);
    CHECK(rt_seconds("1h:2:3") < 0 && rt_seconds("nan") < 0 && rt_seconds("inf") < 0);
}

TEST(help_names_every_option_in_80_columns)
{
    CHECK(PARSE("--help") == 0);
    TOY_HEARD("times the learning rate [0]");
    static const char *const name[] = {
#define OPT(field, kind, def, low, high, words, arg, group, when, help) #field,
#define MOVED(name, text)
#include "runtime/host/options.def"
#undef OPT
#undef MOVED
    };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char spelled[64];
        snprintf(spelled, sizeof spelled, "  --%s", name[i]);
        for (char *c = spelled; *c; c++)
            *c = *c == '_' ? '-' : *c;
        TOY_HEARD(spelled);
    }
    size_t longest = 0;
    for (const char *line = toy_said; *line; line += strcspn(line, "\n") + 1)
        longest = strcspn(line, "\n") > longest ? strcspn(line, "\n") : longest;
    CHECK(longest <= 80);
}
