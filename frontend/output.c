/* output.c -- the output folder: whole or not there.
 *
 * Everything is written into DIR.XXXXXX, which takes the place of DIR in one step. What an
 * older DIR holds besides our own files is moved into the new one.
 */
#include "output_int.h"

#include "../ir/process.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLAN_BYTES_MAX = 1 << 26 };

struct fe_output {
    ef_ctx *ctx;
    const char *dir;
    const char *temp; /* NULL: none exists */
};

/* What efficc writes: all that is removed of an older build. */
static const struct {
    const char *name;
    bool tells; /* what went wrong; small, whatever the model */
} own[] = {{"trainer", false},       {"base.safetensors", false},
           {"template.onnx", false}, {"template.json", false},
           {"plan.json", true},      {"src", true}};

static bool
fault(fe_output *o, const char *text)
{
    return ef_error(o->ctx, NULL, E_CG_OUTPUT, o->dir, text);
}

/* ---- may the folder be written? ---- */

static const char *
choose_dir(ef_ctx *ctx)
{
    const ef_config *c = ctx->cfg;
    if (c->output) {
        size_t n = strlen(c->output);
        while (n > 1 && c->output[n - 1] == '/')
            n--;
        return ef_strndup(ctx->arena, c->output, n);
    }
    const char *slash = strrchr(c->input, '/'), *dot = strrchr(c->input, '.');
    bool suffix = dot && dot > (slash ? slash + 1 : c->input);
    return ef_printf(ctx->arena, "%.*s.efficc",
                     (int)(suffix ? dot - c->input : (long)strlen(c->input)), c->input);
}

static bool
is_within(const char *inner, const char *outer)
{
    char a[PATH_MAX], b[PATH_MAX];
    if (!realpath(inner, a) || !realpath(outer, b))
        return false;
    size_t n = strlen(b);
    return !strncmp(a, b, n) && (!a[n] || a[n] == '/' || n == 1);
}

static bool
is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return d && n == 2; /* "." and ".." */
}

static bool
has_our_plan(fe_output *o)
{
    size_t n;
    ef_arena *a = ef_arena_new();
    const char *path = ef_printf(a, "%s/plan.json", o->dir);
    const char *text = ef_read_file(a, path, PLAN_BYTES_MAX, &n);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    bool ours = cJSON_HasObjectItem(json, "efficc");
    cJSON_Delete(json);
    ef_arena_free(a);
    return ours;
}

static bool
may_replace(fe_output *o)
{
    struct stat st;
    if (lstat(o->dir, &st))
        return errno == ENOENT || fault(o, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return fault(o, "it exists and is not a folder");
    if (is_within(".", o->dir) || is_within(o->ctx->cfg->input, o->dir))
        return fault(o, "it holds the working folder or the model; choose another");
    if (o->ctx->cfg->force || is_empty(o->dir) || has_our_plan(o))
        return true;
    fault(o, "it exists, and efficc did not make it (it has no plan.json of ours)");
    ef_hint(o->ctx, "choose another folder, or replace this one with --force");
    return false;
}

fe_output *
fe_output_open(ef_ctx *ctx)
{
    fe_output *o = EF_NEW(ctx->arena, fe_output);
    *o = (fe_output){ctx, choose_dir(ctx), NULL};
    bool prints = ctx->cfg->given_run_pass || ctx->cfg->stop_after;
    return prints || may_replace(o) ? o : NULL;
}

/* ---- writing and putting in place ---- */

/* The folders above path. What can't be made, mkdtemp() will miss and say why. */
static void
make_parents(ef_ctx *ctx, const char *path)
{
    char *above = ef_strdup(ctx->arena, path);
    for (char *slash = above + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        if (mkdir(above, 0777) && errno != EEXIST)
            return;
    }
}

bool
fe_output_begin(fe_output *o)
{
    char *temp = ef_printf(o->ctx->arena, "%s.XXXXXX", o->dir);
    make_parents(o->ctx, o->dir);
    ef_hold_signals(true);
    o->temp = mkdtemp(temp);
    ef_unfinished(o->temp);
    ef_hold_signals(false);
    if (!o->temp)
        return fault(o, strerror(errno));
    mode_t mask = umask(0);
    umask(mask);
    chmod(temp, 0777 & ~mask);
    return true;
}

const char *
fe_output_dir(const fe_output *o)
{
    return o->temp;
}

static bool
is_own(const char *name)
{
    for (size_t i = 0; i < EF_COUNT(own); i++)
        if (!strcmp(name, own[i].name))
            return true;
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Moves what is not ours from an older build into the new one. */
static bool
move_foreign(fe_output *o, const char *from, const char *to)
{
    DIR *d = opendir(from);
    bool ok = d != NULL;
    for (struct dirent *e; ok && (e = readdir(d));) {
        if (is_own(e->d_name))
            continue;
        const char *a = ef_printf(o->ctx->arena, "%s/%s", from, e->d_name);
        const char *b = ef_printf(o->ctx->arena, "%s/%s", to, e->d_name);
        ok = !rename(a, b);
    }
    if (d)
        closedir(d);
    return ok;
}

/* Exchanges temp and dir, so that temp holds the older build; where the file system can't,
 * in two steps. */
static bool
swap_in(const char *temp, const char *dir, const char *aside)
{
    if (!rename(temp, dir))
        return true; /* it did not exist, or was empty */
    if (!renameat2(AT_FDCWD, temp, AT_FDCWD, dir, RENAME_EXCHANGE))
        return true;
    return !rename(dir, aside) && !rename(temp, dir) && !rename(aside, temp);
}

/* Afterwards the temporary folder, if there still is one, is the older build. */
static bool
put_in_place(fe_output *o)
{
    const char *aside = ef_printf(o->ctx->arena, "%s.old", o->temp);
    if (!swap_in(o->temp, o->dir, aside))
        return fault(o, strerror(errno));
    ef_unfinished(NULL);
    if (access(o->temp, F_OK))
        return true;
    if (move_foreign(o, o->temp, o->dir)) {
        ef_remove_tree(o->temp);
        return true;
    }
    fault(o, "some files of the older folder could not be moved");
    ef_note(o->ctx, "they are in %s", o->temp);
    o->temp = NULL;
    return false;
}

bool
fe_output_commit(fe_output *o)
{
    ef_hold_signals(true); /* a user's files are in two places */
    bool ok = put_in_place(o);
    ef_hold_signals(false);
    if (!ok)
        return false;
    o->temp = NULL;
    if (o->ctx->cfg->build)
        ef_report(o->ctx, "trainer: %s/trainer", o->dir);
    else
        ef_report(o->ctx, "sources: %s/src; make -C %s/src builds %s/trainer", o->dir,
                  o->dir, o->dir);
    return true;
}

/* Did a compiler say something, or is it a fault of our own? */
static bool
is_worth_a_look(const fe_output *o)
{
    struct stat st;
    const char *log = ef_printf(o->ctx->arena, "%s/src/build.log", o->temp);
    return o->ctx->nbug || (!stat(log, &st) && st.st_size > 0);
}

void
fe_output_keep(fe_output *o)
{
    if (!is_worth_a_look(o))
        return;
    for (size_t i = 0; i < EF_COUNT(own); i++)
        if (!own[i].tells)
            ef_remove_tree(ef_printf(o->ctx->arena, "%s/%s", o->temp, own[i].name));
    ef_unfinished(NULL);
    ef_note(
        o->ctx,
        "the sources stay in %s, for a look or a report, with all that the compiler "
        "said in src/build.log, and without weights",
        o->temp);
    o->temp = NULL;
}

void
fe_output_close(fe_output *o)
{
    if (!o || !o->temp)
        return;
    ef_remove_unfinished();
    o->temp = NULL;
}
