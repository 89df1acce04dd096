/* kill_test.c -- kill -9 at any moment loses nothing but the steps since the last checkpoint.
 *
 * A real trainer that saves every step or two is killed again and again, at times drawn from
 * a seed: after a while, or just when a certain file of a checkpoint appears, so that many
 * kills fall into saving. It goes on with auto each time, and what it leaves at last must be
 * byte for byte what a run leaves that nobody disturbed: results, last checkpoint, state and
 * log (but for times). After each kill every folder with a checkpoint's name must be whole.
 * EFFICC_KILLS in the environment says how many (default 18).
 */
#include "golden.h"
#include "test.h"

#include "runtime/host/checkpoint_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct plan { /* a trainer and its run */
    const char *name, *model, *compile, *options;
    int tokens; /* ids are below */
    bool best;  /* the results are not the last step's */
} plan;
static const plan plans[] = {
    {"full", "gpt2-legacy17", "--fp32",
     "--save-steps 1 --eval-steps 5 --logging-steps 3 --load-best-model-at-end "
     "--learning-rate 1e-2 --max-steps 120",
     60, true},
    {"lora", "bert-legacy17-dedup", "--fp32 --lora-r 4",
     "--save-steps 2 --save-total-limit 1 --eval-steps 9 --logging-steps 4 --optim sgd "
     "--momentum 0.9 --learning-rate 0.1 --global-batch-size 3 --max-steps 240",
     60, false},
    {"bf16", "gpt2-legacy17", "--bf16 --dropout 0.1",
     "--save-steps 1 --eval-steps 20 --logging-steps 3 --learning-rate 1e-3 "
     "--max-steps 80",
     60, false},
};
enum { PLANS = sizeof plans / sizeof *plans };

typedef struct victim {
    const plan *plan;
    const char *dir; /* of its program and data */
    char command[4096];
    char out[1024];
} victim;

static uint64_t drawn = 20240229;

static int
draw(int n) /* 0 .. n-1 */
{
    drawn = drawn * 6364136223846793005 + 1442695040888963407;
    return (int)((drawn >> 33) % (uint64_t)n);
}

static void
wait_us(int us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000L};
    nanosleep(&t, NULL);
}

static void
write_rows(const char *path, const plan *p, int rows)
{
    FILE *f = fopen(path, "w");
    for (int i = 0; i < rows; i++) {
        fprintf(f, "{\"input_ids\": [%d", draw(p->tokens));
        for (int k = draw(7); k >= 0; k--)
            fprintf(f, ", %d", draw(p->tokens));
        fprintf(f, strcmp(p->name, "lora") ? "]}\n" : "], \"labels\": %d}\n", draw(2));
    }
    fclose(f);
}

static bool
prepare(victim *v, const plan *p)
{
    v->plan = p;
    v->dir = strdup(fresh_dir(fmt("kill-%s", p->name)));
    write_rows(fmt("%s/train.jsonl", v->dir), p, 40);
    write_rows(fmt("%s/eval.jsonl", v->dir), p, 6);
    snprintf(v->command, sizeof v->command,
             "'%s/prog/trainer' --train-data '%s/train.jsonl' --eval-data "
             "'%s/eval.jsonl' %s --threads 2",
             v->dir, v->dir, v->dir, p->options);
    return !run(fmt("%s/compile.log", v->dir),
                "'%s/efficc' '%s/tests/cases/%s/model.onnx' %s --batch 2 --seq 8 "
                "--threads 2 --quiet -o '%s/prog'",
                BIN_DIR, SRC_DIR, p->model, p->compile, v->dir);
}

/* ---- killing ---- */

static bool
appears(const char *pattern)
{
    glob_t g;
    bool found = !glob(pattern, GLOB_NOSORT, NULL, &g);
    globfree(&g);
    return found;
}

/* Waits until the moment has come or the trainer has ended. */
static void
wait_for_moment(const victim *v, pid_t pid)
{
    static const char *const file[] = {"",
                                       "/weights.safetensors.tmp",
                                       "/weights.safetensors",
                                       "/optimizer.safetensors.tmp",
                                       "/optimizer.safetensors",
                                       "/manifest.json.tmp",
                                       "/manifest.json"};
    enum { FILES = sizeof file / sizeof *file };
    siginfo_t info = {0};
    wait_us(draw(120000));
    int k = draw(2 * FILES);
    if (k >= FILES)
        return;
    char pattern[2048];
    snprintf(pattern, sizeof pattern, "%s/checkpoint-*.tmp%s", v->out, file[k]);
    while (!appears(pattern) && !info.si_pid)
        waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (draw(2))
        wait_us(draw(4000));
}

/* Starts the trainer, kills it; true: it had not ended before. */
static bool
strike(const victim *v)
{
    char command[8192];
    snprintf(command, sizeof command,
             "exec %s --output-dir '%s' --resume-from-checkpoint auto "
             ">>'%s/killed.log' 2>&1",
             v->command, v->out, v->dir);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    wait_for_moment(v, pid);
    kill(pid, SIGKILL);
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

/* Each folder under its final name is whole. */
static void
check_whole(const char *out)
{
    int n;
    char why[RT_WHY];
    int64_t *step = rt_checkpoint_list(out, &n);
    for (int i = 0; i < n; i++) {
        char *dir = rt_checkpoint_path(out, step[i]);
        rt_manifest *m = rt_checkpoint_check(dir, why);
        if (!m)
            printf("%s: %s\n", dir, why);
        CHECK(m && m->state.step == step[i]);
        rt_manifest_free(m);
        free(dir);
    }
    free(step);
}

/* ---- comparing ---- */

static void
same_bytes(const char *a, const char *b, const char *name)
{
    bool same = !run("/dev/null", "cmp '%s/%s' '%s/%s'", a, name, b, name);
    if (!same)
        printf("%s/%s differs from %s's\n", b, name, a);
    CHECK(same);
}

/* A row of the log without what depends on the clock and the machine. */
static char *
timeless(const char *line)
{
    static const char *const clock[] = {"seconds", "tokens_per_second", "total_seconds",
                                        "peak_rss_bytes"};
    cJSON *row = cJSON_Parse(line);
    for (size_t i = 0; i < sizeof clock / sizeof *clock; i++)
        cJSON_DeleteItemFromObject(row, clock[i]);
    char *text = cJSON_PrintUnformatted(row);
    cJSON_Delete(row);
    return text;
}

static void
same_log(const char *a, const char *b)
{
    char *text[2] = {text_read(fmt("%s/log.jsonl", a)),
                     text_read(fmt("%s/log.jsonl", b))};
    char *at[2], *line[2];
    int rows = 0, wrong = 0;
    NEED(text[0] && text[1]);
    for (int k = 0; k < 2; k++)
        line[k] = strtok_r(text[k], "\n", &at[k]);
    for (; line[0] && line[1]; rows++) {
        char *x = timeless(line[0]), *y = timeless(line[1]);
        wrong += !x || !y || strcmp(x, y);
        free(x);
        free(y);
        for (int k = 0; k < 2; k++)
            line[k] = strtok_r(NULL, "\n", &at[k]);
    }
    CHECK(!line[0] && !line[1] && !wrong && rows > 10);
    free(text[0]);
    free(text[1]);
}

static rt_train_state
last_state(const char *dir, char *name, size_t n)
{
    int count;
    char why[RT_WHY];
    int64_t *step = rt_checkpoint_list(dir, &count);
    snprintf(name, n, "checkpoint-%d", count ? (int)*step : 0);
    free(step);
    rt_manifest *m = rt_checkpoint_check(fmt("%s/%s", dir, name), why);
    rt_train_state s = {0};
    if (m)
        s = m->state;
    CHECK(m != NULL);
    rt_manifest_free(m);
    s.run = 0; /* drawn */
    s.seconds = s.logged = 0;
    return s;
}

static void
same_end(const plan *p, const char *want, const char *got)
{
    char a[64], b[64];
    rt_train_state x = last_state(want, a, sizeof a), y = last_state(got, b, sizeof b);
    CHECK_STR(a, b);
    CHECK(!memcmp(&x, &y, sizeof x));
    CHECK(!p->best || (x.best_step && x.best_step < x.step));
    same_bytes(want, got, fmt("%s/" RT_WEIGHTS, a));
    same_bytes(want, got, fmt("%s/" RT_OPTIMIZER, a));
    same_log(want, got);
    DIR *d = opendir(want);
    int files = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_type != DT_REG || e->d_name[0] == '.' ||
            !strcmp(e->d_name, "log.jsonl") || !strcmp(e->d_name, "report.html"))
            continue;
        same_bytes(want, got, e->d_name);
        files++;
    }
    closedir(d);
    CHECK(files >= 2);
    CHECK(!run("/dev/null",
               "cd '%s' && ls -d checkpoint-* >a && cd '%s' && ls -d "
               "checkpoint-* | cmp - '%s/a'; e=$?; rm '%s/a'; exit $e",
               want, got, want, want));
    CHECK(!appears(fmt("%s/*.tmp", got)));
}

static void
go_to_the_end(const victim *v, const char *out, const char *more)
{
    int code = run(fmt("%s/end.log", v->dir), "%s --output-dir '%s' %s", v->command,
                   out, more);
    if (code)
        printf("ended with %d: see %s/end.log\n", code, v->dir);
    NEED(code == 0);
}

static void
kill_many(const plan *p, int kills)
{
    victim v;
    NEED(prepare(&v, p));
    const char *want = strdup(fmt("%s/whole", v.dir));
    go_to_the_end(&v, want, "");
    int inside = 0, runs = 0, made = 0, goal = kills;
    while (made < goal) {
        snprintf(v.out, sizeof v.out, "%s/killed%d", v.dir, runs++);
        for (bool going = true; going && made < goal;) {
            going = strike(&v);
            made += going;
            inside += appears(fmt("%s/checkpoint-*.tmp", v.out));
            check_whole(v.out);
        }
        go_to_the_end(&v, v.out, "--resume-from-checkpoint auto");
        same_end(p, want, v.out);
        if (made == goal && !inside && goal < 10 * kills)
            goal += kills; /* chance put them all between two checkpoints */
    }
    printf("%s: %d of the kills left a checkpoint half-written, %d runs\n", p->name,
           inside, runs);
    CHECK(inside > 0);
    free((char *)want);
    free((char *)v.dir);
}

TEST(kill_9_loses_nothing)
{
    const char *say = getenv("EFFICC_KILLS");
    int kills = say ? atoi(say) : 18;
    NEED(kills >= PLANS);
    for (int i = 0; i < PLANS; i++)
        kill_many(&plans[i], kills * (i + 1) / PLANS - kills * i / PLANS);
}
