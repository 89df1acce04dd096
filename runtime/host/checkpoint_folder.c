/* checkpoint_folder.c -- names and folders of checkpoints.
 *
 * A folder is replaced by swapping names where the file system can do that, so that one good
 * checkpoint of the step is there at any moment; else the old one waits as .old, and comes
 * back at the next start if the new one did not arrive.
 */
#include "checkpoint_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "checkpoint-"
static const int64_t max_step = 1000000000000000; /* --max-steps */

char *
rt_checkpoint_path(const char *dir, int64_t step)
{
    char name[64];
    snprintf(name, sizeof name, PREFIX "%lld", (long long)step);
    return rt_path(dir, name);
}

/* The step of checkpoint-<step><ending>; 0: another name. */
static int64_t
step_of(const char *name, const char *ending)
{
    size_t n = strlen(PREFIX);
    if (strncmp(name, PREFIX, n) || name[n] < '1' || name[n] > '9')
        return 0;
    int64_t step = 0;
    for (name += n; *name >= '0' && *name <= '9' && step <= max_step; name++)
        step = 10 * step + (*name - '0');
    return step <= max_step && !strcmp(name, ending) ? step : 0;
}

static int
newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps of all names with this ending. */
static int64_t *
list(const char *dir, const char *ending, int *n)
{
    DIR *d = opendir(dir);
    int64_t *step = rt_new(16, sizeof *step);
    *n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        int64_t s = step_of(e->d_name, ending);
        if (s && *n >= 16 && !(*n & (*n - 1)))
            step = rt_grow(step, 2 * (size_t)*n * sizeof *step);
        if (s)
            step[(*n)++] = s;
    }
    if (d)
        closedir(d);
    qsort(step, (size_t)*n, sizeof *step, newest_first);
    return step;
}

int64_t *
rt_checkpoint_list(const char *dir, int *n)
{
    return list(dir, "", n);
}

void
rt_checkpoint_strangers(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (!strncmp(e->d_name, PREFIX, strlen(PREFIX)) && !step_of(e->d_name, ""))
            rt_warn("%s/%s is passed over: its name is not " PREFIX "<step>", dir,
                    e->d_name);
    if (d)
        closedir(d);
}

bool
rt_folder_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return !unlink(path); /* a file or a link in the folder's place */
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return false;
    for (struct dirent *e; (e = readdir(d));)
        unlinkat(fd, e->d_name, 0); /* rmdir() will tell */
    closedir(d);
    return !rmdir(path);
}

bool
rt_folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && (!fsync(fd) || errno == EINVAL || errno == EROFS);
    int err = errno;
    if (fd >= 0)
        close(fd);
    errno = err;
    return ok;
}

bool
rt_folder_replace(const char *tmp, const char *dir)
{
    struct stat s;
    if (lstat(dir, &s))
        return !rename(tmp, dir);
    if (!renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE)) {
        rt_folder_remove(tmp);
        return true;
    }
    rt_text old = {0};
    rt_putf(&old, "%s.old", dir);
    bool ok = !rename(dir, old.s) && !rename(tmp, dir);
    if (ok)
        rt_folder_remove(old.s);
    free(old.s);
    return ok;
}

/* Each checkpoint-<step><ending> is removed, or becomes checkpoint-<step> under `back` if
 * there is none. */
static void
tidy(const char *dir, const char *ending, bool back)
{
    int n;
    int64_t *step = list(dir, ending, &n);
    for (int i = 0; i < n; i++) {
        char *to = rt_checkpoint_path(dir, step[i]);
        rt_text from = {0};
        rt_putf(&from, "%s%s", to, ending);
        if (back && access(to, F_OK) && !rename(from.s, to))
            rt_say("note", "%s is back; replacing it had not ended", to);
        else if (rt_folder_remove(from.s))
            rt_say("note", "removed what a run that broke off left: %s", from.s);
        else
            rt_warn("%s can't be removed: %s", from.s, strerror(errno));
        free(from.s);
        free(to);
    }
    free(step);
}

void
rt_folder_tidy(const char *dir)
{
    tidy(dir, ".old", true);
    tidy(dir, ".tmp", false);
}

bool
rt_checkpoint_is_of(const char *dir, int64_t step, int64_t run)
{
    char why[RT_WHY], *path = rt_checkpoint_path(dir, step);
    rt_manifest *m = rt_manifest_read(path, why);
    bool same = m && m->state.run == run;
    rt_manifest_free(m);
    free(path);
    return same;
}

/* Not a link to one. */
static bool
is_folder(const char *path)
{
    struct stat s;
    return !lstat(path, &s) && S_ISDIR(s.st_mode);
}

/* First out of the way under a name that tidying knows: half of it is no checkpoint. */
static void
drop(const char *path)
{
    rt_text tmp = {0};
    rt_putf(&tmp, "%s.tmp", path);
    if (rename(path, tmp.s) || !rt_folder_remove(tmp.s))
        rt_warn("%s can't be removed: %s", path, strerror(errno));
    free(tmp.s);
}

void
rt_checkpoint_rotate(const rt_job *job, const rt_train_state *state)
{
    const rt_opts *o = job->opts;
    int n;
    int64_t *step = rt_checkpoint_list(o->output_dir, &n), kept = 1;
    for (int i = 0; i < n && o->save_total_limit; i++) {
        bool best = o->load_best_model_at_end && step[i] == state->best_step;
        if (step[i] >= state->step || best)
            continue;
        char *path = rt_checkpoint_path(o->output_dir, step[i]);
        if (is_folder(path) &&
            rt_checkpoint_is_of(o->output_dir, step[i], state->run) &&
            ++kept > o->save_total_limit)
            drop(path);
        free(path);
    }
    free(step);
}
