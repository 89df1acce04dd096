/* Checkpoints: what was saved comes back bit by bit, what is damaged or belongs elsewhere is
 * told from it. */
#include "test.h"

#include "host_saved.h"

#define AUTO "--resume-from-checkpoint auto "

/* ---- whole ones ---- */

TEST(what_is_saved_comes_back)
{
    static const char *const optim[] = {"--optim adamw", "--optim sgd --momentum 0.9",
                                        "--optim sgd"};
    static const int files[] = {2, 2, 1};
    for (int k = 0; k < 3; k++) {
        char name[16];
        snprintf(name, sizeof name, "back%d", k);
        const char *dir = bench_folder(name, optim[k], (int[]){3, 0});
        char why[RT_WHY];
        rt_manifest *m = rt_checkpoint_check(bench_path("%s/checkpoint-3", dir), why);
        NEED(m != NULL);
        CHECK(m->npiece == files[k]);
        rt_manifest_free(m);
        CHECK(bench_resume(dir, bench_path(AUTO "%s", optim[k])) == 3);
        TOY_HEARD("goes on after step 3");
        CHECK(strstr(toy_said, "note") == NULL);
    }
}

TEST(the_state_comes_back)
{
    const char *dir = bench_folder("state", "", (int[]){5, 0});
    bench b;
    rt_train_state got, want = bench_state(5);
    bench_open(&b, dir, AUTO);
    toy_listen();
    CHECK(rt_checkpoint_resume(&b.job, &got) == RT_OK);
    toy_heard();
    CHECK(!memcmp(&got, &want, sizeof got));
    bench_close(&b);
}

TEST(the_newest_is_taken)
{
    const char *dir = bench_folder("newest", "", (int[]){9, 10, 0});
    CHECK(bench_resume(dir, AUTO) == 10);
    CHECK(bench_resume(toy_path("newest"),
                       bench_path("--resume-from-checkpoint %s/checkpoint-9", dir)) ==
          9);
    TOY_HEARD("holds later checkpoints, up to step 10");
}

/* A new run in the folder of an old one that went further. */
TEST(a_run_that_was_replaced_is_passed_over)
{
    const char *dir = bench_folder("replaced", "", (int[]){4, 9, 0});
    bench b;
    rt_train_state s;
    bench_open(&b, dir, "--save-total-limit 1");
    toy_listen();
    CHECK(rt_checkpoint_resume(&b.job, &s) == RT_OK && s.step == 0 && s.run > 7);
    toy_heard();
    TOY_HEARD("holds checkpoints of an earlier run; once this one has saved its own");
    CHECK(bench_resume(dir, AUTO) == 9); /* nothing is saved yet */
    for (s.step = 5; s.step < 7; s.step++) {
        bench_fill(&b, (int)s.step);
        CHECK(rt_checkpoint_save(&b.job, &s) == RT_OK);
    }
    bench_close(&b);
    CHECK(there(dir, "checkpoint-4") && !there(dir, "checkpoint-5"));
    CHECK(bench_resume(dir, AUTO) == 6);
    TOY_HEARD("checkpoint-9 is passed over: it is of an earlier run");
    TOY_HEARD("name its path to go on from it");
    CHECK(bench_resume(
              dir, bench_path("--resume-from-checkpoint %s/checkpoint-4", dir)) == 4);
    TOY_HEARD("holds later checkpoints, up to step 9");
    CHECK(bench_resume(dir, AUTO) == 6);
    bench_open(&b, dir, "--save-total-limit 1");
    CHECK(bench_save(&b, 8) == RT_OK); /* of the old run, after all */
    bench_close(&b);
    CHECK(bench_resume(dir, AUTO) == 9);
    CHECK(!unlink(bench_path("%s/.lock", dir)));
    CHECK(bench_resume(dir, AUTO) == 9);
    rt_folder_set_run(dir, 1);
    CHECK(bench_resume(dir, AUTO) == 0);
    TOY_HEARD("checkpoint-6 is passed over: it is of an earlier run");
}

TEST(nothing_to_go_on_from)
{
    const char *dir = bench_folder("nothing", "", (int[]){0});
    CHECK(bench_resume(dir, AUTO) == 0);
    CHECK_STR(toy_said, "");
    CHECK(bench_resume(dir, "") == 0);
    CHECK_STR(toy_said, "");
    CHECK(rt_folder_run(dir) == 0);
}

TEST(a_path_may_be_written_in_many_ways)
{
    const char *dir = bench_folder("paths", "", (int[]){4, 0});
    const char *own = bench_path("%s/checkpoint-4", dir);
    CHECK(!symlink(own, bench_path("%s/link", dir)));
    static const char *const form[] = {
        "checkpoint-4", "checkpoint-4/", "link", "./link//", "link/.", "../paths/link"};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++)
        CHECK(bench_resume(dir, bench_path("--resume-from-checkpoint %s/%s", dir,
                                           form[i])) == 4);
    CHECK(!rename(own, bench_path("%s/kept", dir)));
    CHECK(bench_resume(dir, bench_path("--resume-from-checkpoint %s/kept", dir)) == 4);
    CHECK(bench_resume(dir, AUTO) == 0);
}

/* ---- damaged ones ---- */

/* Does sh's command to checkpoint-2 of a folder that holds 1 and 2: auto must say `why` and
 * take 1, the path must be refused with the same words. */
static void
damage(const char *command, const char *why)
{
    static int turn;
    char name[32], sh[1024];
    snprintf(name, sizeof name, "damage%d", turn++);
    const char *dir = bench_folder(name, "", (int[]){1, 2, 0});
    snprintf(sh, sizeof sh, "cd %s/checkpoint-2 && %s", dir, command);
    NEED(!system(sh));
    CHECK(bench_resume(dir, AUTO) == 1);
    TOY_HEARD("checkpoint-2 is passed over: ");
    bool told = strstr(toy_said, why);
    if (!told)
        printf("%s\n  wanted: %s\n  said: %s", command, why, toy_said);
    CHECK(told);
    CHECK(bench_resume(dir, bench_path("--resume-from-checkpoint %s/checkpoint-2",
                                       dir)) == -1 - RT_USER);
    TOY_HEARD(why);
    TOY_HEARD("error: --resume-from-checkpoint");
    TOY_HEARD("name another one, or auto");
}

TEST(damage_is_told_and_passed_over)
{
    damage("truncate -s -1 weights.safetensors", "weights.safetensors is truncated: ");
    damage("truncate -s 0 optimizer.safetensors",
           "optimizer.safetensors is truncated: 0 bytes instead of ");
    damage("echo >>weights.safetensors", "weights.safetensors is too long: ");
    damage("rm weights.safetensors", "weights.safetensors is missing");
    damage("rm manifest.json", "manifest.json is missing");
    damage("truncate -s 100 manifest.json", "manifest.json is not JSON");
    damage("truncate -s 0 manifest.json", "manifest.json is not JSON");
    damage("echo >>manifest.json", "manifest.json is damaged");
    damage("sed -i 's/\"updates\": 2/\"updates\": 1/' manifest.json",
           "manifest.json is damaged: its hash does not fit");
    damage("rm -r * .[!.]* 2>/dev/null; true", "manifest.json is missing");
}

TEST(a_copy_under_another_step_is_passed_over)
{
    const char *dir = bench_folder("copy", "", (int[]){1, 0});
    NEED(!system(bench_path("cd %s && cp -r checkpoint-1 checkpoint-2", dir)));
    CHECK(bench_resume(dir, AUTO) == 1);
    TOY_HEARD("checkpoint-2 is passed over: it is of step 1");
}

TEST(tricks_with_files_are_no_trap)
{
    damage("rm manifest.json && mkfifo manifest.json", "manifest.json is not a file");
    damage("rm manifest.json && mkdir manifest.json", "manifest.json is not a file");
    damage("rm manifest.json && ln -s manifest.json manifest.json",
           "manifest.json: Too many levels");
    damage("rm manifest.json && ln -s /dev/zero manifest.json", "manifest.json");
    damage("rm weights.safetensors && mkfifo weights.safetensors",
           "weights.safetensors is not a file");
    damage("ln -sf /dev/zero weights.safetensors", "weights.safetensors is not a file");
    damage("cd .. && rm -r checkpoint-2 && echo x >checkpoint-2",
           "manifest.json is missing");
    damage("cd .. && rm -r checkpoint-2 && ln -s checkpoint-2 checkpoint-2",
           "Too many levels");
}

/* Bit k of byte `at` of a file. */
static void
flip(const char *path, long at, int k)
{
    FILE *f = fopen(path, "r+b");
    NEED(f && !fseek(f, at, SEEK_SET));
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1 << k, f);
    fclose(f);
}

TEST(a_flipped_bit_anywhere_is_noticed)
{
    static const char *const file[] = {RT_WEIGHTS, RT_OPTIMIZER, RT_MANIFEST};
    const char *dir = bench_folder("flip", "", (int[]){1, 0}),
               *saved = bench_path("%s/checkpoint-1", dir);
    char why[RT_WHY];
    for (int k = 0; k < 3; k++) {
        const char *path = bench_path("%s/%s", saved, file[k]);
        struct stat s;
        NEED(!stat(path, &s));
        for (long at = 0; at < s.st_size; at++) {
            flip(path, at, (int)(at % 8));
            rt_manifest *m = rt_checkpoint_check(saved, why);
            CHECK(!m && strstr(why, file[k]));
            rt_manifest_free(m);
            flip(path, at, (int)(at % 8));
        }
    }
    CHECK(bench_resume(dir, AUTO) == 1);
}

TEST(a_manifest_cut_anywhere_is_no_manifest)
{
    const char *dir = bench_folder("cut", "", (int[]){1, 0});
    int err;
    char why[RT_WHY],
        *text = rt_read_text(bench_path("%s/checkpoint-1/" RT_MANIFEST, dir), 1 << 20,
                             &err);
    for (size_t n = 0; n < strlen(text); n++)
        CHECK(!rt_manifest_parse(text, n, why) && *why);
    rt_manifest *m = rt_manifest_parse(text, strlen(text), why);
    CHECK(m != NULL);
    rt_manifest_free(m);
    free(text);
}

TEST(names_that_are_no_checkpoint)
{
    const char *dir = bench_folder("names", "", (int[]){7, 0});
    static const char *const name[] = {
        "checkpoint-abc", "checkpoint-99999999999999999999",
        "checkpoint-",    "checkpoint-08",
        "checkpoint-0",   "checkpoint--3",
        "checkpoint-8 ",  "checkpoint-1e3"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        NEED(!mkdir(bench_path("%s/%s", dir, name[i]), 0777));
    NEED(!mkdir(bench_path("%s/checkpoint-999999999999999", dir), 0777));
    CHECK(bench_resume(dir, AUTO) == 7);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        TOY_HEARD(bench_path("%s is passed over: its name is not checkpoint-<step>",
                             name[i]));
    TOY_HEARD("checkpoint-999999999999999 is passed over: manifest.json is missing");
}

TEST(a_path_that_is_none)
{
    const char *dir = bench_folder("none", "", (int[]){2, 3, 0});
    CHECK(bench_resume(dir, bench_path("--resume-from-checkpoint %s/gone", dir)) ==
          -1 - RT_USER);
    TOY_HEARD("manifest.json is missing");
    CHECK(bench_resume(dir, bench_path("--resume-from-checkpoint %s", dir)) ==
          -1 - RT_USER);
    TOY_HEARD("it holds checkpoints; name one of them, such as ");
    TOY_HEARD("checkpoint-3");
}

/* ---- those of other runs ---- */

TEST(a_run_with_other_data_or_options_is_refused)
{
    const char *dir =
        bench_folder("belongs", "--seed 5 --global-batch-size 4", (int[]){2, 0});
    static const struct {
        const char *options, *why;
    } other[] = {
        {"--seed 6 --global-batch-size 4", "--seed is 5 there and 6 here"},
        {"--seed 5 --global-batch-size 4 --no-shuffle",
         "--shuffle is true there and false here"},
        {"--seed 5", "the number of rows of an optimizer step is 4 there and 2 here"},
        {"--seed 5 --global-batch-size 4 --optim sgd",
         "--optim is adamw there and sgd here"},
        {"--seed 5 --global-batch-size 4 --optim sgd --momentum 0.5",
         "--optim is adamw there and sgd with momentum here"},
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        CHECK(bench_resume(dir, bench_path(AUTO "%s", other[i].options)) ==
              -1 - RT_USER);
        TOY_HEARD("checkpoint-2 does not belong to this run: ");
        TOY_HEARD(other[i].why);
        CHECK(
            bench_resume(dir, bench_path("--resume-from-checkpoint %s/checkpoint-2 %s",
                                         dir, other[i].options)) == -1 - RT_USER);
        TOY_HEARD(other[i].why);
    }
    CHECK(bench_resume(dir, AUTO "--seed 5 --gradient-accumulation-steps 2") == 2);
    CHECK(strstr(toy_said, "note") == NULL);
}

TEST(other_data_are_refused)
{
    const char *dir = bench_folder("data", "", (int[]){2, 0});
    bench b;
    rt_train_state s;
    bench_open(&b, dir, AUTO);
    rt_data_close(&b.data);
    const char *path =
        toy_write("other.jsonl", "{\"input_ids\": [1], \"labels\": 0}\n");
    rt_words files = {1, &path};
    rt_data_spec spec = rt_data_spec_of(&b.program, RT_TRAINING);
    toy_listen();
    NEED(rt_data_open(&b.data, &files, &spec) == RT_OK);
    CHECK(rt_checkpoint_resume(&b.job, &s) == RT_USER);
    toy_heard();
    TOY_HEARD("--train-data is ");
    TOY_HEARD("give the data that the run began with");
    bench_close(&b);
}

TEST(of_many_files_the_one_that_differs_is_shown)
{
    rt_manifest a = {0}, b = {0};
    char why[RT_WHY];
    for (int i = 0; i < RT_NSAME; i++)
        a.same[i] = b.same[i] = "";
    a.same[RT_SAME_data] = "1 rows, xxh3 a; 2 rows, xxh3 b; 3 rows, xxh3 c";
    b.same[RT_SAME_data] = "1 rows, xxh3 a; 2 rows, xxh3 d; 3 rows, xxh3 c";
    CHECK(!rt_same_check(&a, &b, RT_OF_RUN, why));
    CHECK(strstr(why,
                 "--train-data is .. 2 rows, xxh3 b; 3 rows, xxh3 c there and .. 2 "
                 "rows, xxh3 d; 3 rows") != NULL);
    b.same[RT_SAME_data] = "1 rows, xxh3 a";
    CHECK(!rt_same_check(&a, &b, RT_OF_RUN, why));
    CHECK(rt_same_check(&a, &b, RT_OF_PROGRAM, why));
}

TEST(options_that_may_differ_are_shown)
{
    const char *dir = bench_folder("differ", "--learning-rate 5e-3", (int[]){2, 0});
    CHECK(bench_resume(dir, AUTO "--learning-rate 1e-3 --max-steps 9") == 2);
    TOY_HEARD("note      --learning-rate 0.001 (checkpoint: 0.005)\n");
    TOY_HEARD("note      --max-steps 9 (checkpoint: the default)\n");
    CHECK(bench_resume(dir, AUTO) == 2);
    TOY_HEARD("note      --learning-rate the default (checkpoint: 0.005)\n");
}

/* Resumes in dir with another program; the words that must be said. */
static int64_t
with_program(const rt_program *p, const char *dir, const char *options)
{
    bench b;
    rt_train_state s;
    bench_open_program(&b, p, dir, options);
    toy_listen();
    int code = rt_checkpoint_resume(&b.job, &s);
    toy_heard();
    bench_close(&b);
    return code ? -1 - code : s.step;
}

TEST(a_checkpoint_of_another_program_is_refused)
{
    const char *dir = bench_folder("foreign", "", (int[]){2, 0});
    const char *path = bench_path("--resume-from-checkpoint %s/checkpoint-2", dir);
    rt_param param[3];
    memcpy(param, toy_param, sizeof param);
    rt_program p = toy_program();
    p.param = param;
    p.nparam = 2;
    CHECK(with_program(&p, dir, AUTO) == -1 - RT_USER);
    TOY_HEARD("checkpoint-2 is passed over: the list of names and shapes");
    TOY_HEARD("it is a checkpoint of another model");
    TOY_HEARD("holds no good checkpoint of this trainer, but of another one");
    TOY_HEARD("name another --output-dir, go on with the trainer that made them");
    CHECK(with_program(&p, dir, AUTO " --overwrite-output-dir") == 0);
    TOY_HEARD("checkpoint-2 is passed over: the list of names and shapes");
    CHECK(with_program(&p, dir, path) == -1 - RT_USER);
    TOY_HEARD("the list of names and shapes");
    p.nparam = 3;
    param[1].dim[0] = 3;
    param[1].dim[1] = 4;
    CHECK(with_program(&p, dir, AUTO) == -1 - RT_USER);
    TOY_HEARD("the list of names and shapes");
    p.param = toy_param;
    p.task = "token-cls";
    CHECK(with_program(&p, dir, AUTO) == -1 - RT_USER);
    TOY_HEARD("the task is seq-cls there and token-cls here");
    p.task = "seq-cls";
    p.lora_r = 4;
    p.lora_scale = 2;
    CHECK(with_program(&p, dir, AUTO) == -1 - RT_USER);
    TOY_HEARD("the adapter is none there and LoRA of rank 4, scale 2 here");
    p.lora_r = 0;
    p.hash = "fedcba9876543210";
    CHECK(with_program(&p, dir, AUTO) == 2);
    TOY_HEARD("the trainer was compiled anew");
}

TEST(other_frozen_weights_are_refused)
{
    static const int64_t bytes[][RT_NCLASSES] = {{0, 0, 0, 0, 128, 0},
                                                 {128, 128, 128, 128, 0, 0}};
    rt_param param[3];
    memcpy(param, toy_param, sizeof param);
    param[0].cls = RT_FROZEN;
    rt_program p = toy_program();
    p.param = param;
    p.unit_bytes = bytes;
    const char *dir = toy_path("frozen");
    mkdir(dir, 0777);
    bench b;
    rt_train_state s;
    bench_open_program(&b, &p, dir, AUTO);
    CHECK(bench_save(&b, 3) == RT_OK);
    ((float *)rt_param_data(&b.run, &param[0]))[5] = 1;
    b.job.frozen = rt_frozen_hash(&b.run);
    toy_listen();
    CHECK(rt_checkpoint_resume(&b.job, &s) == RT_USER);
    toy_heard();
    TOY_HEARD("the hash of the weights that are not trained is ");
    TOY_HEARD("use the same model");
    ((float *)rt_param_data(&b.run, &param[0]))[5] = 0;
    b.job.frozen = rt_frozen_hash(&b.run);
    toy_listen();
    CHECK(rt_checkpoint_resume(&b.job, &s) == RT_OK && s.step == 3);
    toy_heard();
    bench_close(&b);
}

/* The best one's weights, but not its optimizer. */
TEST(the_best_is_loaded)
{
    const char *dir = bench_folder("best", "", (int[]){2, 3, 0});
    bench b;
    bench_open(&b, dir, AUTO);
    bench_fill(&b, 3);
    rt_train_state s = {.step = 3, .best_step = 2};
    CHECK(rt_checkpoint_load_best(&b.job, &s) == RT_OK);
    CHECK(bench_holds(&b, 2, RT_TRAIN) && bench_holds(&b, 3, RT_STATE_M));
    s.best_step = 1;
    toy_listen();
    CHECK(rt_checkpoint_load_best(&b.job, &s) == RT_USER);
    toy_heard();
    TOY_HEARD("can't be used: manifest.json is missing");
    bench_close(&b);
}

/* Hashes fit, but a tensor has another name: nothing may be overwritten. */
TEST(nothing_is_loaded_before_all_is_checked)
{
    const char *dir = bench_folder("atomic", "", (int[]){2, 0});
    const char *path = bench_path("%s/checkpoint-2/" RT_OPTIMIZER, dir);
    int err;
    char why[RT_WHY];
    rt_manifest *m = rt_checkpoint_check(bench_path("%s/checkpoint-2", dir), why);
    NEED(m != NULL);
    float x[3] = {0};
    rt_st_out t = {"fc.bias.m", 1, {3}, x, false, NULL};
    rt_file f;
    rt_file_open(&f, path);
    rt_file_tensors(&f, &t, 1, false);
    NEED(rt_file_done(&f) == RT_OK);
    m->piece[1].bytes = (int64_t)f.at;
    m->piece[1].hash = f.hash;
    char *text = rt_manifest_text(m);
    NEED(rt_file_text(bench_path("%s/checkpoint-2/" RT_MANIFEST, dir), text) == RT_OK);
    free(text);
    rt_manifest_free(m);
    bench b;
    rt_train_state s;
    bench_open(&b, dir, AUTO);
    bench_fill(&b, 9);
    toy_listen();
    CHECK((err = rt_checkpoint_resume(&b.job, &s)) == RT_USER);
    toy_heard();
    TOY_HEARD("'emb.weight.m' is not there in its shape");
    CHECK(bench_holds(&b, 9, RT_TRAIN) && bench_holds(&b, 9, RT_STATE_V));
    bench_close(&b);
}
