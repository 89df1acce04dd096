/* file.c -- files that appear whole or not at all, and the output folder.
 *
 * A file is written as NAME.tmp beside its place, flushed to the disk and then renamed, so
 * that a crash or a full disk never leaves half a result under the final name. Its hash is
 * computed on the way.
 */
#include "host_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { HELD = 1 << 20 };

int
rt_errno_code(int err)
{
    return err == ENOSPC || err == EDQUOT || err == EFBIG ? RT_STOPPED : RT_USER;
}

char *
rt_path(const char *dir, const char *name)
{
    rt_text t = {0};
    size_t n = strlen(dir);
    rt_putf(&t, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    return t.s;
}

static int
failed(rt_file *f, const char *what)
{
    if (f->code)
        return f->code;
    f->code = rt_errno_code(errno);
    if (!f->advice)
        rt_warn("%s: %s: %s", f->path, what, strerror(errno));
    else
        rt_fail(f->code, "%s: %s: %s%s%s", f->path, what, strerror(errno),
                f->code == RT_STOPPED ? "\n" : "",
                f->code == RT_STOPPED ? f->advice : "");
    return f->code;
}

int
rt_file_open(rt_file *f, const char *path)
{
    return rt_file_begin(f, path, "make room, then run again");
}

int
rt_file_begin(rt_file *f, const char *path, const char *advice)
{
    *f = (rt_file){.path = strdup(path), .advice = advice};
    f->state = rt_hash_new();
    rt_text t = {0};
    rt_putf(&t, "%s.tmp", path);
    f->tmp = t.s;
    f->buf = rt_new(HELD, 1);
    f->fd = -1;
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) { /* a device would be replaced */
        if (!advice)
            rt_warn("%s is there and is not a file", path);
        else
            rt_fail(RT_USER, "%s is there and is not a file", path);
        return f->code = RT_USER;
    }
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return f->fd < 0 ? failed(f, "cannot be written") : RT_OK;
}

static int
flush(rt_file *f)
{
    XXH3_64bits_update(f->state, f->buf, f->held);
    for (size_t done = 0; !f->code && done < f->held;) {
        ssize_t n = write(f->fd, f->buf + done, f->held - done);
        if (n < 0 && errno != EINTR)
            return failed(f, "writing failed");
        done += n > 0 ? (size_t)n : 0;
    }
    f->held = 0;
    return f->code;
}

int
rt_file_write(rt_file *f, const void *data, size_t n)
{
    const char *p = data;
    f->at += n;
    while (n && !f->code) {
        size_t part = n < HELD - f->held ? n : HELD - f->held;
        memcpy(f->buf + f->held, p, part);
        f->held += part;
        p += part;
        n -= part;
        if (f->held == HELD)
            flush(f);
    }
    return f->code;
}

/* The rename itself must reach the disk, too. */
static void
sync_folder(const char *path)
{
    char *copy = strdup(path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(copy);
}

int
rt_file_done(rt_file *f)
{
    flush(f);
    if (!f->code && fsync(f->fd) && errno != EINVAL && errno != EROFS)
        failed(f, "writing failed");
    if (f->fd >= 0 && close(f->fd) && !f->code)
        failed(f, "writing failed");
    if (!f->code && rename(f->tmp, f->path))
        failed(f, "cannot be put in its place");
    if (!f->code)
        sync_folder(f->path);
    else if (f->fd >= 0)
        unlink(f->tmp);
    f->hash = XXH3_64bits_digest(f->state);
    XXH3_freeState(f->state);
    free(f->path);
    free(f->tmp);
    free(f->buf);
    return f->code;
}

int
rt_file_try(const char *path)
{
    rt_file f;
    int code = rt_file_open(&f, path);
    f.code = RT_USER; /* drop it */
    rt_file_done(&f);
    return code;
}

int
rt_file_text(const char *path, const char *text)
{
    rt_file f;
    rt_file_open(&f, path);
    rt_file_write(&f, text, strlen(text));
    return rt_file_done(&f);
}

int
rt_beside(const char *path)
{
    return access(path, R_OK)
               ? rt_fail(RT_USER,
                         "%s: %s\nthe trainer needs what efficc made together with "
                         "it: copy the whole folder, not the trainer alone",
                         path, strerror(errno))
               : RT_OK;
}

int
rt_open_regular(const char *path, int64_t *size)
{
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    if (!fstat(fd, &s) && S_ISREG(s.st_mode)) {
        *size = s.st_size;
        return fd;
    }
    close(fd);
    errno = S_ISDIR(s.st_mode) ? EISDIR : EINVAL;
    return -1;
}

char *
rt_read_text(const char *path, size_t max, int *err)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    size_t n = 0, cap = 0;
    *err = 0;
    while (f && !*err && !feof(f)) {
        if (n + 1 >= cap)
            text = rt_grow(text, cap = 2 * cap + 4096);
        n += fread(text + n, 1, cap - n - 1, f);
        *err = ferror(f) ? errno : n > max ? EFBIG : 0;
    }
    if (!f)
        *err = errno;
    else
        fclose(f);
    if (*err) {
        free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

/* The folder and those above it. */
static int
make_folders(const char *dir)
{
    char *path = strdup(dir), *slash = path + strspn(path, "/");
    for (; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        if (mkdir(path, 0777) && errno != EEXIST)
            break;
    }
    free(path);
    return mkdir(dir, 0777) && errno != EEXIST ? errno : 0;
}

/* What a folder holds beside a lock. */
enum { EMPTY, LOG, LEFT, FULL, HAS_CHECKPOINTS };

/* LOG: the log alone. LEFT: nothing but what each run writes on its way, whatever becomes of it. */
static int
contents(DIR *d)
{
    static const char *const left[] = {"log.jsonl", "report.html", "runs"};
    int found = EMPTY;
    for (struct dirent *e; (e = readdir(d));) {
        const char *name = e->d_name;
        if (!strncmp(name, "checkpoint-", 11))
            return HAS_CHECKPOINTS;
        if (!strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, ".lock"))
            continue;
        int what = FULL;
        for (size_t i = 0; i < sizeof left / sizeof *left; i++)
            what = strcmp(name, left[i]) ? what : i ? LEFT : LOG;
        found = what > found ? what : found;
    }
    return found;
}

/* The log has no row yet: the run was killed before it had logged a step. */
static bool
is_blank(const char *dir)
{
    struct stat st;
    char *path = rt_path(dir, "log.jsonl");
    bool blank = !lstat(path, &st) && S_ISREG(st.st_mode) && !st.st_size;
    free(path);
    return blank;
}

/* The log is of a run that ended on the way: of one that never got to a checkpoint there is
 * nothing to lose. */
static bool
broke_off(const char *dir)
{
    char *end = rt_log_end(dir);
    bool did = end && strcmp(end, "done") && strcmp(end, "early stopping");
    free(end);
    return did;
}

int
rt_output_dir(const char *dir, bool overwrite)
{
    int err = make_folders(dir);
    DIR *d = err ? NULL : opendir(dir);
    if (!d)
        return rt_fail(rt_errno_code(err ? err : errno), "--output-dir %s: %s", dir,
                       strerror(err ? err : errno));
    int found = contents(d);
    closedir(d);
    if ((found == LOG && is_blank(dir)) ||
        ((found == LOG || found == LEFT) && broke_off(dir)))
        found = EMPTY;
    if (found && !overwrite)
        return rt_fail(RT_USER,
                       "--output-dir %s is not empty\n%sname another folder, or give "
                       "--overwrite-output-dir",
                       dir,
                       found == HAS_CHECKPOINTS
                           ? "go on from its checkpoints with --resume-from-checkpoint "
                             "auto, "
                           : "");
    if (access(dir, W_OK | X_OK))
        return rt_fail(RT_USER, "--output-dir %s: %s", dir, strerror(errno));
    return RT_OK;
}
