/* data_spool.c -- bytes that are appended once and then read anywhere: what was made of the
 * lines of JSONL files.
 *
 * Few bytes stay in memory. More go to a file that has no name, so that it is gone with the
 * process, however that ends. /tmp may be memory itself, so the default is /var/tmp.
 */
#include "data_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL = 8 << 20, PIECE = 1 << 20 };

static const char *
folder(const rt_spool *s)
{
    const char *given = getenv("TMPDIR");
    if (given && *given)
        return given;
    return s->dir ? s->dir : "/var/tmp";
}

static int
failed(const rt_spool *s)
{
    int err = errno;
    return rt_fail(RT_USER,
                   "checked rows of the data, %s of them, can't be kept in %s: %s\n"
                   "set TMPDIR to a folder with room for them",
                   rt_bytes_text((double)s->n), folder(s), strerror(err));
}

/* Not every file system has files without names. */
static int
unnamed_file(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd;
    char *path = rt_path(dir, ".efficc-XXXXXX");
    fd = mkstemp(path);
    if (fd >= 0)
        unlink(path);
    free(path);
    return fd;
}

static int
flush(rt_spool *s)
{
    size_t done = 0;
    while (done < s->nheld) {
        ssize_t n = write(s->fd, s->held + done, s->nheld - done);
        if (n < 0 && errno != EINTR)
            return failed(s);
        done += n > 0 ? (size_t)n : 0;
    }
    s->nheld = 0;
    return RT_OK;
}

int
rt_spool_add(rt_spool *s, const void *bytes, size_t n)
{
    int code = RT_OK;
    if (!s->in_file && s->n + n > SMALL) {
        s->fd = unnamed_file(folder(s));
        if (s->fd < 0)
            return failed(s);
        s->in_file = true;
    }
    if (s->in_file && s->nheld + n > PIECE)
        code = flush(s);
    if (s->nheld + n > s->cap) {
        s->cap = 2 * s->cap + n + 4096;
        s->held = rt_grow(s->held, s->cap);
    }
    if (n)
        memcpy(s->held + s->nheld, bytes, n);
    s->nheld += n;
    s->n += n;
    return code;
}

int
rt_spool_done(rt_spool *s)
{
    int code = s->in_file ? flush(s) : RT_OK;
    s->cap = s->nheld;
    if (s->cap)
        s->held = rt_grow(s->held, s->cap);
    else {
        free(s->held);
        s->held = NULL;
    }
    return code;
}

int
rt_spool_read(const rt_spool *s, uint64_t at, void *out, size_t n)
{
    if (!s->in_file) {
        memcpy(out, s->held + at, n);
        return RT_OK;
    }
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(s->fd, (char *)out + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return rt_fail(RT_USER, "checked rows of the data can't be read back: %s",
                           k ? strerror(errno) : "the file is shorter than it was");
        done += (size_t)k;
    }
    return RT_OK;
}

void
rt_spool_free(rt_spool *s)
{
    if (s->in_file)
        close(s->fd);
    free(s->held);
    *s = (rt_spool){0};
}
