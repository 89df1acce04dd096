/* Folders of checkpoints: numbers of a manifest, what is kept, replaced and swept away, full
 * disks, one trainer a folder. */
#include "test.h"

#include "host_saved.h"

#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- the manifest ---- */

static rt_manifest *
some_manifest(void)
{
    rt_manifest *m = rt_new(1, sizeof *m);
    m->efficc = strdup("0.1 \"\\\n");
    m->program = strdup("");
    m->options = strdup("{\"a\":[1,\"x\"]}");
    for (int i = 0; i < RT_NSAME; i++)
        m->same[i] = strdup(i % 2 ? "x" : "\xc3\xa4 %s");
    m->state.step = 1;
    m->npiece = 1;
    m->piece[0] = (rt_piece){"weights.safetensors", 12, 0xfedcba9876543210};
    return m;
}

static double
of_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

TEST(numbers_come_back_bit_by_bit)
{
    static const double hard[] = {0,
                                  -0.0,
                                  0.1,
                                  -1.0 / 3,
                                  0x1p-1074,
                                  0x1.fffffffffffffp1023,
                                  INFINITY,
                                  -INFINITY,
                                  1e22,
                                  123456789.125,
                                  -0x1p-1022,
                                  5e-324,
                                  3.141592653589793,
                                  2.2250738585072011e-308};
    static const uint64_t nans[] = {0x7ff8000000000000, 0xfff8000000000000,
                                    0x7ff8000000000001, 0xffffffffffffffff,
                                    0x7ffdeadbeef01234};
    enum { HARD = sizeof hard / sizeof *hard, NANS = sizeof nans / sizeof *nans };
    rt_manifest *m = some_manifest();
    uint64_t x = 1;
    for (int i = 0; i < RT_NORMS; i++) {
        x = x * 6364136223846793005 + 1442695040888963407;
        m->state.norm[i] = i < HARD          ? hard[i]
                           : i < HARD + NANS ? of_bits(nans[i - HARD])
                                             : of_bits(x & ~(1ull << 62));
    }
    m->state.best = -NAN;
    m->state.loss = INFINITY;
    m->state.tokens = (int64_t)1 << 53;
    m->state.step = 999999999999999;
    char why[RT_WHY], *text = rt_manifest_text(m);
    rt_manifest *back = rt_manifest_parse(text, strlen(text), why);
    NEED(back != NULL);
    CHECK(!memcmp(&back->state, &m->state, sizeof m->state));
    CHECK_STR(back->efficc, m->efficc);
    CHECK_STR(back->same[0], m->same[0]);
    CHECK_STR(back->options, m->options);
    CHECK(back->npiece == 1 && back->piece[0].hash == 0xfedcba9876543210);
    char *again = rt_manifest_text(back);
    CHECK_STR(again, text);
    free(again);
    free(text);
    rt_manifest_free(back);
    rt_manifest_free(m);
}

/* The manifest's text with its first `from` replaced by `to` is refused, and why. The hash is
 * the last thing that is looked at, so its own message does not count. */
static void
manifest_refused(const char *from, const char *to, const char *mention)
{
    rt_manifest *m = some_manifest();
    char why[RT_WHY], *text = rt_manifest_text(m), *at = strstr(text, from);
    NEED(at != NULL);
    rt_text t = {0};
    rt_putf(&t, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    CHECK(!rt_manifest_parse(t.s, t.n, why));
    bool told = strstr(why, mention) != NULL;
    if (!told)
        printf("%s for %s: %s\n", to, from, why);
    CHECK(told);
    free(t.s);
    free(text);
    rt_manifest_free(m);
}

TEST(manifests_that_cannot_be)
{
    manifest_refused("\"format\": 2", "\"format\": 3", "'format' is of a newer efficc");
    manifest_refused("\"format\": 2", "\"format\": 1", "'format' is of an older");
    manifest_refused("\"format\": 2", "\"format\": \"1\"", "'format' is not a whole");
    manifest_refused("\"efficc\"", "\"effic\"", "'efficc' is not there");
    manifest_refused("\"seed\"", "\"sed\"", "'seed' is not there");
    manifest_refused("\"same\": {", "\"same\": [{}], \"s\": {", "'task' is not there");
    manifest_refused("\"options\": {", "\"options\": 1, \"o\": {", "'options'");
    manifest_refused("\"step\": 1", "\"step\": 0", "'step' is 0");
    manifest_refused("\"step\": 1", "\"step\": -1", "'step' is not a whole number");
    manifest_refused("\"step\": 1", "\"step\": 1.5", "'step' is not a whole number");
    manifest_refused("\"step\": 1", "\"step\": 1e99", "'step' is not a whole number");
    manifest_refused("\"nnorm\": 0", "\"nnorm\": -1", "'nnorm' is not a whole number");
    manifest_refused("\"nnorm_logged\": 0", "\"nnorm_logged\": 9",
                     "'nnorm_logged' is more");
    manifest_refused("\"loss\": \"0\"", "\"loss\": 0", "'loss' is not a number");
    manifest_refused("\"loss\": \"0\"", "\"loss\": \"0x\"", "'loss' is not a number");
    manifest_refused("\"loss\": \"0\"", "\"loss\": \"\"", "'loss' is not a number");
    manifest_refused("\"norm\": [", "\"norm\": [\"0\", ", "'norm' has another length");
    manifest_refused("\"files\"", "\"file\"", "'files' is not there");
    manifest_refused("weights.safetensors", "", "'files' has an entry");
    manifest_refused("weights.safetensors", "../x", "'files' has an entry");
    manifest_refused("weights.safetensors", "..", "'files' has an entry");
    manifest_refused("weights.safetensors", "manifest.json", "'files' has an entry");
    manifest_refused("\"bytes\": 12", "\"bytes\": -12", "'bytes' is not a whole");
    manifest_refused("fedcba9876543210", "FEDCBA9876543210", "'xxh3' is not a hash");
    manifest_refused("fedcba9876543210", "+edcba987654321", "'xxh3' is not a hash");
    manifest_refused("\"step\": 1", "\"step\": 2", "damaged: its hash does not fit");
}

TEST(json_that_is_no_manifest)
{
    static const char *const text[] = {"",      "null",
                                       "[]",    "1",
                                       "{}",    "{\"format\": 2}",
                                       "\"x\"", "{\"state\": {\"norm\": 3}}"};
    char why[RT_WHY];
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        CHECK(!rt_manifest_parse(text[i], strlen(text[i]), why) && *why);
    enum { DEEP = 1 << 20 };
    char *deep = malloc(DEEP);
    memset(deep, '[', DEEP);
    CHECK(!rt_manifest_parse(deep, DEEP, why) && strstr(why, "not JSON"));
    for (int i = 0; i + 5 <= DEEP; i += 5)
        memcpy(deep + i, "{\"a\":", 5);
    CHECK(!rt_manifest_parse(deep, DEEP, why) && strstr(why, "not JSON"));
    free(deep);
}

/* ---- what is kept ---- */

/* The steps in dir, newest first, as "3 2 1". */
static const char *
steps_in(const char *dir)
{
    static char text[256];
    int n;
    int64_t *step = rt_checkpoint_list(dir, &n);
    *text = 0;
    for (int i = 0; i < n; i++)
        sprintf(text + strlen(text), "%s%d", i ? " " : "", (int)step[i]);
    free(step);
    return text;
}

TEST(the_newest_are_kept)
{
    CHECK_STR(steps_in(bench_folder("two", "", (int[]){1, 2, 3, 10, 0})), "10 3");
    CHECK_STR(steps_in(bench_folder("one", "--save-total-limit 1", (int[]){1, 2, 0})),
              "2");
    CHECK_STR(steps_in(bench_folder("all", "--save-total-limit 0",
                                    (int[]){9, 10, 11, 100, 0})),
              "100 11 10 9");
}

TEST(more_than_a_few)
{
    const char *dir = bench_folder("many", "--save-total-limit 0", (int[]){0});
    for (int i = 1; i <= 70; i++)
        mkdir(bench_path("%s/checkpoint-%d", dir, i), 0777);
    int n;
    int64_t *step = rt_checkpoint_list(dir, &n);
    CHECK(n == 70 && step[0] == 70 && step[69] == 1);
    free(step);
}

TEST(the_best_is_kept_beside_them)
{
    const char *dir = bench_folder("best", "", (int[]){0});
    bench b;
    bench_open(&b, dir, "--save-total-limit 1");
    b.opts.load_best_model_at_end = true;
    for (int step = 1; step <= 5; step++) {
        rt_train_state s = {.step = step, .best_step = step < 2 ? 1 : 2};
        CHECK(rt_checkpoint_save(&b.job, &s) == RT_OK);
    }
    CHECK_STR(steps_in(dir), "5 2");
    rt_train_state s = {.step = 6, .best_step = 6};
    CHECK(rt_checkpoint_save(&b.job, &s) == RT_OK);
    CHECK_STR(steps_in(dir), "6");
    bench_close(&b);
}

TEST(what_is_not_ours_is_never_removed)
{
    const char *dir = bench_folder("others", "", (int[]){1, 0});
    const char *real = bench_folder("real", "", (int[]){2, 0});
    CHECK(!symlink(bench_path("%s/checkpoint-2", real),
                   bench_path("%s/checkpoint-2", dir)));
    CHECK(!mkdir(bench_path("%s/checkpoint-3", dir), 0777)); /* without a manifest */
    CHECK(!mkdir(bench_path("%s/checkpoint-03", dir), 0777));
    CHECK(!mkdir(bench_path("%s/checkpoint-x", dir), 0777));
    bench b;
    bench_open(&b, dir, "--save-total-limit 1");
    rt_train_state other = {.step = 4, .run = 99};
    CHECK(rt_checkpoint_save(&b.job, &other) == RT_OK);
    CHECK(bench_save(&b, 20) == RT_OK); /* later than what comes */
    CHECK(there(dir, "checkpoint-4"));
    CHECK(bench_save(&b, 5) == RT_OK);
    CHECK(bench_save(&b, 6) == RT_OK);
    CHECK_STR(steps_in(dir), "20 6 4 3 2");
    CHECK(there(real, "checkpoint-2/" RT_WEIGHTS));
    CHECK(there(dir, "checkpoint-03") && there(dir, "checkpoint-x"));
    bench_close(&b);
}

TEST(a_folder_with_folders_in_it_stays_with_a_warning)
{
    const char *dir = bench_folder("deep", "", (int[]){1, 0});
    CHECK(!mkdir(bench_path("%s/checkpoint-1/mine", dir), 0777));
    bench b;
    bench_open(&b, dir, "--save-total-limit 1");
    toy_listen();
    CHECK(bench_save(&b, 2) == RT_OK);
    toy_heard();
    TOY_HEARD("checkpoint-1 can't be removed: Directory not empty");
    CHECK(there(dir, "checkpoint-1.tmp/mine"));
    bench_close(&b);
}

/* ---- what is replaced ---- */

TEST(a_checkpoint_of_the_same_step_is_replaced)
{
    static const char *const old[] = {
        "true",
        "rm checkpoint-2/manifest.json",
        "rm -r checkpoint-2 && touch checkpoint-2",
        "rm -r checkpoint-2 && ln -s gone checkpoint-2",
        "rm -r checkpoint-2 && mkdir checkpoint-2",
        "mkdir checkpoint-2.tmp; touch checkpoint-2.tmp/x"};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        const char *dir =
            bench_folder(bench_path("again%d", (int)i), "", (int[]){2, 0});
        NEED(!system(bench_path("cd %s && %s", dir, old[i])));
        bench b;
        bench_open(&b, dir, "");
        bench_fill(&b, 7);
        rt_train_state s = {.step = 2};
        CHECK(rt_checkpoint_save(&b.job, &s) == RT_OK);
        bench_fill(&b, 8);
        b.opts.resume_from_checkpoint = "auto";
        toy_listen();
        CHECK(rt_checkpoint_resume(&b.job, &s) == RT_OK && s.step == 2);
        toy_heard();
        CHECK(bench_holds(&b, 7, RT_TRAIN) && bench_holds(&b, 7, RT_STATE_V));
        CHECK(!there(dir, "checkpoint-2.tmp") && !there(dir, "checkpoint-2.old"));
        bench_close(&b);
    }
}

TEST(what_a_crash_left_is_swept)
{
    const char *dir = bench_folder("crash", "", (int[]){3, 0});
    NEED(!system(bench_path(
        "cd %s && mkdir checkpoint-4.tmp checkpoint-x.tmp notes.tmp "
        "checkpoint-5.tmp.tmp && "
        "touch checkpoint-4.tmp/weights.safetensors.tmp model.tmp && "
        "cp -r checkpoint-3 checkpoint-3.old && mv checkpoint-3 checkpoint-2.old",
        dir)));
    CHECK(bench_resume(dir, "--resume-from-checkpoint auto") == 3);
    TOY_HEARD("removed what a run that broke off left: ");
    TOY_HEARD("checkpoint-3 is back; replacing it had not ended");
    TOY_HEARD("checkpoint-2 is back");
    CHECK(!there(dir, "checkpoint-4.tmp"));
    CHECK(there(dir, "checkpoint-x.tmp") && there(dir, "notes.tmp"));
    CHECK(there(dir, "checkpoint-5.tmp.tmp") && there(dir, "model.tmp"));
}

/* ---- full disks ---- */

TEST(a_file_that_cannot_grow_leaves_the_older_ones)
{
    static const char *const file[] = {RT_WEIGHTS, RT_OPTIMIZER, RT_MANIFEST};
    const char *dir = bench_folder("limit", "", (int[]){1, 0});
    struct rlimit old, small;
    struct stat st;
    bench b;
    bench_open(&b, dir, "");
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        NEED(!stat(bench_path("%s/checkpoint-1/%s", dir, file[i]), &st));
        small = (struct rlimit){(rlim_t)st.st_size - 1, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        toy_listen();
        CHECK(bench_save(&b, 2) == RT_STOPPED);
        toy_heard();
        setrlimit(RLIMIT_FSIZE, &old);
        TOY_HEARD(
            bench_path("checkpoint-2.tmp/%s: writing failed: File too large", file[i]));
        TOY_HEARD("a checkpoint needs ");
        TOY_HEARD("make room, then go on with: t --resume-from-checkpoint");
        CHECK_STR(steps_in(dir), "1");
        CHECK(!there(dir, "checkpoint-2.tmp"));
    }
    bench_close(&b);
    CHECK(bench_resume(dir, "--resume-from-checkpoint auto") == 1);
}

/* A new name space for mounts, and a file system of this size on dir; in a child process. */
static bool
small_disk(const char *dir, const char *size)
{
    return !unshare(CLONE_NEWNS) &&
           !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mount("none", dir, "tmpfs", 0, size);
}

enum { NONE_FIT, SOME_FIT, IS_BAD, NO_MOUNT };

/* Fills a disk of `size` with checkpoints 1, 2, ..: the one that does not fit must leave
 * the one before it. */
static int
until_full(bench *b, const char *size)
{
    const char *dir = b->opts.output_dir;
    if (!small_disk(dir, size))
        return NO_MOUNT;
    int step = 0, code = RT_OK;
    toy_listen();
    while (!code && step < 20)
        code = bench_save(b, ++step);
    toy_heard();
    bool good = code == RT_STOPPED && strstr(toy_said, "No space left on device") &&
                strstr(toy_said, "make room");
    char before[8] = "";
    if (step > 1)
        sprintf(before, "%d", step - 1);
    good &= !strncmp(steps_in(dir), before, strlen(before)) &&
            !there(dir, bench_path("checkpoint-%d.tmp", step));
    rt_train_state s;
    b->opts.resume_from_checkpoint = "auto";
    toy_listen();
    good &= rt_checkpoint_resume(&b->job, &s) == RT_OK && s.step == step - 1;
    toy_heard();
    return !good ? IS_BAD : step > 1 ? SOME_FIT : NONE_FIT;
}

TEST(a_full_disk_leaves_the_older_ones)
{
    bench b; /* made before the forks: a child of OpenMP's threads has none */
    bench_open(&b, bench_folder("disk", "", (int[]){0}), "--save-total-limit 0");
    int seen[4] = {0};
    for (int k = 1; k <= 16; k++) {
        /* by bytes, then by number of files: each makes another write fail first */
        const char *size = k <= 12 ? bench_path("size=%dk", 4 * k)
                                   : bench_path("size=1m,nr_inodes=%d", k - 8);
        fflush(NULL);
        pid_t child = fork();
        if (!child)
            _exit(until_full(&b, size));
        int status;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) != IS_BAD);
        seen[WIFEXITED(status) ? WEXITSTATUS(status) : IS_BAD]++;
    }
    bench_close(&b);
    if (seen[NO_MOUNT])
        SKIP("no right to mount a small file system");
    CHECK(seen[NONE_FIT] && seen[SOME_FIT]);
}

/* ---- one trainer a folder ---- */

TEST(the_second_trainer_is_told_of_the_first)
{
    const char *dir = bench_folder("lock", "", (int[]){0});
    int ready[2], fd;
    CHECK(!pipe(ready));
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        char c = rt_folder_lock(dir, &fd) == RT_OK;
        if (write(ready[1], &c, 1) == 1)
            pause();
        _exit(0);
    }
    char got = 0;
    CHECK(read(ready[0], &got, 1) == 1 && got == 1);
    toy_listen();
    CHECK(rt_folder_lock(dir, &fd) == RT_USER && fd == -1);
    toy_heard();
    char host[200];
    gethostname(host, sizeof host);
    TOY_HEARD(
        bench_path("%s is in use by trainer process %d (%s)", dir, (int)child, host));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(rt_folder_lock(dir, &fd) == RT_OK && fd >= 0);
    rt_folder_unlock(fd);
    CHECK(rt_output_dir(dir, false) == RT_OK); /* the lock's file is no content */
    close(ready[0]);
    close(ready[1]);
}

TEST(the_run_outlives_the_lock)
{
    const char *dir = bench_folder("runs", "", (int[]){0});
    int fd, err;
    CHECK(rt_folder_run(dir) == 0 && rt_folder_run(toy_path("absent")) == 0);
    CHECK(rt_folder_lock(dir, &fd) == RT_OK);
    CHECK(rt_folder_run(dir) == 0);
    rt_folder_set_run(dir, 9007199254740991);
    CHECK(rt_folder_run(dir) == 9007199254740991);
    rt_folder_unlock(fd);
    CHECK(rt_folder_lock(dir, &fd) == RT_OK);
    CHECK(rt_folder_run(dir) == 9007199254740991);
    rt_folder_set_run(dir, 5);
    CHECK(rt_folder_run(dir) == 5);
    char *text = rt_read_text(bench_path("%s/.lock", dir), 1 << 10, &err);
    CHECK(text &&
          !strncmp(text, bench_path("run 5\n%d ", (int)getpid()), strlen("run 5\n")));
    free(text);
    rt_folder_unlock(fd);
    toy_write("runs/.lock", "run five");
    CHECK(rt_folder_run(dir) == 0);
}

TEST(locks_that_cannot_be)
{
    const char *dir = bench_folder("nolock", "", (int[]){0});
    int fd;
    CHECK(!symlink("/dev/null", bench_path("%s/.lock", dir)));
    toy_listen();
    CHECK(rt_folder_lock(dir, &fd) == RT_USER);
    CHECK(rt_folder_lock(toy_path("absent"), &fd) == RT_USER);
    toy_heard();
    TOY_HEARD("/.lock: ");
    CHECK(!unlink(bench_path("%s/.lock", dir)));
    CHECK(!mkfifo(bench_path("%s/.lock", dir), 0666));
    CHECK(rt_folder_lock(dir, &fd) == RT_OK); /* does not wait for a reader */
    rt_folder_unlock(fd);
}

TEST(a_folder_with_checkpoints_says_how_to_go_on)
{
    const char *dir = bench_folder("holds", "", (int[]){1, 0});
    toy_listen();
    CHECK(rt_output_dir(dir, false) == RT_USER);
    CHECK(rt_output_dir(dir, true) == RT_OK);
    toy_heard();
    TOY_HEARD("is not empty");
    TOY_HEARD("go on from its checkpoints with --resume-from-checkpoint auto");
}

TEST(output_folders_in_all_forms)
{
    const char *dir = bench_folder("forms", "", (int[]){0});
    static const char *const form[] = {"%s/a", "%s/b/", "%s/c/d//e", "%s//f/./g",
                                       "/%s/h"};
    char path[512];
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        rt_text t = {0};
        const char *at = strstr(form[i], "%s");
        rt_putf(&t, "%.*s%s%s", (int)(at - form[i]), form[i], dir, at + 2);
        CHECK(rt_output_dir(t.s, false) == RT_OK && !access(t.s, W_OK));
        free(t.s);
    }
    snprintf(path, sizeof path, "%s/file", dir);
    fclose(fopen(path, "w"));
    toy_listen();
    CHECK(rt_output_dir("", false) == RT_USER);
    CHECK(rt_output_dir(path, true) == RT_USER);
    CHECK(rt_output_dir(bench_path("%s/under", path), true) == RT_USER);
    toy_heard();
    TOY_HEARD("--output-dir : No such file");
    TOY_HEARD("/file: Not a directory");
}

TEST(bytes_of_a_checkpoint_are_enough)
{
    static const char *const optim[] = {"--optim adamw", "--optim sgd"};
    for (int k = 0; k < 2; k++) {
        const char *dir =
            bench_folder(bench_path("bytes%d", k), optim[k], (int[]){1, 0});
        bench b;
        bench_open(&b, dir, optim[k]);
        char why[RT_WHY];
        rt_manifest *m = rt_checkpoint_check(bench_path("%s/checkpoint-1", dir), why);
        NEED(m != NULL);
        int64_t bytes = 0;
        for (int i = 0; i < m->npiece; i++)
            bytes += m->piece[i].bytes;
        struct stat s;
        CHECK(!stat(bench_path("%s/checkpoint-1/" RT_MANIFEST, dir), &s));
        bytes += s.st_size;
        CHECK(rt_checkpoint_bytes(&b.job) >= bytes &&
              rt_checkpoint_bytes(&b.job) < bytes + (32 << 10));
        rt_manifest_free(m);
        bench_close(&b);
    }
}
