/* build.c -- sources to an executable with the user's C compiler, and nvcc for a GPU.
 *
 * step.c is one long line of calls and gains nothing from optimisation; kernels.c or
 * kernels.cu holds the loops. Both are compiled at the same time. What the compilers say goes
 * to src/build.log, which stays if one fails.
 * No shell is involved, so names of folders may hold anything.
 */
#include "../ir/process.h"
#include "cg_int.h"
#include "clang_check.h"
#include "cuda_limits.h"
#include "toolkit.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINES_SHOWN = 8, LOG_BYTES = 1 << 22, SOURCE_MAX = 1 << 28 };

/* Flags beside --cflags. Never -ffast-math: it breaks infinities. */
static const char fixed_flags[] =
    "-std=c11 -fopenmp -fno-math-errno -fno-trapping-math -Wall";
/* Of nvcc, likewise. */
static const char nvcc_flags[] = "-std=c++17 -O3 -Xcompiler -Wall";

typedef cg_words words;

typedef struct job { /* a compiler that runs */
    const char *what;
    pid_t pid;
    FILE *log;
    const char *said; /* when it has ended: what it wrote */
} job;

/* Flags of the C compiler. A trainer for a GPU is often made on another machine than it runs
 * on, and its C does nothing but call: it is for any processor. */
static const char *
c_flags(ef_ctx *ctx)
{
    if (ctx->cfg->cflags)
        return ctx->cfg->cflags;
    return cg_is_cuda(ctx) ? "-O3" : "-O3 -march=native";
}

static void
add_words(ef_arena *a, words *w, const char *text)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ");
        if (n)
            ef_push(a, *w, ef_strndup(a, p, n));
        p += n + (p[n] == ' ');
    }
}

static void
add_word(ef_arena *a, words *w, const char *word)
{
    ef_push(a, *w, ef_strdup(a, word));
}

/* Starts the command with both outputs into a file of its own. false: said why. */
static bool
start(ef_ctx *ctx, job *j, const char *what, words *w)
{
    ef_push(ctx->arena, *w, (char *)NULL);
    *j = (job){.what = what, .log = tmpfile()};
    if (!j->log)
        return ef_error(
            ctx, NULL, E_CG_BUILD,
            ef_printf(ctx->arena, "no temporary file: %s", strerror(errno)));
    for (int i = 0; w->at[i]; i++)
        fprintf(j->log, "%s%s", i ? " " : "", w->at[i]);
    fprintf(j->log, "\n");
    fflush(j->log);
    int why = ef_start(&j->pid, w->at, fileno(j->log));
    if (!why)
        return true;
    ef_error(ctx, NULL, E_CG_BUILD,
             ef_printf(ctx->arena, "can not run '%s': %s", w->at[0], strerror(why)));
    if (cg_is_cuda(ctx) && !strcmp(w->at[0], cg_nvcc(ctx)))
        ef_hint(ctx, "--nvcc names NVIDIA's compiler; --target cpu needs none");
    else
        ef_hint(ctx,
                "--cc names the C compiler; --no-build leaves the sources uncompiled");
    fclose(j->log);
    j->log = NULL;
    return false;
}

/* What the job wrote, appended to the log, too. */
static void
collect(ef_ctx *ctx, job *j, FILE *log)
{
    char *text = ef_alloc(ctx->arena, LOG_BYTES + 1);
    rewind(j->log);
    size_t n = fread(text, 1, LOG_BYTES, j->log);
    fwrite(text, 1, n, log);
    fclose(j->log);
    j->log = NULL;
    const char *body = strchr(text, '\n'); /* behind the command */
    j->said = body ? body + 1 : text;
}

/* Waits; false: the command failed and its first lines were shown. */
static bool
finish(ef_ctx *ctx, job *j, FILE *log)
{
    int status = ef_wait(j->pid);
    collect(ctx, j, log);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    ef_error(ctx, NULL, E_CG_BUILD,
             WIFSIGNALED(status)
                 ? ef_printf(ctx->arena, "the compiler was ended by signal %d at %s",
                             WTERMSIG(status), j->what)
                 : ef_printf(ctx->arena, "the compiler refused %s", j->what));
    const char *text = j->said;
    for (int i = 0; i < LINES_SHOWN && *text; i++) {
        size_t n = strcspn(text, "\n");
        ef_note(ctx, "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
    return false;
}

/* The end of a command: -I INCLUDE -c src/NAME.SUFFIX -o src/NAME.o. Starts it. */
static bool
compile(ef_ctx *ctx, job *j, words *w, const char *src, const char *name)
{
    ef_arena *a = ctx->arena;
    add_word(a, w, "-I");
    add_word(a, w, EFFICC_RT_INCLUDE);
    add_word(a, w, "-c");
    add_word(a, w, ef_printf(a, "%s/%s", src, name));
    add_word(a, w, "-o");
    add_word(a, w, ef_printf(a, "%s/%.*s.o", src, (int)strcspn(name, "."), name));
    return start(ctx, j, ef_strndup(a, name, strcspn(name, ".")), w);
}

static bool
compile_c(ef_ctx *ctx, job *j, const char *src, const char *name, const char *flags)
{
    words w = {0};
    ef_arena *a = ctx->arena;
    add_words(a, &w, ctx->cfg->cc);
    add_words(a, &w, c_flags(ctx));
    add_words(a, &w, fixed_flags);
    add_words(a, &w, flags);
    add_words(a, &w, EFFICC_RT_SAN);
    return compile(ctx, j, &w, src, name);
}

static bool
compile_cuda(ef_ctx *ctx, job *j, const char *src)
{
    words w = {0};
    add_word(ctx->arena, &w, cg_nvcc(ctx));
    add_words(ctx->arena, &w, nvcc_flags);
    add_words(ctx->arena, &w, "-Xptxas -v"); /* registers, for cuda_limits.h */
    add_words(ctx->arena, &w, cg_arch_flags(ctx));
    return compile(ctx, j, &w, src, "kernels.cu");
}

/* Each of the flags behind -Xcompiler. */
static void
add_host_flags(ef_arena *a, words *w, const char *flags)
{
    words host = {0};
    add_words(a, &host, flags);
    for (int i = 0; i < host.n; i++) {
        add_word(a, w, "-Xcompiler");
        add_word(a, w, host.at[i]);
    }
}

static bool
link_trainer(ef_ctx *ctx, job *j, const char *src, const char *dir)
{
    words w = {0};
    ef_arena *a = ctx->arena;
    bool cuda = cg_is_cuda(ctx);
    if (cuda) {
        add_word(a, &w, cg_nvcc(ctx));
        add_words(a, &w, cg_arch_flags(ctx));
        add_host_flags(a, &w, EFFICC_RT_SAN);
    } else {
        add_words(a, &w, ctx->cfg->cc);
        add_words(a, &w, EFFICC_RT_SAN);
        add_word(a, &w, "-fopenmp");
    }
    add_word(a, &w, "-o");
    add_word(a, &w, ef_printf(a, "%s/trainer", dir));
    add_word(a, &w, ef_printf(a, "%s/step.o", src));
    add_word(a, &w, ef_printf(a, "%s/kernels.o", src));
    add_word(a, &w, cuda ? EFFICC_RT_CUDA_LIB : EFFICC_RT_LIB);
    if (cuda)
        cg_link_toolkit(ctx, cg_nvcc(ctx), &w);
    add_words(a, &w, cuda ? EFFICC_RT_CUDA_LINK : EFFICC_RT_LINK);
    return start(ctx, j, "the link", &w);
}

/* Can a card launch what nvcc has made? */
static bool
fits(ef_ctx *ctx, const char *src, const char *said)
{
    size_t n;
    const char *path = ef_printf(ctx->arena, "%s/kernels.cu", src);
    const char *source = ef_read_file(ctx->arena, path, SOURCE_MAX, &n);
    const cg_launch launch = {.threads = CG_CUDA_THREADS};
    if (!source)
        return ef_error(ctx, NULL, E_CG_OUTPUT, path, strerror(errno));
    return cg_cuda_limits(ctx, said, source, &launch);
}

/* How there will be a runtime for CUDA. */
static void
hint_runtime(ef_ctx *ctx)
{
    ef_hint(ctx, "set CUDA_HOME to a toolkit and build efficc again (cmake "
                 "-DEFFICC_CUDA=ON); --target cpu needs none; --no-build leaves the "
                 "sources");
}

static bool
build(ef_ctx *ctx, const char *src, const char *dir, FILE *log)
{
    job step, kernels, all;
    bool one = compile_c(ctx, &step, src, "step.c", "-O1");
    bool two =
        one && (cg_is_cuda(ctx) ? compile_cuda(ctx, &kernels, src)
                                : compile_c(ctx, &kernels, src, "kernels.c", ""));
    bool ok = one && finish(ctx, &step, log);
    ok = two && finish(ctx, &kernels, log) && ok;
    ok = ok && (!cg_is_cuda(ctx) || fits(ctx, src, kernels.said));
    if (!ok || !link_trainer(ctx, &all, src, dir))
        return false;
    ok = finish(ctx, &all, log);
    if (!ok && cg_is_cuda(ctx) && !cg_has_cuda_runtime())
        hint_runtime(ctx);
    if (ok && access(ef_printf(ctx->arena, "%s/trainer", dir), X_OK))
        return ef_error(ctx, NULL, E_CG_BUILD,
                        "the compiler says that all is well, but made no trainer");
    return ok;
}

bool
cg_ready(ef_ctx *ctx)
{
    if (!cg_is_cuda(ctx) || !ctx->cfg->build)
        return true;
    const char *wrong = cg_wrong_nvcc(ctx);
    if (wrong) {
        ef_error(ctx, NULL, E_OPT_VALUE, "nvcc",
                 ef_printf(ctx->arena, "there is no program '%s'", wrong));
        ef_hint(ctx, "--nvcc names NVIDIA's compiler; --target cpu needs none");
        return false;
    }
    if (!cg_nvcc(ctx)) {
        ef_error(ctx, NULL, E_CG_BUILD,
                 ef_printf(ctx->arena, "no nvcc was found%s", cg_wrong_home(ctx)));
        ef_hint(ctx, "--nvcc names it; scripts/setup.sh --cuda makes a toolkit; "
                     "--target cpu needs none; --no-build leaves the sources");
        return false;
    }
    if (ctx->cfg->nvcc || cg_has_cuda_runtime())
        return true; /* who names an nvcc may name one that brings a runtime */
    ef_error(ctx, NULL, E_CG_BUILD,
             ef_printf(ctx->arena,
                       "%s is not there: efficc was built without a toolkit",
                       EFFICC_RT_CUDA_LIB));
    hint_runtime(ctx);
    return false;
}

bool
cg_build(ef_ctx *ctx, const char *dir)
{
    ef_arena *a = ctx->arena;
    const char *src = ef_printf(a, "%s/src", dir);
    const char *log_path = ef_printf(a, "%s/build.log", src);
    if (!cg_check_sources(ctx, src))
        return false;
    if (!ctx->cfg->build)
        return true;
    if (!cg_ready(ctx))
        return false;
    FILE *log = fopen(log_path, "w");
    if (!log)
        return ef_error(ctx, NULL, E_CG_OUTPUT, log_path, strerror(errno));
    bool ok = build(ctx, src, dir, log);
    fclose(log);
    if (ok)
        unlink(log_path); /* it names the temporary folder */
    unlink(ef_printf(a, "%s/step.o", src));
    unlink(ef_printf(a, "%s/kernels.o", src));
    return ok;
}

/* text with '$' doubled, and '#' not for a comment, as make wants it */
static const char *
for_make(ef_arena *a, const char *text)
{
    ef_buf b = {.arena = a};
    for (; *text; text++)
        ef_puts(&b, *text == '$' ? "$$" : *text == '#' ? "\\#" : (char[]){*text, 0});
    return b.s ? b.s : "";
}

/* A word of a command, for the shell that make calls. */
static const char *
for_shell(ef_arena *a, const char *text)
{
    ef_buf b = {.arena = a};
    if (!strpbrk(text, " '\"\\()&;<>|*?[]`#~"))
        return for_make(a, text);
    ef_puts(&b, "'");
    for (; *text; text++)
        ef_puts(&b, *text == '\'' ? "'\\''" : (char[]){*text, 0});
    ef_puts(&b, "'");
    return for_make(a, b.s);
}

/* What make knows of the target: the compiler of kernels, and of the whole. */
static void
put_kernel_rules(ef_ctx *ctx, ef_buf *b)
{
    if (!cg_is_cuda(ctx)) {
        ef_puts(b, "\n../trainer: step.o kernels.o $(RT_LIB)\n"
                   "\t$(CC) $(FLAGS) -o $@ step.o kernels.o $(RT_LIB) $(LIBS)\n"
                   "\nkernels.o: kernels.c kernels.h\n"
                   "\t$(CC) $(CFLAGS) $(FLAGS) -I $(RT_INCLUDE) -c kernels.c -o $@\n");
        return;
    }
    words host = {0};
    ef_arena *a = ctx->arena;
    const char *nvcc = cg_nvcc(ctx);
    add_host_flags(a, &host, EFFICC_RT_SAN);
    if (nvcc)
        cg_link_toolkit(ctx, nvcc, &host);
    ef_putf(b, "NVCC = %s\nARCH = %s\nNVFLAGS = %s\nCUDALIBS =",
            nvcc ? for_shell(a, nvcc) : "nvcc", cg_arch_flags(ctx), nvcc_flags);
    for (int i = 0; i < host.n; i++)
        ef_putf(b, " %s", for_shell(a, host.at[i]));
    ef_puts(b, nvcc ? "\n" : " -lcublasLt\n");
    ef_puts(b,
            "\n../trainer: step.o kernels.o $(RT_LIB)\n"
            "\t$(NVCC) $(ARCH) -o $@ step.o kernels.o $(RT_LIB) $(CUDALIBS) $(LIBS)\n"
            "\nkernels.o: kernels.cu kernels.h\n"
            "\t$(NVCC) $(NVFLAGS) $(ARCH) -I $(RT_INCLUDE) -c kernels.cu -o $@\n");
}

void
cg_makefile(ef_ctx *ctx, ef_buf *b)
{
    ef_arena *a = ctx->arena;
    bool cuda = cg_is_cuda(ctx);
    ef_putf(
        b,
        "# Builds ../trainer by hand: make -C src. Set CC, CFLAGS, %sor the paths of\n"
        "# the runtime (RT_INCLUDE, RT_LIB) on the command line.\n",
        cuda ? "NVCC, ARCH, " : "");
    ef_putf(b, "CC = %s\nCFLAGS = %s\n", for_make(a, ctx->cfg->cc),
            for_make(a, c_flags(ctx)));
    ef_putf(b, "FLAGS = %s %s\n", fixed_flags, EFFICC_RT_SAN);
    ef_putf(b, "RT_INCLUDE = %s\nRT_LIB = %s\nLIBS = %s\n",
            for_make(a, EFFICC_RT_INCLUDE),
            for_make(a, cuda ? EFFICC_RT_CUDA_LIB : EFFICC_RT_LIB),
            for_make(a, cuda ? EFFICC_RT_CUDA_LINK : EFFICC_RT_LINK));
    put_kernel_rules(ctx, b);
    ef_puts(b, "\nstep.o: step.c plan.h kernels.h\n"
               "\t$(CC) $(CFLAGS) $(FLAGS) -O1 -I $(RT_INCLUDE) -c step.c -o $@\n"
               "\nclean:\n\trm -f step.o kernels.o ../trainer\n\n.PHONY: clean\n");
}
