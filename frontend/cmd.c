/* cmd.c -- command lines of the commands of commands.def; see cmd.h. */
#include "cmd.h"
#include "opts_int.h"

#include <string.h>
#include <sys/stat.h>

static const struct command {
    const char *word, *operands;
    int least, most;
    const char *help;
} commands[] = {
#define COMMAND(word, operands, least, most, help) {#word, operands, least, most, help},
#define OPTION(word, name, kind, arg, help)
#include "commands.def"
#undef COMMAND
#undef OPTION
    {NULL, NULL, 0, 0, NULL},
};

/* Their group is the command that has them. */
static const fe_option options[] = {
#define COMMAND(word, operands, least, most, help)
#define OPTION(word, name, kind, arg, help) {name, K_##kind, 0, arg, #word, help},
#include "commands.def"
#undef COMMAND
#undef OPTION
    {NULL, K_FLAG, 0, NULL, NULL, NULL},
};

typedef union value {
    bool flag;
    int64_t i;
    double num;
    const char *s;
} value;

static const struct command *
command_named(const char *word)
{
    for (const struct command *c = commands; c->word; c++)
        if (!strcmp(c->word, word))
            return c;
    return NULL;
}

void
fe_command_rows(FILE *f)
{
    for (const struct command *c = commands; c->word; c++) {
        char what[80];
        snprintf(what, sizeof what, "%s %s", c->word, c->operands);
        fe_help_row(f, what, c->help);
    }
}

/* ---- values ---- */

static const value *
value_of(const cmd_args *a, const char *name, fe_kind kind)
{
    for (int i = 0; i < a->noption; i++)
        if (!strcmp(a->option[i].name, name)) {
            EF_ASSERT(a->option[i].kind == kind ||
                      (a->option[i].kind == K_LIST && kind == K_STR));
            return (const value *)a->values + i;
        }
    EF_UNREACHABLE();
}

bool
cmd_flag(const cmd_args *a, const char *name)
{
    return value_of(a, name, K_FLAG)->flag;
}

int64_t
cmd_int(const cmd_args *a, const char *name)
{
    return value_of(a, name, K_INT)->i;
}

double
cmd_num(const cmd_args *a, const char *name)
{
    return value_of(a, name, K_NUM)->num;
}

const char *
cmd_str(const cmd_args *a, const char *name)
{
    return value_of(a, name, K_STR)->s;
}

/* ---- the command line ---- */

bool
cmd_is(int argc, char **argv)
{
    struct stat st;
    return argc > 1 && command_named(argv[1]) &&
           (stat(argv[1], &st) || !S_ISREG(st.st_mode));
}

/* The options of a command, their fields in an array of values. */
static void
take_options(ef_arena *arena, const char *word, fe_line *l)
{
    fe_option *own = EF_NEWN(arena, fe_option, EF_COUNT(options));
    for (const fe_option *o = options; o->name; o++)
        if (!strcmp(o->group, word)) {
            own[l->noption] = *o;
            own[l->noption].field = (size_t)l->noption * sizeof(value);
            l->noption++;
        }
    l->option = own;
    l->values = EF_NEWN(arena, value, l->noption + 1);
}

static void
help(FILE *f, const fe_line *l)
{
    const struct command *c = command_named(l->argv[1]);
    fprintf(f, "usage: %s %s [options]\n\n%s\n\n", l->command, c->operands, c->help);
    fe_line_help(f, l, false);
}

void
cmd_help(FILE *f, const char *word)
{
    ef_arena *a = ef_arena_new();
    fe_line l = {.command = ef_printf(a, "efficc %s", word),
                 .argv = (char *[]){"efficc", ef_strdup(a, word)}};
    take_options(a, word, &l);
    help(f, &l);
    ef_arena_free(a);
}

static void
check_operands(fe_line *l, const struct command *c)
{
    int n = l->operands.n;
    if (l->ok && n < c->least)
        l->ok = ef_error(l->ctx, NULL, E_FILE, n ? l->operands.at[n - 1] : l->command,
                         n ? "not all operands are given" : "no file given");
    else if (l->ok && n > c->most)
        l->ok = ef_error(l->ctx, NULL, E_FILE, l->operands.at[c->most],
                         "one operand too many");
    else
        return;
    ef_hint(l->ctx, "%s %s [options]; %s --help lists them", l->command, c->operands,
            l->command);
}

/* Splits the command line of a command whose other options are the compiler's: its own go to
 * own[], with their values, all else stays. Returns how many are its own. */
static int
split_line(const fe_line *l, cmd_args *a, char **own)
{
    int nown = 2, n = 2;
    for (int i = 2; i < a->argc; i++) {
        char *word = a->argv[i];
        size_t len = strncmp(word, "--", 2) ? 0 : strcspn(word + 2, "=");
        const char *name = ef_strndup(l->ctx->arena, word + 2 * !!len, len);
        const fe_option *o = len ? fe_line_option(l, name) : NULL;
        if (!o) {
            a->argv[n++] = word;
            continue;
        }
        own[nown++] = word;
        if (o->kind != K_FLAG && !word[2 + len] && i + 1 < a->argc)
            own[nown++] = a->argv[++i];
    }
    a->argc = n;
    return nown;
}

int
cmd_parse(ef_ctx *ctx, int argc, char **argv, cmd_args *a)
{
    const struct command *c = command_named(argv[1]);
    bool compiles = c->most < 0;
    fe_line l = {.ctx = ctx, .help = help, .argc = argc, .at = 2, .argv = argv};
    *a = (cmd_args){.word = c->word, .argc = argc};
    a->argv = EF_NEWN(ctx->arena, char *, argc + 1);
    memcpy(a->argv, argv, (size_t)argc * sizeof *argv);
    l.command = ef_printf(ctx->arena, "efficc %s", c->word);
    take_options(ctx->arena, c->word, &l);
    if (compiles) {
        l.argv = EF_NEWN(ctx->arena, char *, argc + 1);
        l.argc = split_line(&l, a, l.argv);
        l.argv[0] = argv[0];
        l.argv[1] = argv[1];
    }
    int code = fe_line_read(&l);
    if (code >= 0)
        return code;
    if (!compiles)
        check_operands(&l, c);
    a->n = l.operands.n;
    a->at = l.operands.at;
    a->option = l.option;
    a->noption = l.noption;
    a->values = l.values;
    return l.ok ? -1 : 1;
}

int
cmd_compiler_options(ef_ctx *ctx, const cmd_args *args, ef_config *cfg)
{
    char **argv = EF_NEWN(ctx->arena, char *, args->argc + 1);
    int n = 0;
    argv[n++] = args->argv[0];
    for (int i = 2; i < args->argc; i++) {
        const char *arg = args->argv[i];
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            cmd_help(stdout, args->word);
            puts("\nOptions of efficc MODEL.onnx are understood, too: sizes, task, "
                 "adapters, precision ..");
            return 0;
        }
        argv[n++] = args->argv[i];
    }
    return fe_options(ctx, n, argv, cfg);
}
