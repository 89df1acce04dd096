/* build.c -- sources to an executable with the user's C compiler.
 *
 * step.c is one long line of calls and gains nothing from optimisation; kernels.c holds the
 * loops. Both are compiled at the same time. What the compiler says goes to src/build.log,
 * which stays if it fails.
 * No shell is involved, so names of folders may hold anything.
 */
#include "cg_int.h"
#include "clang_check.h"

#include <errno.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINES_SHOWN = 8, LOG_BYTES = 1 << 20 };

/* Flags beside --cflags. Never -ffast-math: it breaks infinities. */
static const char fixed_flags[] =
    "-std=c11 -fopenmp -fno-math-errno -fno-trapping-math -Wall";

typedef EF_VEC(char *) words;

typedef struct job { /* a compiler that runs */
    const char *what;
    pid_t pid;
    FILE *log;
} job;

extern char **environ;

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
    posix_spawn_file_actions_t to;
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
    posix_spawn_file_actions_init(&to);
    posix_spawn_file_actions_adddup2(&to, fileno(j->log), 1);
    posix_spawn_file_actions_adddup2(&to, fileno(j->log), 2);
    int why = posix_spawnp(&j->pid, w->at[0], &to, NULL, w->at, environ);
    posix_spawn_file_actions_destroy(&to);
    if (!why)
        return true;
    ef_error(ctx, NULL, E_CG_BUILD,
             ef_printf(ctx->arena, "can not run '%s': %s", w->at[0], strerror(why)));
    ef_hint(ctx, "--cc names the C compiler; --no-build leaves the sources uncompiled");
    fclose(j->log);
    j->log = NULL;
    return false;
}

/* What the job wrote, appended to the log. */
static const char *
collect(ef_ctx *ctx, job *j, FILE *log)
{
    char *text = ef_alloc(ctx->arena, LOG_BYTES + 1);
    rewind(j->log);
    size_t n = fread(text, 1, LOG_BYTES, j->log);
    fwrite(text, 1, n, log);
    fclose(j->log);
    j->log = NULL;
    const char *body = strchr(text, '\n'); /* behind the command */
    return body ? body + 1 : text;
}

/* Waits; false: the command failed and its first lines were shown. */
static bool
finish(ef_ctx *ctx, job *j, FILE *log, const char *log_path)
{
    int status = 0;
    while (waitpid(j->pid, &status, 0) < 0 && errno == EINTR)
        ;
    const char *text = collect(ctx, j, log);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    ef_error(ctx, NULL, E_CG_BUILD,
             WIFSIGNALED(status)
                 ? ef_printf(ctx->arena, "the compiler was ended by signal %d at %s",
                             WTERMSIG(status), j->what)
                 : ef_printf(ctx->arena, "the compiler refused %s", j->what));
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT)
        return false; /* so was efficc, then, and nothing stays */
    for (int i = 0; i < LINES_SHOWN && *text; i++) {
        size_t n = strcspn(text, "\n");
        ef_note(ctx, "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
    ef_note(ctx, "all of it: %s", log_path);
    return false;
}

/* cc FLAGS -c src/NAME.c -o src/NAME.o */
static bool
compile(ef_ctx *ctx, job *j, const char *src, const char *name, const char *flags)
{
    words w = {0};
    ef_arena *a = ctx->arena;
    add_words(a, &w, ctx->cfg->cc);
    add_words(a, &w, ctx->cfg->cflags);
    add_words(a, &w, fixed_flags);
    add_words(a, &w, flags);
    add_words(a, &w, EFFICC_RT_SAN);
    add_word(a, &w, "-I");
    add_word(a, &w, EFFICC_RT_INCLUDE);
    add_word(a, &w, "-c");
    add_word(a, &w, ef_printf(a, "%s/%s.c", src, name));
    add_word(a, &w, "-o");
    add_word(a, &w, ef_printf(a, "%s/%s.o", src, name));
    return start(ctx, j, name, &w);
}

static bool
link_trainer(ef_ctx *ctx, job *j, const char *src, const char *dir)
{
    words w = {0};
    ef_arena *a = ctx->arena;
    add_words(a, &w, ctx->cfg->cc);
    add_words(a, &w, EFFICC_RT_SAN);
    add_word(a, &w, "-fopenmp");
    add_word(a, &w, "-o");
    add_word(a, &w, ef_printf(a, "%s/trainer", dir));
    add_word(a, &w, ef_printf(a, "%s/step.o", src));
    add_word(a, &w, ef_printf(a, "%s/kernels.o", src));
    add_word(a, &w, EFFICC_RT_LIB);
    add_words(a, &w, EFFICC_RT_LINK);
    return start(ctx, j, "the link", &w);
}

static bool
build(ef_ctx *ctx, const char *src, const char *dir, FILE *log, const char *log_path)
{
    job step, kernels, all;
    bool one = compile(ctx, &step, src, "step", "-O1");
    bool two = one && compile(ctx, &kernels, src, "kernels", "");
    bool ok = one && finish(ctx, &step, log, log_path);
    ok = two && finish(ctx, &kernels, log, log_path) && ok;
    return ok && link_trainer(ctx, &all, src, dir) && finish(ctx, &all, log, log_path);
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
    FILE *log = fopen(log_path, "w");
    if (!log)
        return ef_error(ctx, NULL, E_CG_OUTPUT, log_path, strerror(errno));
    bool ok = build(ctx, src, dir, log, log_path);
    fclose(log);
    if (ok)
        unlink(log_path); /* it names the temporary folder */
    unlink(ef_printf(a, "%s/step.o", src));
    unlink(ef_printf(a, "%s/kernels.o", src));
    return ok;
}

/* text with '$' doubled, as make wants it */
static const char *
for_make(ef_arena *a, const char *text)
{
    ef_buf b = {.arena = a};
    for (; *text; text++)
        ef_puts(&b, *text == '$' ? "$$" : (char[]){*text, 0});
    return b.s ? b.s : "";
}

void
cg_makefile(ef_ctx *ctx, ef_buf *b)
{
    ef_arena *a = ctx->arena;
    ef_puts(
        b, "# Builds ../trainer by hand: make -C src. Set CC, CFLAGS, or the paths of\n"
           "# the runtime (RT_INCLUDE, RT_LIB) on the command line.\n");
    ef_putf(b, "CC = %s\nCFLAGS = %s\n", for_make(a, ctx->cfg->cc),
            for_make(a, ctx->cfg->cflags));
    ef_putf(b, "FLAGS = %s %s\n", fixed_flags, EFFICC_RT_SAN);
    ef_putf(b, "RT_INCLUDE = %s\nRT_LIB = %s\nLIBS = %s\n",
            for_make(a, EFFICC_RT_INCLUDE), for_make(a, EFFICC_RT_LIB),
            for_make(a, EFFICC_RT_LINK));
    ef_puts(b, "\n../trainer: step.o kernels.o $(RT_LIB)\n"
               "\t$(CC) $(FLAGS) -o $@ step.o kernels.o $(RT_LIB) $(LIBS)\n"
               "\nstep.o: step.c plan.h kernels.h\n"
               "\t$(CC) $(CFLAGS) $(FLAGS) -O1 -I $(RT_INCLUDE) -c step.c -o $@\n"
               "\nkernels.o: kernels.c kernels.h\n"
               "\t$(CC) $(CFLAGS) $(FLAGS) -I $(RT_INCLUDE) -c kernels.c -o $@\n"
               "\nclean:\n\trm -f step.o kernels.o ../trainer\n\n.PHONY: clean\n");
}
