/* args_text.c -- options as text: the help, a JSON object, a command for a shell. */
#include "args_int.h"

#include <stdlib.h>
#include <string.h>

/* ---- help ---- */

const char *
rt_opt_name(const rt_opt_row *r)
{
    static char name[64];
    size_t i = 0;
    for (; r->field[i] && i + 1 < sizeof name; i++)
        name[i] = r->field[i] == '_' ? '-' : r->field[i];
    name[i] = 0;
    return name;
}

static void
put_default(rt_text *t, const rt_opt_row *r)
{
    const char *at = (const char *)&rt_opt_defaults + r->at;
    if (r->kind == KIND_FLAG && *(const bool *)at)
        rt_putf(t, " [true]");
    if (r->kind == KIND_INT && *(const int64_t *)at)
        rt_putf(t, " [%lld]", (long long)*(const int64_t *)at);
    if (r->kind == KIND_NUM)
        rt_putf(t, " [%g]", *(const double *)at);
    if (r->kind == KIND_STR && *(const char *const *)at)
        rt_putf(t, " [%s]", *(const char *const *)at);
}

/* text in lines of at most 80 columns, those after the first indented. */
static void
put_wrapped(FILE *f, int column, const char *text)
{
    enum { INDENT = 34, WIDTH = 80 };
    if (column + 2 > INDENT) {
        fputc('\n', f);
        column = 0;
    }
    for (; column < INDENT; column++)
        fputc(' ', f);
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > INDENT && column + 1 + n > WIDTH) {
            fprintf(f, "\n%*s", INDENT, "");
            column = INDENT;
        }
        column += fprintf(f, "%s%.*s", column > INDENT ? " " : "", n, text);
        text += n + (text[n] == ' ');
    }
    fputc('\n', f);
}

static void
help_row(FILE *f, const rt_opt_row *r)
{
    int column = fprintf(f, "  --%s", rt_opt_name(r));
    if (r->arg)
        column += fprintf(f, " %s", r->arg);
    rt_text t = {0};
    rt_putf(&t, "%s", r->help);
    put_default(&t, r);
    put_wrapped(f, column, t.s);
    free(t.s);
}

void
rt_help(FILE *f, const char *trainer, const rt_program *p)
{
    fprintf(f, "usage: %s --train-data FILE [options]\n\n", trainer);
    fprintf(f, "Fine-tunes %s (%s, %lld x %lld tokens a micro-batch, %s).\n", p->model,
            p->task, (long long)p->batch, (long long)p->seq,
            p->lora_r ? "LoRA" : "full fine-tuning");
    fprintf(f, "'-' and '_' are the same in a name; [value] is the default.\n");
    const char *group = "";
    for (int i = 0; i < RT_NOPTS; i++) {
        if (strcmp(group, rt_opt_table[i].group))
            fprintf(f, "\n%s\n", rt_opt_table[i].group);
        group = rt_opt_table[i].group;
        help_row(f, &rt_opt_table[i]);
    }
    fprintf(f, "\n  --help, --version\n\n");
    fprintf(f,
            "Exit codes: 0 done, 1 options, input or data must be mended, 70 a bug in\n"
            "efficc, 75 stopped, and --resume-from-checkpoint goes on.\n");
}

/* ---- JSON ---- */

static bool
at_default(const rt_opt_row *r, const rt_opts *o)
{
    const char *a = (const char *)o + r->at,
               *b = (const char *)&rt_opt_defaults + r->at;
    if (r->kind == KIND_FLAG)
        return *(const bool *)a == *(const bool *)b;
    if (r->kind == KIND_INT)
        return *(const int64_t *)a == *(const int64_t *)b;
    if (r->kind == KIND_NUM)
        return *(const double *)a == *(const double *)b;
    if (r->kind == KIND_LIST)
        return !((const rt_words *)a)->n;
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return x == y || (x && y && !strcmp(x, y));
}

static void
put_value(rt_text *t, const rt_opt_row *r, const char *at)
{
    const rt_words *list = (const rt_words *)at;
    if (r->kind == KIND_FLAG)
        rt_putf(t, *(const bool *)at ? "true" : "false");
    if (r->kind == KIND_INT)
        rt_putf(t, "%lld", (long long)*(const int64_t *)at);
    if (r->kind == KIND_NUM)
        rt_putf(t, "%.17g", *(const double *)at);
    if (r->kind == KIND_STR && *(const char *const *)at)
        rt_put_json(t, *(const char *const *)at);
    else if (r->kind == KIND_STR)
        rt_putf(t, "null");
    for (int i = 0; r->kind == KIND_LIST && i < list->n; i++) {
        rt_putf(t, i ? ", " : "[");
        rt_put_json(t, list->at[i]);
    }
    if (r->kind == KIND_LIST)
        rt_putf(t, "]");
}

void
rt_opts_json(const rt_opts *o, rt_text *t)
{
    const char *between = "";
    rt_putf(t, "{");
    for (int i = 0; i < RT_NOPTS; i++) {
        const rt_opt_row *r = &rt_opt_table[i];
        if (at_default(r, o))
            continue;
        rt_putf(t, "%s\"%s\": ", between, r->field);
        put_value(t, r, (const char *)o + r->at);
        between = ", ";
    }
    rt_putf(t, "}");
}

/* ---- for a shell ---- */

static void
put_quoted(rt_text *t, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_-+=./:,@%";
    if (*word && !word[strspn(word, plain)]) {
        rt_putf(t, "%s", word);
        return;
    }
    rt_putf(t, "'");
    for (; *word; word++)
        rt_putf(t, *word == '\'' ? "'\\''" : "%c", *word);
    rt_putf(t, "'");
}

/* Is this word the option, alone or with =VALUE? */
static bool
is_option(const char *word, const char *field)
{
    return !strncmp(word, "--", 2) &&
           rt_same_name(word + 2, strcspn(word + 2, "="), field);
}

void
rt_go_on(int argc, char **argv, rt_text *t)
{
    put_quoted(t, argv[0]);
    for (int i = 1; i < argc; i++) {
        if (is_option(argv[i], "overwrite_output_dir") ||
            is_option(argv[i], "resume_from_checkpoint")) {
            bool value = !strchr(argv[i], '=') && i + 1 < argc;
            i += value && strncmp(argv[i + 1], "--", 2);
            continue;
        }
        rt_putf(t, " ");
        put_quoted(t, argv[i]);
    }
    rt_putf(t, " --resume-from-checkpoint");
}
