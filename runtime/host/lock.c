/* lock.c -- one trainer a folder, and which run is at home there.
 *
 * The lock is flock() on dir/.lock, which the kernel takes away with the process however it
 * ends; the file stays. Its text says which process has the lock, for a message, and which run
 * saved a checkpoint there last, so that auto never goes on from a run that it has replaced:
 *
 *     run 4812345678901
 *     1234 host
 */
#include "host_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

typedef struct lock_text {
    long long run; /* 0: none */
    int pid;       /* 0: not known */
    char host[200];
} lock_text;

static lock_text
read_lock(int fd)
{
    char text[256] = "";
    lock_text t = {0};
    ssize_t got = fd < 0 ? 0 : pread(fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    if (sscanf(text, "run %lld\n%d %199s", &t.run, &t.pid, t.host) != 3)
        t = (lock_text){0};
    return t;
}

/* One write over what is there, so that a crash or a full disk finds the old or the new. */
static void
write_lock(int fd, long long run)
{
    char host[200] = "?", text[256];
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "run %lld\n%d %s\n", run, (int)getpid(), host);
    /* the lock holds without it: a full disk is no reason not to train */
    if (pwrite(fd, text, (size_t)n, 0) == n && ftruncate(fd, n))
        return;
}

static int
open_lock(const char *dir, int flags)
{
    char *path = rt_path(dir, ".lock");
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    free(path);
    return fd;
}

static int
in_use(const char *dir, int fd)
{
    lock_text t = read_lock(fd);
    if (!t.pid)
        return rt_fail(RT_USER,
                       "%s is in use by another trainer\nname another "
                       "--output-dir",
                       dir);
    return rt_fail(RT_USER,
                   "%s is in use by trainer process %d (%s)\nname another --output-dir",
                   dir, t.pid, t.host);
}

int
rt_folder_lock(const char *dir, int *fd)
{
    int code = RT_OK;
    *fd = open_lock(dir, O_RDWR | O_CREAT);
    if (*fd < 0)
        return rt_fail(rt_errno_code(errno), "%s/.lock: %s", dir, strerror(errno));
    bool locked = !flock(*fd, LOCK_EX | LOCK_NB);
    if (!locked && errno == EWOULDBLOCK)
        code = in_use(dir, *fd);
    else if (!locked)
        rt_say("note",
               "%s can't be locked (%s): see to it that no other trainer uses it", dir,
               strerror(errno));
    if (!code) {
        write_lock(*fd, read_lock(*fd).run);
        return RT_OK;
    }
    rt_folder_unlock(*fd);
    *fd = -1;
    return code;
}

void
rt_folder_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

int64_t
rt_folder_run(const char *dir)
{
    int fd = open_lock(dir, O_RDONLY);
    int64_t run = read_lock(fd).run;
    rt_folder_unlock(fd);
    return run;
}

void
rt_folder_set_run(const char *dir, int64_t run)
{
    int fd = open_lock(dir, O_RDWR | O_CREAT);
    if (fd >= 0) {
        write_lock(fd, run);
        fsync(fd); /* the checkpoints that it speaks of are on the disk, too */
    }
    rt_folder_unlock(fd);
}
