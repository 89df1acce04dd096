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
    TOY_HEARD("efficc chooses the precision");
    CHECK(PARSE("--zzzzzzzzzz") == 1);
    TOY_HEARD("--help lists them");
}

TEST(options_of_training_need_training)
{
    CHECK(PARSE("--eval-data", "F", "--max-steps", "5", "--no-shuffle",
                "--learning-rate=1e-3") == 1);
    TOY_HEARD("--max-steps is for training: it needs --train-data");
    TOY_HEARD("--shuffle is for training");
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
    TOY_HEARD("efficc chooses the precision");
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
