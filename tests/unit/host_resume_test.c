/* Stopping and going on with the toy program: a run that was stopped, wherever that was, is
 * in the end the run that was not; what is due when; the best evaluation; early stopping. */
#include "test.h"

#include "host_toy.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { STEPS = 20, GRACE_MS = 500 }; /* as in stop.c */
enum { TOO_LATE = 99 };              /* a busy machine stretched a short pause */

/* ---- runs ---- */

static const char *
program_folder(void)
{
    static const float emb[32] = {0.1f, -0.2f, 0.3f, 0.4f,  -0.5f, 0.6f,
                                  0.7f, -0.8f, 0.9f, -1.1f, 0.2f,  0.3f};
    static const float fc[12] = {0.3f, -0.1f, 0.2f, 0.5f, 0.4f, -0.3f}, bias[3] = {0};
    mkdir(toy_path("prog"), 0777);
    rt_st_out t[] = {{"emb.weight", 2, {8, 4}, emb, false, NULL},
                     {"fc.weight", 2, {4, 3}, fc, false, NULL},
                     {"fc.bias", 1, {3}, bias, false, NULL}};
    NEED(toy_base(toy_path("prog/base.safetensors"), t, 3) == RT_OK);
    toy_write("prog/template.onnx", "0123456789");
    toy_write("prog/template.json",
              "{\"size\": 22, \"holes\": [{\"at\": 4, \"bytes\": 12, \"tensor\": "
              "\"fc.bias\", \"transposed\": false, \"dtype\": \"f32\"}]}");
    return toy_path("prog");
}

/* n rows; a few are not supervised, and one epoch's first step has no other. */
static const char *
rows(const char *name, int n)
{
    rt_text t = {0};
    for (int i = 0; i < n; i++)
        rt_putf(&t, "{\"input_ids\": [%d, %d, %d], \"labels\": %d}\n", i % 8, i * 3 % 8,
                i * 5 % 7, i % 6 == 5 ? -100 : (i * i + i / 3) % 3);
    const char *path = toy_write(name, t.s);
    free(t.s);
    return path;
}

/* What happens on the way: a signal in micro-batch, or batch of an evaluation, number n. */
static struct happens {
    int signal, micro, eval;
    int nmicro, neval;
    int ms;           /* a micro-batch takes */
    int again, after; /* another signal, so many ms after the first */
} happens;

static void
wait_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static void
micro(rt_run *r)
{
    wait_ms(happens.ms);
    if (++happens.nmicro == happens.micro) {
        double first = rt_now();
        raise(happens.signal);
        wait_ms(happens.after);
        if (happens.again && happens.after < GRACE_MS && rt_now() - first > 0.2)
            _exit(TOO_LATE);
        raise(happens.again);
    }
    toy_micro(r);
}

static void
eval(rt_run *r)
{
    if (++happens.neval == happens.eval)
        raise(happens.signal);
    toy_eval(r);
}

static int
run_words(int n, char **words)
{
    rt_program p = toy_program();
    p.micro = micro;
    p.eval = eval;
    happens.nmicro = happens.neval = 0;
    int code = toy_run(&p, program_folder(), n, words);
    happens = (struct happens){0};
    return code;
}
#define RUN(...) run_words(TOY_WORDS(__VA_ARGS__))
/* 17 rows in steps of 5, the last of an epoch 2: micro-batches of 2, 2, 1 and of 2. */
#define COMMON                                                                        \
    "--train-data", (char *)rows("train", 17), "--eval-data", (char *)rows("dev", 7), \
        "--global-batch-size", "5", "--max-steps", "20", "--logging-steps", "3",      \
        "--eval-steps", "4", "--learning-rate", "0.05", "--lr-scheduler-type",        \
        "cosine", "--warmup-steps", "3", "--weight-decay", "0.1",                     \
        "--save-total-limit", "0"
#define TO(dir) "--output-dir", (char *)toy_path(dir)

/* ---- what a run left ---- */

static char *
read_all(const char *dir, const char *name, size_t *n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(toy_path(path), "rb");
    NEED(f != NULL);
    char *text = rt_new(1 << 16, 1);
    *n = fread(text, 1, (1 << 16) - 1, f);
    fclose(f);
    return text;
}

static bool
same_file(const char *a, const char *b, const char *name)
{
    size_t na, nb;
    char *x = read_all(a, name, &na), *y = read_all(b, name, &nb);
    bool same = na == nb && !memcmp(x, y, na);
    free(x);
    free(y);
    return same;
}

/* The log without times and the row that ends a run; free it. */
static char *
log_text(const char *dir)
{
    size_t n;
    rt_text out = {0};
    char *text = read_all(dir, "log.jsonl", &n);
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        cJSON *row = cJSON_ParseWithOpts(line, NULL, false);
        cJSON_DeleteItemFromObject(row, "seconds");
        cJSON_DeleteItemFromObject(row, "tokens_per_second");
        char *rest = cJSON_PrintUnformatted(row);
        if (cJSON_HasObjectItem(row, "step"))
            rt_putf(&out, "%s\n", rest);
        free(rest);
        cJSON_Delete(row);
    }
    free(text);
    return out.s;
}

static void
check_same(const char *a, const char *b)
{
    char *x = log_text(a), *y = log_text(b);
    CHECK_STR(x, y);
    free(x);
    free(y);
    CHECK(same_file(a, b, "model.onnx") && same_file(a, b, "model.safetensors"));
}

static int
count_checkpoints(const char *dir)
{
    DIR *d = opendir(toy_path(dir));
    NEED(d != NULL);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += !strncmp(e->d_name, "checkpoint-", 11);
    closedir(d);
    return n;
}

static bool
is_there(const char *dir, int step)
{
    char name[128];
    snprintf(name, sizeof name, "%s/checkpoint-%d/manifest.json", dir, step);
    return !access(toy_path(name), F_OK);
}

/* Value of the last row that has the key; NAN: none has. */
static double
last_logged(const char *dir, const char *key)
{
    size_t n;
    double x = NAN;
    char *text = read_all(dir, "log.jsonl", &n);
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        cJSON *row = cJSON_ParseWithOpts(line, NULL, false);
        cJSON *item = cJSON_GetObjectItemCaseSensitive(row, key);
        x = cJSON_IsNumber(item) ? item->valuedouble : x;
        cJSON_Delete(row);
    }
    free(text);
    return x;
}

static bool
ended(const char *dir, const char *why)
{
    size_t n;
    char *text = read_all(dir, "log.jsonl", &n), end[64];
    snprintf(end, sizeof end, "\"end\": \"%s\"}\n", why);
    bool yes = n > strlen(end) && !strcmp(text + n - strlen(end), end);
    free(text);
    return yes;
}

/* ---- stops ---- */

static int
ends_once(int first, int again, int after)
{
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        happens = (struct happens){
            .micro = 5, .signal = first, .again = again, .after = after};
        _exit(RUN(COMMON, "--overwrite-output-dir", TO("impatient")));
    }
    int status = 0;
    NEED(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* How a trainer of its own process ends: its exit code, or 1000 + a signal. Comes before
 * the other tests, whose threads a child would wait for in vain. */
static int
ends(int first, int again, int after)
{
    int code = TOO_LATE;
    for (int tries = 0; code == TOO_LATE && tries < 20; tries++)
        code = ends_once(first, again, after);
    return code;
}

TEST(a_second_signal_ends_at_once)
{
    CHECK(ends(SIGTERM, SIGTERM, 600) == 1000 + SIGTERM);
    CHECK(!is_there("impatient", 2)); /* it waited for nothing */
    CHECK(ends(SIGINT, SIGTERM, 20) == RT_STOPPED);
    CHECK(ends(SIGINT, SIGINT, 20) == RT_STOPPED);  /* one that a launcher doubled */
    CHECK(is_there("impatient", 2) || !rt_unified); /* a device is a step ahead */
    CHECK(ends(SIGUSR1, SIGUSR1, 20) == RT_STOPPED);
    CHECK(ends(SIGUSR1, SIGTERM, 20) == RT_STOPPED); /* as batch systems do */
    CHECK(ends(SIGTERM, SIGUSR1, 20) == RT_STOPPED);
    CHECK(ends(SIGHUP, SIGHUP, 20) == RT_STOPPED); /* the kernel's and the shell's */
}

TEST(a_stop_changes_nothing)
{
    CHECK(RUN(COMMON, TO("whole")) == 0);
    CHECK(ended("whole", "done"));
    CHECK(last_logged("whole", "global_batch_size") == 5);
    TOY_HEARD("20 of 5 rows (4 an epoch): 3 micro-batches of 2, the last one with 1");
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    static const char *const name[] = {"SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"};
    for (int k = 1; k < STEPS; k += 3) {
        /* steps 1, 2, 3 of an epoch have 3 micro-batches, step 4 has one */
        happens.micro = (k - 1) / 4 * 10 + (k - 1) % 4 * 3 + 1;
        happens.signal = signals[k / 3 % 4];
        char dir[16], want[64];
        snprintf(dir, sizeof dir, "stop%d", k);
        CHECK(RUN(COMMON, TO(dir)) == RT_STOPPED);
        snprintf(want, sizeof want, "%s: step %d of 20 is saved; go on with: trainer ",
                 name[k / 3 % 4], k);
        CHECK(!rt_unified || strstr(toy_said, want));
        CHECK(ended(dir, "signal") && count_checkpoints(dir) == 1);
        CHECK(RUN(COMMON, TO(dir), "--resume-from-checkpoint") == 0);
        check_same(dir, "whole");
        CHECK(ended(dir, "done"));
    }
}

TEST(a_run_may_be_stopped_many_times)
{
    CHECK(RUN(COMMON, "--optim", "sgd", "--momentum", "0.9", TO("calm")) == 0);
    int stops = 0, code;
    do {
        happens.micro = 4;
        happens.signal = SIGTERM;
        code = RUN(COMMON, "--optim", "sgd", "--momentum", "0.9", TO("often"),
                   "--resume-from-checkpoint=auto");
    } while (code == RT_STOPPED && ++stops < STEPS);
    CHECK(code == 0 && (rt_unified ? stops == 10 : stops > 4));
    check_same("often", "calm");
}

TEST(accumulation_goes_on_too)
{
    char *train = (char *)rows("train", 17);
    CHECK(RUN("--train-data", train, "--gradient-accumulation-steps", "3",
              "--num-train-epochs", "4", "--logging-steps", "2", TO("acc")) == 0);
    TOY_HEARD("12 of 6 rows (3 an epoch): 3 micro-batches of 2\n");
    happens = (struct happens){.micro = 14, .signal = SIGTERM};
    CHECK(RUN("--train-data", train, "--gradient-accumulation-steps", "3",
              "--num-train-epochs", "4", "--logging-steps", "2",
              TO("acc_stop")) == RT_STOPPED);
    CHECK(RUN("--train-data", train, "--global-batch-size", "6", "--num-train-epochs",
              "4", "--logging-steps", "2", TO("acc_stop"), "--resume_from_checkpoint",
              "True") == 0);
    check_same("acc_stop", "acc");
}

/* A stop during an evaluation: it is made up for. */
TEST(an_evaluation_cut_short_is_made_up_for)
{
    CHECK(RUN(COMMON, "--load-best-model-at-end", TO("evals")) == 0);
    for (int k = 0; k < 5; k++) {
        char dir[16];
        snprintf(dir, sizeof dir, "cut%d", k);
        happens = (struct happens){.eval = 4 * k + 2, .signal = SIGTERM};
        CHECK(RUN(COMMON, "--load-best-model-at-end", TO(dir)) == RT_STOPPED);
        CHECK(is_there(dir, 4 * k + 4));
        CHECK(RUN(COMMON, "--load-best-model-at-end", TO(dir),
                  "--resume-from-checkpoint") == 0);
        check_same(dir, "evals");
    }
}

TEST(a_stop_in_the_last_step_lets_the_run_end)
{
    char *train = (char *)rows("train", 17);
    happens = (struct happens){.micro = 4, .signal = SIGINT};
    CHECK(RUN("--train-data", train, "--max-steps", "4", TO("last")) == 0);
    CHECK(ended("last", "done") && count_checkpoints("last") == 1);
    CHECK(!access(toy_path("last/model.onnx"), F_OK));
}

TEST(a_stop_without_training_leaves_nothing_half)
{
    char *dev = (char *)rows("dev", 7);
    happens = (struct happens){.eval = 2, .signal = SIGTERM};
    CHECK(RUN("--predict", dev, TO("half")) == RT_STOPPED);
    TOY_HEARD("SIGTERM: no predictions were written\n");
    CHECK(unlink(toy_path("half/.lock")) == 0 && rmdir(toy_path("half")) == 0);
    happens = (struct happens){.eval = 2, .signal = SIGTERM};
    CHECK(RUN("--predict", dev) == RT_STOPPED);
    TOY_HEARD("SIGTERM: more predictions would have followed\n");
    /* 4 steps of 2 rows, an evaluation of 4 batches, then the predictions */
    happens = (struct happens){.eval = 5, .signal = SIGTERM};
    CHECK(RUN("--train-data", (char *)rows("train", 17), "--max-steps", "4",
              "--eval-data", dev, "--predict", dev, TO("guess")) == RT_STOPPED);
    TOY_HEARD("the results of training are there");
    CHECK(!access(toy_path("guess/model.onnx"), F_OK));
    CHECK(access(toy_path("guess/predictions.jsonl"), F_OK));
}

TEST(handlers_go_with_the_run)
{
    struct sigaction now;
    signal(SIGUSR1, SIG_IGN);
    happens = (struct happens){.micro = 5, .signal = SIGUSR1};
    CHECK(RUN("--train-data", (char *)rows("train", 17), "--max-steps", "4",
              TO("deaf")) == 0);
    CHECK(ended("deaf", "done"));
    CHECK(!sigaction(SIGUSR1, NULL, &now) && now.sa_handler == SIG_IGN);
    signal(SIGUSR1, SIG_DFL);
    CHECK(!sigaction(SIGTERM, NULL, &now) && now.sa_handler == SIG_DFL);
}

TEST(a_failure_ends_the_log)
{
    mkdir(toy_path("stuck"), 0777);
    mkdir(toy_path("stuck/checkpoint-6.tmp"), 0777);
    mkdir(toy_path("stuck/checkpoint-6.tmp/folder"), 0777);
    CHECK(RUN(COMMON, "--save-steps", "6", "--overwrite-output-dir", TO("stuck")) == 1);
    TOY_HEARD("checkpoint-6.tmp: cannot be made");
    CHECK(last_logged("stuck", "step") == 6 && ended("stuck", "failed"));
    mkdir(toy_path("full"), 0777);
    mkdir(toy_path("full/model.onnx"), 0777);
    CHECK(RUN(COMMON, "--overwrite-output-dir", TO("full")) == 1);
    CHECK(last_logged("full", "step") == 20 && ended("full", "failed"));
}

TEST(a_run_needs_no_page)
{
    mkdir(toy_path("no_page"), 0777);
    mkdir(toy_path("no_page/report.html"), 0777);
    CHECK(RUN(COMMON, "--save-steps", "6", "--overwrite-output-dir", TO("no_page")) ==
          0);
    TOY_HEARD("warning: ");
    TOY_HEARD("no_page/report.html is there and is not a file");
    CHECK(ended("no_page", "done") && count_checkpoints("no_page") == 4);
}

TEST(max_time)
{
    happens.ms = 4;
    CHECK(RUN(COMMON, "--max-time", "0.05s", TO("time")) == RT_STOPPED);
    TOY_HEARD("--max-time: step ");
    CHECK(ended("time", "max time") && count_checkpoints("time") == 1);
    CHECK(RUN(COMMON, "--max-time", "10m", TO("time"), "--resume-from-checkpoint") ==
          0);
    CHECK(RUN(COMMON, TO("no_time")) == 0);
    check_same("time", "no_time");
}

TEST(a_run_that_is_complete)
{
    CHECK(RUN(COMMON, "--save-steps", "10", TO("end")) == 0);
    CHECK(RUN(COMMON, "--save-steps", "10", TO("copy")) == 0);
    unlink(toy_path("end/model.onnx"));
    CHECK(RUN(COMMON, "--save-steps", "10", TO("end"), "--resume-from-checkpoint") ==
          0);
    TOY_HEARD("the run was complete at step 20");
    check_same("end", "copy");
    /* and it can be made longer */
    CHECK(RUN(COMMON, "--max-steps", "24", TO("end"), "--resume-from-checkpoint") == 0);
    TOY_HEARD("goes on after step 20");
    CHECK(last_logged("end", "step") == 24);
}

static ino_t
file_number(const char *name)
{
    struct stat st;
    CHECK(!stat(toy_path(name), &st));
    return st.st_ino;
}

/* No option is needed for that, and the last checkpoint is written once. */
TEST(a_run_can_be_made_longer)
{
    CHECK(RUN(COMMON, TO("short")) == 0);
    CHECK(count_checkpoints("short") == 1 && is_there("short", 20));
    ino_t before = file_number("short/checkpoint-20/manifest.json");
    CHECK(RUN(COMMON, TO("short"), "--resume-from-checkpoint") == 0);
    TOY_HEARD("the run was complete at step 20");
    CHECK(file_number("short/checkpoint-20/manifest.json") == before);
    CHECK(RUN(COMMON, "--max-steps", "22", "--save-total-limit", "1", TO("short"),
              "--resume-from-checkpoint") == 0);
    CHECK(last_logged("short", "step") == 22 && count_checkpoints("short") == 1 &&
          is_there("short", 22));
}

TEST(a_checkpoint_as_initial_values)
{
    char *train = (char *)rows("train", 17);
    CHECK(RUN("--train-data", train, "--max-steps", "4", "--save-steps", "4",
              TO("init")) == 0);
    CHECK(RUN("--eval-data", train, "--init-tensors",
              (char *)toy_path("init/checkpoint-4"), TO("init_a")) == 0);
    CHECK(RUN("--eval-data", train, "--init-tensors",
              (char *)toy_path("init/model.safetensors"), TO("init_b")) == 0);
    CHECK(last_logged("init_a", "eval_loss") == last_logged("init_b", "eval_loss"));
    CHECK(RUN("--eval-data", train, "--init-tensors", (char *)toy_path("init"),
              TO("init_c")) == RT_USER);
    TOY_HEARD("init/model.safetensors");
}

/* ---- what is due ---- */

TEST(when_to_save_and_evaluate)
{
    CHECK(RUN(COMMON, "--save-steps", "8", TO("due")) == 0);
    CHECK(count_checkpoints("due") == 3 && is_there("due", 8) && is_there("due", 16) &&
          is_there("due", 20));
    char *train = (char *)rows("train", 17), *dev = (char *)rows("dev", 7);
    CHECK(RUN("--train-data", train, "--eval-data", dev, "--global-batch-size", "5",
              "--num-train-epochs", "2.5", "--save-strategy", "epoch",
              "--eval-strategy", "epoch", TO("epochs")) == 0);
    CHECK(count_checkpoints("epochs") == 2 && is_there("epochs", 8) &&
          is_there("epochs", 10));
    char *log = log_text("epochs");
    CHECK(strstr(log, "{\"step\":4,\"eval_loss\"") != NULL);
    CHECK(strstr(log, "{\"step\":8,\"eval_loss\"") != NULL);
    CHECK(strstr(log, "{\"step\":10,\"eval_loss\"") != NULL);
    free(log);
    CHECK(RUN(COMMON, "--save-strategy", "no", TO("never")) == 0);
    CHECK(count_checkpoints("never") == 0);
    CHECK(RUN("--train-data", train, "--eval-data", dev, "--eval-strategy", "steps",
              "--logging-steps", "6", "--max-steps", "7", TO("by_log")) == 0);
    log = log_text("by_log");
    CHECK(strstr(log, "{\"step\":6,\"eval_loss\"") != NULL);
    CHECK(strstr(log, "{\"step\":7,\"eval_loss\"") != NULL);
    free(log);
}

/* ---- the best ---- */

/* A learning rate that spoils the model in the end. */
#define WILD                                                                          \
    "--train-data", (char *)rows("train", 17), "--eval-data", (char *)rows("dev", 7), \
        "--max-steps", "40", "--eval-steps", "2", "--logging-steps", "1",             \
        "--learning-rate", "1.5", "--lr-scheduler-type", "constant"

TEST(the_best_evaluation_is_what_remains)
{
    CHECK(RUN(WILD, "--load-best-model-at-end", "--save-total-limit", "1",
              "--save-steps", "10", TO("best")) == 0);
    int best = 0;
    double least = INFINITY;
    char *log = log_text("best");
    for (char *line = log; *line; line = strchr(line, '\n') + 1) {
        cJSON *row = cJSON_ParseWithOpts(line, NULL, false);
        cJSON *loss = cJSON_GetObjectItemCaseSensitive(row, "eval_loss");
        if (loss && loss->valuedouble < least) {
            least = loss->valuedouble;
            best = cJSON_GetObjectItemCaseSensitive(row, "step")->valueint;
        }
        cJSON_Delete(row);
    }
    free(log);
    CHECK(best > 0 && best < 40 && last_logged("best", "eval_loss") > least);
    CHECK(is_there("best", best) && is_there("best", 40));
    CHECK(count_checkpoints("best") == 2);
    char want[64];
    snprintf(want, sizeof want, "best      step %d: loss ", best);
    TOY_HEARD(want);
    CHECK(RUN("--eval-data", (char *)rows("dev", 7), "--init-tensors",
              (char *)toy_path("best/model.safetensors"), TO("best_eval")) == 0);
    CHECK_NEAR(last_logged("best_eval", "eval_loss"), least, 1e-8);
}

TEST(early_stopping_ends_a_run)
{
    CHECK(RUN(WILD, "--early-stopping-patience", "3", TO("early")) == 0);
    TOY_HEARD("loss has not improved in 3 evaluations");
    CHECK(ended("early", "early stopping"));
    double at = last_logged("early", "step");
    CHECK(at < 40 && !access(toy_path("early/model.onnx"), F_OK));
    CHECK(count_checkpoints("early") == 1 && is_there("early", (int)at));
    /* patience survives a stop */
    for (int k = 2; k < (int)at; k += 3) {
        char dir[16];
        snprintf(dir, sizeof dir, "early%d", k);
        happens = (struct happens){.micro = k, .signal = SIGTERM};
        CHECK(RUN(WILD, "--early-stopping-patience", "3", TO(dir)) == RT_STOPPED);
        CHECK(RUN(WILD, "--early-stopping-patience", "3", TO(dir),
                  "--resume-from-checkpoint") == 0);
        check_same(dir, "early");
    }
}

/* A best value counts only for a run that can use it. */
TEST(a_best_of_another_run_is_forgotten)
{
    happens = (struct happens){.micro = 9, .signal = SIGTERM};
    CHECK(RUN(WILD, TO("other")) == RT_STOPPED);
    CHECK(RUN(WILD, "--load-best-model-at-end", TO("other"),
              "--resume-from-checkpoint") == 0);
    TOY_HEARD("does not count: its weights were not saved here");
    happens = (struct happens){.micro = 9, .signal = SIGTERM};
    CHECK(RUN(WILD, TO("metric")) == RT_STOPPED);
    CHECK(RUN(WILD, "--metric-for-best-model", "eval_accuracy", TO("metric"),
              "--resume-from-checkpoint") == 0);
    TOY_HEARD("does not count: it was of another metric");
    TOY_HEARD(": eval_accuracy ");
    happens = (struct happens){.micro = 9, .signal = SIGTERM};
    CHECK(RUN(WILD, TO("data")) == RT_STOPPED);
    CHECK(RUN(WILD, "--eval-data", (char *)rows("dev", 7), (char *)rows("more", 5),
              TO("data"), "--resume-from-checkpoint") == 0);
    TOY_HEARD("does not count: it was of other --eval-data");
}

static rt_train_state
after(const char *metric, int n, const double *values, double threshold)
{
    rt_opts o = {.metric_for_best_model = metric,
                 .early_stopping_threshold = threshold};
    rt_program p = toy_program();
    rt_run run = {.program = &p};
    rt_data none = {0};
    rt_job job = {.run = &run, .opts = &o, .eval = &none};
    rt_train_state s = {0};
    for (int i = 0; i < n; i++) {
        rt_log_value row[] = {{"eval_loss", values[i], NULL},
                              {"eval_accuracy", values[i], NULL}};
        s.step = 10 * (i + 1);
        rt_best_see(&job, &s, row);
        s.evaluated = s.step;
    }
    return s;
}

TEST(improvements_and_patience)
{
    const double falls[] = {3, 2, 2, 2.5, 1.95};
    rt_train_state s = after("loss", 5, falls, 0);
    CHECK(s.best == 1.95 && s.best_step == 50 && s.worse == 0);
    s = after("eval_loss", 4, falls, 0);
    CHECK(s.best == 2 && s.best_step == 20 && s.worse == 2);
    s = after("accuracy", 5, falls, 0);
    CHECK(s.best == 3 && s.best_step == 10 && s.worse == 4);
    /* little is no improvement, but the best all the same, as in the Trainer */
    s = after("loss", 5, falls, 0.5);
    CHECK(s.best == 1.95 && s.best_step == 50 && s.worse == 3);
    /* not a number is worse, except that the first evaluation counts as good */
    const double bad[] = {NAN, NAN, 2, NAN};
    s = after("loss", 1, bad, 0);
    CHECK(!s.best_step && s.worse == 0);
    s = after("loss", 2, bad, 0);
    CHECK(!s.best_step && s.worse == 1);
    s = after("loss", 4, bad, 0);
    CHECK(s.best == 2 && s.best_step == 30 && s.worse == 1);
}

TEST(norms_that_stand_out)
{
    rt_train_state s = {0};
    for (int i = 0; i < 15; i++)
        CHECK(rt_norm_see(&s, 1 + i % 3) == 0);
    CHECK(rt_norm_see(&s, 1000) == 0); /* too early to tell */
    CHECK(rt_norm_see(&s, 1000) == 2);
    CHECK(rt_norm_see(&s, 20) == 0);
    CHECK(rt_norm_see(&s, 20.1) == 2);
    CHECK(s.outliers == 2 && s.nnorm == 19);
    for (int i = 0; i < 64; i++)
        rt_norm_see(&s, 100); /* the new usual */
    CHECK(rt_norm_see(&s, 900) == 0);
    rt_train_state zero = {0};
    for (int i = 0; i < 40; i++)
        CHECK(rt_norm_see(&zero, 0) == 0);
}

TEST(an_outlier_is_told_once)
{
    /* one row of 40 pulls hard in a model that has learnt the others */
    rt_text t = {0};
    for (int i = 0; i < 40; i++)
        rt_putf(&t, "{\"input_ids\": [%d], \"labels\": %d}\n", i % 8,
                i == 30 || i == 36 ? (i + 1) % 2 : i % 2);
    const char *path = toy_write("odd", t.s);
    free(t.s);
    CHECK(RUN("--train-data", (char *)path, "--no-shuffle", "--num-train-epochs", "6",
              "--learning-rate", "0.1", "--logging-steps", "1", TO("odd_out")) == 0);
    TOY_HEARD("times the median of the steps before");
    int told = 0;
    for (const char *p = toy_said; (p = strstr(p, "times the median")); p++)
        told++;
    char *log = log_text("odd_out");
    int logged = 0;
    for (const char *p = log; (p = strstr(p, "\"grad_norm_outliers\":1")); p++)
        logged++;
    CHECK(told == 1 && logged > 1 && logged < 15);
    free(log);
}
