/* external.c -- weights that stand in files beside the model.
 *
 * A model file comes from a stranger; the names in it may not make efficc read anything
 * outside the model's folder. Names with ".." are refused; the others are opened part by
 * part, each relative to the folder opened before and none through a symbolic link, so
 * that no change of the file system in between can lead outside. With --follow-links the
 * file itself may be a link to a regular file anywhere: the cache of Hugging Face keeps
 * files so. Only the place of the data is kept: they are read later, when they are needed.
 */
#include "onnx_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_FLAGS = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };

/* Opens one part of a name; how: O_NOFOLLOW, O_DIRECTORY. -1: errno, ELOOP for a symbolic
 * link that is not followed. */
static int
open_part(int dir, const char *name, size_t n, int how)
{
    char part[NAME_MAX + 1];
    struct stat st;
    if (n >= sizeof(part)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(part, name, n);
    part[n] = 0;
    int fd = openat(dir, part, OPEN_FLAGS | how);
    int keep = errno;
    if (fd < 0 && how & O_NOFOLLOW && !fstatat(dir, part, &st, AT_SYMLINK_NOFOLLOW) &&
        S_ISLNK(st.st_mode))
        keep = ELOOP; /* with O_DIRECTORY it was ENOTDIR */
    errno = keep;
    return fd;
}

/* Opens folder/name; follow: even if it is a link. -1: errno. */
static int
open_beneath(const char *folder, const char *name, bool follow)
{
    int at = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    while (at >= 0) {
        size_t n = strcspn(name, "/");
        const char *rest = name + n + strspn(name + n, "/");
        int how = *rest ? O_NOFOLLOW | O_DIRECTORY : follow ? 0 : O_NOFOLLOW;
        int next = open_part(at, name, n, how), keep = errno;
        close(at);
        errno = keep;
        at = next;
        if (!*rest)
            break;
        name = rest;
    }
    return at;
}

/* NULL: a name that may be opened. */
static const char *
bad_name(const char *name)
{
    if (!*name)
        return "the location is empty";
    if (*name == '/')
        return "an absolute path is not allowed";
    for (const char *p = name; *p; p += strspn(p, "/")) {
        size_t n = strcspn(p, "/");
        if (n == 2 && !strncmp(p, "..", 2))
            return "it leads outside the model's folder";
        p += n;
    }
    return NULL;
}

/* An unsigned decimal number that a file offset can hold. */
static bool
number(const char *s, uint64_t *v)
{
    *v = 0;
    for (const char *p = s; *p; p++) {
        if (*p < '0' || *p > '9' || *v > (uint64_t)INT64_MAX / 10 - 1)
            return false;
        *v = *v * 10 + (uint64_t)(*p - '0');
    }
    return *s != 0;
}

static bool
fault(fe_model *m, const fe_tensor *t, const char *text)
{
    return ef_error(m->ctx, t->name, E_ONNX_EXTERNAL, text);
}

typedef struct entries {
    const char *location, *offset, *length;
} entries;

static bool
read_entries(fe_model *m, const fe_tensor *t, entries *e)
{
    for (size_t i = 0; i < t->proto->n_external_data; i++) {
        const char *key = fe_str(t->proto->external_data[i]->key);
        const char **to = !strcmp(key, "location") ? &e->location
                          : !strcmp(key, "offset") ? &e->offset
                          : !strcmp(key, "length") ? &e->length
                                                   : NULL;
        if (!to)
            continue; /* checksum and whatever comes later */
        if (*to)
            return fault(m, t, ef_printf(m->arena, "%s is given twice", key));
        *to = fe_str(t->proto->external_data[i]->value);
    }
    return e->location || fault(m, t, "no location is given");
}

/* Offset and length against the tensor and the file. */
static bool
check_range(fe_model *m, const fe_tensor *t, const entries *e, uint64_t size,
            uint64_t *offset)
{
    const Onnx__TensorProto *p = t->proto;
    uint64_t length = t->bytes;
    *offset = 0;
    if ((e->offset && !number(e->offset, offset)) ||
        (e->length && !number(e->length, &length)))
        return fault(m, t, "offset and length must be decimal numbers");
    if (length != t->bytes)
        return fault(m, t,
                     ef_printf(m->arena,
                               "length %s does not fit dims %s of %s (%llu bytes)",
                               e->length, fe_dims_text(m->arena, p->n_dims, p->dims),
                               fe_type_name(t->type), (unsigned long long)t->bytes));
    if (*offset > size)
        return fault(m, t,
                     ef_printf(m->arena,
                               "offset %s is beyond the end of %s (%llu bytes)",
                               e->offset, e->location, (unsigned long long)size));
    if (length > size - *offset)
        return fault(
            m, t,
            ef_printf(m->arena,
                      "%s ends too early: %llu bytes at offset %llu are needed, it "
                      "has %llu",
                      e->location, (unsigned long long)length,
                      (unsigned long long)*offset, (unsigned long long)size));
    return true;
}

static bool
open_fault(fe_model *m, const fe_tensor *t, const char *name)
{
    if (errno == ELOOP) {
        fault(m, t, ef_printf(m->arena, "%s is or goes through a symbolic link", name));
        ef_hint(m->ctx, "if you trust where it leads, add --follow-links (files in the "
                        "cache of Hugging Face are links); it takes links to regular "
                        "files, not to folders");
        return false;
    }
    if (errno == ENOENT)
        return fault(m, t,
                     ef_printf(m->arena, "file %s not found in %s", name, m->dir));
    return fault(m, t, ef_printf(m->arena, "%s: %s", name, strerror(errno)));
}

bool
fe_external(fe_model *m, fe_tensor *t)
{
    entries e = {0};
    if (!read_entries(m, t, &e))
        return false;
    const char *bad = bad_name(e.location);
    if (bad)
        return fault(m, t, ef_printf(m->arena, "%s: %s", e.location, bad));
    int fd = open_beneath(m->dir, e.location, m->ctx->cfg->follow_links);
    if (fd < 0)
        return open_fault(m, t, e.location);
    struct stat st;
    bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);
    close(fd);
    if (!regular)
        return fault(m, t, ef_printf(m->arena, "%s is not a regular file", e.location));
    t->path = ef_printf(m->arena, "%s/%s", m->dir, e.location);
    return check_range(m, t, &e, (uint64_t)st.st_size, &t->at);
}
