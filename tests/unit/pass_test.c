/* pass_test.c -- the pass manager, the pattern matcher and views.
 *
 * What passes do to programs is in tests/golden; that they keep their meaning is in
 * tests/interp/meaning_test.c and stages_test.c.
 */
#include "test.h"

#include "passes/match.h"
#include "passes/pass.h"
#include "passes/recognise_int.h"
#include "said.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static ir_module *
parse(said *s, const char *text)
{
    ir_module *m = ir_parse(s->ctx, "test.ir", text);
    NEED(m != NULL);
    return m;
}

/* Runs the manager with standard output in a file; returns what it printed. */
static char *
run(said *s, ir_module *m, const ef_config *cfg, bool *ok)
{
    char path[] = "/tmp/pass_test.XXXXXX";
    int fd = mkstemp(path), old = dup(1);
    bool stopped;
    NEED(fd >= 0 && old >= 0);
    fflush(stdout);
    dup2(fd, 1);
    s->ctx->cfg = cfg;
    *ok = pass_run(m, NULL, &stopped);
    fflush(stdout);
    dup2(old, 1);
    close(old);
    close(fd);
    char *text = ef_read_file(s->ctx->arena, path, 1 << 24, NULL);
    unlink(path);
    return text;
}

static const char small[] = "efficc-ir 1\n"
                            "unit 0 \"a\"\n"
                            "param $w : f32[4,4] train unit=0 zero\n"
                            "func $step(%x : f32[2,4]) {\n"
                            "@f: fwd unit=0\n"
                            "  %one = const {value=1} : f32[]\n"
                            "  %a = mul %x, %one : f32[2,4]\n"
                            "  %y = matmul %a, $w : f32[2,4]\n"
                            "  ret %y\n"
                            "}\n";

/* ---- the manager ---- */

/* A run that stops and one that goes on from the text give what one run gives. */
TEST(text_goes_on_where_it_stopped)
{
    said s;
    bool ok;
    ef_config cfg = ef_config_default;
    said_open(&s);
    cfg.stop_after = "canon";
    ir_module *first = parse(&s, small);
    char *half = run(&s, first, &cfg, &ok);
    CHECK(ok && strstr(half, "efficc-ir 1 canon\n") == half);
    cfg.stop_after = "recognise";
    ir_module *second = parse(&s, half), *whole = parse(&s, small);
    char *two = run(&s, second, &cfg, &ok);
    CHECK(ok);
    CHECK_STR(two, run(&s, whole, &cfg, &ok));
    CHECK(strstr(two, "efficc-ir 1 canon recognise\n") == two);
    CHECK(strstr(two, "linear %x, $w") != NULL);
    ir_module_free(first);
    ir_module_free(second);
    ir_module_free(whole);
    said_close(&s);
}

TEST(a_pass_needs_what_others_give)
{
    said s;
    bool ok;
    ef_config cfg = ef_config_default;
    said_open(&s);
    cfg.given_run_pass = true;
    cfg.run_pass = "recognise";
    ir_module *m = parse(&s, small);
    run(&s, m, &cfg, &ok);
    CHECK(!ok && said_has(&s, "pass recognise needs TYPED"));
    ir_module_free(m);
    said_close(&s);
}

TEST(unknown_passes_are_told)
{
    static const struct {
        const char *run_pass, *stop, *print, *head;
    } rows[] = {{"cannon", NULL, NULL, "efficc-ir 1"},
                {NULL, "cannon", NULL, "efficc-ir 1"},
                {NULL, NULL, "canon,cannon", "efficc-ir 1"},
                {"canon", NULL, NULL, "efficc-ir 1 cannon"}};
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        said s;
        bool ok;
        ef_config cfg = ef_config_default;
        said_open(&s);
        cfg.given_run_pass = rows[i].run_pass != NULL;
        cfg.run_pass = rows[i].run_pass;
        cfg.stop_after = rows[i].stop;
        cfg.print_after = rows[i].print;
        ir_module *m = parse(
            &s, ef_printf(s.ctx->arena, "%s\n%s", rows[i].head, strchr(small, '\n')));
        run(&s, m, &cfg, &ok);
        CHECK(!ok && said_has(&s, "no pass is called 'cannon'") &&
              said_has(&s, "passes are canon recognise task"));
        ir_module_free(m);
        said_close(&s);
    }
}

TEST(stopping_where_nothing_runs_is_an_error)
{
    said s;
    bool ok;
    ef_config cfg = ef_config_default;
    said_open(&s);
    cfg.stop_after = "canon"; /* has run */
    ir_module *m =
        parse(&s, ef_printf(s.ctx->arena,
                            "efficc-ir 1 canon recognise task lora eval grad "
                            "cse optim dce plan\n%s",
                            strchr(small, '\n')));
    run(&s, m, &cfg, &ok);
    CHECK(!ok && said_has(&s, "pass canon does not run here"));
    ir_module_free(m);
    said_close(&s);
}

TEST(printing_after_what_does_not_run_is_an_error)
{
    said s;
    bool ok;
    ef_config cfg = ef_config_default;
    said_open(&s);
    cfg.print_after = "lora"; /* behind the stop */
    cfg.stop_after = "canon";
    ir_module *m = parse(&s, small);
    run(&s, m, &cfg, &ok);
    CHECK(!ok && said_has(&s, "option --print-after: pass lora does not run here"));
    ir_module_free(m);
    said_close(&s);
}

TEST(broken_input_is_not_called_a_bug)
{
    said s;
    bool ok;
    ef_config cfg = ef_config_default;
    said_open(&s);
    cfg.given_run_pass = true;
    ir_module *m = parse(&s, small);
    m->step->first->first->res[0]->nuse = 7; /* what a mistake in efficc would do */
    run(&s, m, &cfg, &ok);
    CHECK(!ok && s.ctx->nerror > 0);
    CHECK(!strstr(said_text(&s), "bug"));
    ir_module_free(m);
    said_close(&s);
}

/* Damages the module in the middle of pass plan. */
static int64_t
scratch_that_damages(ef_ctx *ctx, const ir_op *op, const char **why)
{
    (void)ctx;
    (void)why;
    op->block->func->args.at[0]->nuse += 1;
    return 0;
}

static bool
never_fuses(const ir_op *a, const ir_op *b)
{
    (void)a;
    (void)b;
    return false;
}

/* In the child: the whole pipeline in an empty folder, with a target that damages. */
static void
run_damaged(const char *dir, const char *when)
{
    static const pass_target target = {.name = "test",
                                       .align = 64,
                                       .scratch = scratch_that_damages,
                                       .fuse = never_fuses};
    said s;
    bool stopped;
    ef_config cfg = ef_config_default;
    said_open(&s);
    cfg.task = "token-cls";
    cfg.verify = when;
    cfg.lora_r = 2;
    cfg.lora_targets = "all-linear";
    s.ctx->cfg = &cfg;
    ir_module *m = ir_parse(s.ctx, "test.ir",
                            "efficc-ir 1\n"
                            "unit 0 \"a\"\n"
                            "param $e : f32[8,4] train unit=0 zero hf=\"e.weight\"\n"
                            "param $d : f32[4,4] train unit=0 zero hf=\"d.weight\"\n"
                            "param $w : f32[4,3] train unit=0 zero hf=\"w.weight\"\n"
                            "func $step(%input_ids : i64[2,3]) {\n"
                            "@f: fwd unit=0\n"
                            "  %x = gather $e, %input_ids {axis=0} : f32[2,3,4]\n"
                            "  %h = matmul %x, $d : f32[2,3,4]\n"
                            "  %y = matmul %h, $w : f32[2,3,3]\n"
                            "  ret %y\n"
                            "}\n");
    _exit(!m || chdir(dir) || !pass_run(m, &target, &stopped) ? 1 : 0);
}

TEST(a_broken_invariant_leaves_a_reproducer)
{
    char dir[] = "/tmp/pass_test.XXXXXX", path[64];
    NEED(mkdtemp(dir) != NULL);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid)
        run_damaged(dir, "each");
    int status = 0;
    NEED(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 70);
    snprintf(path, sizeof path, "%s/crash-plan.ir", dir);
    ef_arena *a = ef_arena_new();
    char *text = ef_read_file(a, path, 1 << 20, NULL);
    NEED(text != NULL);
    const char *head =
        "; run: efficc --run-pass=plan --task='token-cls' --lora-r=2 "
        "--lora-targets='all-linear'\nefficc-ir 1 canon recognise task unpad lora "
        "eval grad cse optim fuse dce\n";
    CHECK(!strncmp(text, head, strlen(head)));
    said s; /* and it can be read */
    said_open(&s);
    ir_module *m = ir_parse(s.ctx, path, text);
    CHECK(m && !ir_verify(m));
    ir_module_free(m);
    said_close(&s);
    ef_arena_free(a);
    unlink(path);
    rmdir(dir);
}

/* Exit code of the pipeline with the damage, verified `when`; leaves an empty folder. */
static int
damaged_exit(const char *when)
{
    char dir[] = "/tmp/pass_test.XXXXXX";
    if (!mkdtemp(dir))
        return -1;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid)
        run_damaged(dir, when);
    int status = 0;
    waitpid(pid, &status, 0);
    return rmdir(dir) || !WIFEXITED(status) ? -1 : WEXITSTATUS(status);
}

TEST(what_a_pass_broke_is_a_bug_at_the_end_too)
{
    CHECK(damaged_exit("end") == 70);
    CHECK(damaged_exit("none") == 0);
}

TEST(dump_has_a_file_per_pass)
{
    static const char *const files[] = {"00-import.ir", "01-canon.ir",
                                        "02-recognise.ir", "ir.html"};
    char dir[] = "/tmp/pass_test.XXXXXX", path[64];
    NEED(mkdtemp(dir) != NULL);
    said s;
    bool ok;
    ef_config cfg = ef_config_default;
    said_open(&s);
    cfg.dump = dir;
    cfg.stop_after = "recognise";
    ir_module *m = parse(&s, small);
    run(&s, m, &cfg, &ok);
    CHECK(ok);
    for (size_t i = 0; i < EF_COUNT(files); i++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        CHECK(!stat(path, &st) && st.st_size > 0);
        unlink(path);
    }
    CHECK(!rmdir(dir));
    ir_module_free(m);
    said_close(&s);
}

/* docs/passes.md is what pass_print_docs() writes; EFFICC_BLESS=1 writes it. */
TEST(docs_are_up_to_date)
{
    char *text;
    size_t n;
    ef_arena *a = ef_arena_new();
    FILE *f = open_memstream(&text, &n);
    pass_print_docs(f);
    fclose(f);
    if (getenv("EFFICC_BLESS")) {
        f = fopen(SRC_DIR "/docs/passes.md", "w");
        NEED(f != NULL);
        fputs(text, f);
        fclose(f);
    }
    char *page = ef_read_file(a, SRC_DIR "/docs/passes.md", 1 << 20, NULL);
    NEED(page != NULL);
    CHECK_STR(page, text);
    free(text);
    ef_arena_free(a);
}

/* ---- patterns ---- */

static const char formulas[] = "efficc-ir 1\n"
                               "unit 0 \"a\"\n"
                               "param $w : f32[4] train unit=0 zero\n"
                               "param $k : f32[4] const unit=0 = 1 2 3 4\n"
                               "func $step(%x : f32[4], %y : f32[4]) {\n"
                               "@f: fwd unit=0\n"
                               "  %half = const {value=0.5} : f32[]\n"
                               "  %two = const {value=2} : f32[]\n"
                               "  %a = mul %x, %y : f32[4]\n"
                               "  %b = mul %y, %a : f32[4]\n"
                               "  %c = add %b, $w : f32[4]\n"
                               "  %d = div %c, %two : f32[4]\n"
                               "  %e = mul %half, %d : f32[4]\n"
                               "  %f = add $k, %e : f32[4]\n"
                               "  ret %f, %a\n"
                               "}\n";

static ir_op *
op_of(const ir_module *m, const char *name)
{
    for (ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op))
        for (int i = 0; i < op->nres; i++)
            if (!strcmp(op->res[i]->name, name))
                return op;
    return NULL;
}

TEST(patterns)
{
    static const struct {
        const char *root, *pattern;
        bool matches;
    } rows[] = {
        {"a", "(mul ?p ?q)", true},
        {"a", "(mul ?p ?p)", false},
        {"a", "(add ?p ?q)", false},
        {"b", "(mul (mul ?p ?q) ?q)", false}, /* %a is an output as well */
        {"c", "(add (mul ?p ?q) $w)", true},
        {"c", "(add $w (mul ?q ?p))", true}, /* either order */
        {"f", "(add ?p $w)", false},         /* const is no weight */
        {"d", "(div (add ?p ?q) #n)", true},
        {"d", "(div ?p 2)", true},
        {"d", "(div ?p 2.0000001)", true}, /* files hold f32 */
        {"d", "(div ?p 2.001)", false},
        {"d", "(div 2 ?p)", false}, /* not in either order */
        {"d", "(scale ?p 0.5)", true},
        {"e", "(scale ?p 0.5)", true},
        {"e", "(scale (scale ?p 0.5) #n)", true},
        {"e", "(scale (scale ?p 0.4) #n)", false},
        {"f", "(add (scale s:(div ?p ?q) #n) ?k)", true},
    };
    said s;
    said_open(&s);
    ir_module *m = parse(&s, formulas);
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        pass_match match;
        const pass_pattern *p = pass_pattern_new(s.ctx->arena, rows[i].pattern);
        ir_op *op = op_of(m, rows[i].root);
        bool is = pass_pattern_may_root(p, op) && pass_match_at(p, op, &match);
        if (is != rows[i].matches)
            printf("  %s at %%%s: %d\n", rows[i].pattern, rows[i].root, is);
        CHECK(is == rows[i].matches);
    }
    ir_module_free(m);
    said_close(&s);
}

/* A first choice of operands that fits alone but not with the rest is taken back. */
TEST(patterns_backtrack)
{
    said s;
    said_open(&s);
    ir_module *m = parse(&s, "efficc-ir 1\n"
                             "unit 0 \"a\"\n"
                             "func $step(%x : f32[4], %y : f32[4], %z : f32[4]) {\n"
                             "@f: fwd unit=0\n"
                             "  %a = mul %x, %y : f32[4]\n"
                             "  %b = mul %z, %x : f32[4]\n"
                             "  %c = add %a, %b : f32[4]\n"
                             "  %d = mul %c, %x : f32[4]\n"
                             "  ret %d\n"
                             "}\n");
    pass_match match;
    const pass_pattern *p =
        pass_pattern_new(s.ctx->arena, "(mul (add (mul ?p ?q) (mul ?r ?q)) ?q)");
    NEED(pass_match_at(p, op_of(m, "d"), &match));
    CHECK_STR(pass_bound(&match, "q")->name, "x");
    CHECK(match.nop == 4);
    p = pass_pattern_new(s.ctx->arena, "(mul (add (mul ?p ?q) (mul ?r ?q)) ?r)");
    CHECK(!pass_match_at(p, op_of(m, "d"), &match));
    ir_module_free(m);
    said_close(&s);
}

/* ---- views ---- */

TEST(views_follow_heads)
{
    said s;
    said_open(&s);
    ir_module *m = parse(&s, "efficc-ir 1\n"
                             "unit 0 \"a\"\n"
                             "func $step(%x : f32[2,3,24]) {\n"
                             "@f: fwd unit=0\n"
                             "  %c = const {value=0.5} : f32[]\n"
                             "  %k = slice %x {axis=2, start=8} : f32[2,3,8]\n"
                             "  %s = mul %k, %c : f32[2,3,8]\n"
                             "  %r = reshape %s : f32[2,3,2,4]\n"
                             "  %t = transpose %r {perm=[0,2,1,3]} : f32[2,2,3,4]\n"
                             "  %b = reshape %t : f32[4,3,4]\n"
                             "  %u = transpose %b {perm=[0,2,1]} : f32[4,4,3]\n"
                             "  %v = reshape %u : f32[2,2,4,3]\n"
                             "  %cut = reshape %r : f32[2,12,2]\n"
                             "  %piece = slice %cut {axis=1, start=1} : f32[2,5,2]\n"
                             "  %odd = reshape %piece : f32[4,5]\n"
                             "  ret %v, %odd\n"
                             "}\n");
    view w;
    ir_value *v = op_of(m, "v")->res[0];
    CHECK(view_depth(v) == 7);
    NEED(view_of(v, 7, &w));
    CHECK(w.base == m->step->args.at[0] && w.offset == 8 && w.factor == 0.5);
    view_swap_last(&w);
    CHECK(view_is(&w, 4, (int64_t[]){2, 2, 3, 4}, (int64_t[]){72, 4, 24, 1}));
    CHECK(!view_is(&w, 4, (int64_t[]){2, 3, 2, 4}, (int64_t[]){72, 24, 4, 1}));
    NEED(view_of(v, 5, &w)); /* of %s, which has 8 columns */
    CHECK(w.base == op_of(m, "s")->res[0] && w.offset == 0 && w.factor == 1);
    CHECK(
        !view_of(op_of(m, "odd")->res[0], 2, &w)); /* a cut through joined dimensions */
    ir_module_free(m);
    said_close(&s);
}

/* ---- size ---- */

/* Thousands of ops, each of which several rules look at: linear, so far below the limit. */
TEST(long_programs_take_no_time)
{
    enum { N = 20000 };
    said s;
    bool ok;
    said_open(&s);
    ef_buf b = {.arena = s.ctx->arena};
    ef_puts(&b, "efficc-ir 1\nunit 0 \"a\"\nparam $w : f32[4,4] train unit=0 zero\n"
                "func $step(%x0 : f32[2,4]) {\n@f: fwd unit=0\n"
                "  %one = const {value=1} : f32[]\n");
    for (int i = 0; i < N; i++)
        ef_putf(&b,
                "  %%a%d = mul %%one, %%x%d : f32[2,4]\n"
                "  %%b%d = reshape %%a%d : f32[4,2]\n"
                "  %%c%d = reshape %%b%d : f32[2,4]\n"
                "  %%x%d = tanh %%c%d : f32[2,4]\n",
                i, i, i, i, i, i, i + 1, i);
    ef_putf(&b, "  %%y = matmul %%x%d, $w : f32[2,4]\n  ret %%y\n}\n", N);
    ir_module *m = parse(&s, b.s);
    ef_config cfg = ef_config_default;
    cfg.stop_after = "recognise";
    clock_t start = clock();
    run(&s, m, &cfg, &ok);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK(ok && seconds < 20); /* 0.5 s without sanitizers */
    int n = 0;
    for (ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op))
        n++;
    CHECK(n == N + 2);
    ir_module_free(m);
    said_close(&s);
}

/* Neither memory nor time of the probes grows with batch times the square of the length. */
TEST(masks_of_large_batches_are_cheap)
{
    static const char text[] =
        "efficc-ir 1\nmeta input.attention_mask \"mask\"\nunit 0 \"a\"\n"
        "func $step(%x : f32[64,1024,8], %attention_mask : i64[64,1024]) {\n"
        "@f: fwd unit=0\n"
        "  %kt = transpose %x {perm=[0,2,1]} : f32[64,8,1024]\n"
        "  %s = matmul %x, %kt : f32[64,1024,1024]\n"
        "  %b = cast %attention_mask : bool[64,1024]\n"
        "  %r = reshape %b : bool[64,1,1024]\n"
        "  %e = expand %r : bool[64,1024,1024]\n"
        "  %inf = const {value=-inf} : f32[]\n"
        "  %m = where %e, %s, %inf : f32[64,1024,1024]\n"
        "  %p = softmax %m : f32[64,1024,1024]\n"
        "  %o = matmul %p, %x : f32[64,1024,8]\n"
        "  ret %o\n}\n";
    said s;
    bool ok;
    struct rusage used;
    said_open(&s);
    ir_module *m = parse(&s, text);
    ef_config cfg = ef_config_default;
    cfg.stop_after = "recognise";
    clock_t start = clock();
    const char *out = run(&s, m, &cfg, &ok);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    getrusage(RUSAGE_SELF, &used);
    CHECK(ok && strstr(out, "attention %x, %x, %x, %attention_mask"));
    CHECK(seconds < 10);                 /* 0.2 s without sanitizers */
    CHECK(used.ru_maxrss < 450 * 1024L); /* kB; %e alone would take 512 MB */
    ir_module_free(m);
    said_close(&s);
}
