/* lock.c -- one trainer a folder.
 *
 * The lock is flock() on dir/.lock, which the kernel takes away with the process however it
 * ends; the file stays, and its text only tells who has it.
 */
#include "host_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* "trainer process 1234 (host)", as the file says it. */
static void
owner(int fd, char *out, size_t n)
{
    char text[256] = "", host[200] = "";
    int pid = 0;
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    if (sscanf(text, "%d %199s", &pid, host) == 2)
        snprintf(out, n, "trainer process %d (%s)", pid, host);
    else
        snprintf(out, n, "another trainer");
}

static void
write_owner(int fd)
{
    char host[200] = "?", text[256];
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "%d %s\n", (int)getpid(), host);
    /* it only explains: a full disk is no reason not to train */
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n)
        return;
}

int
rt_folder_lock(const char *dir, int *fd)
{
    char *path = rt_path(dir, ".lock"), who[256];
    int code = RT_OK;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    if (*fd < 0) {
        code = rt_fail(rt_errno_code(errno), "%s: %s", path, strerror(errno));
    } else if (!flock(*fd, LOCK_EX | LOCK_NB)) {
        write_owner(*fd);
    } else if (errno == EWOULDBLOCK) {
        owner(*fd, who, sizeof who);
        code =
            rt_fail(RT_USER, "%s is in use by %s\nname another --output-dir", dir, who);
    } else {
        rt_say("note",
               "%s can't be locked (%s): see to it that no other trainer uses it", dir,
               strerror(errno));
    }
    if (code)
        rt_folder_unlock(*fd);
    *fd = code ? -1 : *fd;
    free(path);
    return code;
}

void
rt_folder_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}
