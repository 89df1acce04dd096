/* process.c -- programs that efficc starts, and the end by a signal.
 *
 * The handler does all of it by itself: the rest of efficc may be anywhere, in a compiler's
 * library, too, and just stops. So only what is safe in a handler is called, and a folder is read
 * by its system call. A program's own children, such as those of nvcc, are in its process group,
 * which is not ours: else a signal of ours would hit whoever started efficc.
 */
#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Programs at a time; how long one may take to remove its own files. */
enum { PROGRAMS_MAX = 8, PATIENCE = 100, TICK = 10 * 1000 * 1000 };

extern char **environ;

static const int ends[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGPIPE,
                           SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU};
enum { ENDS = sizeof ends / sizeof *ends };

static const char *volatile unfinished;
static volatile pid_t running[PROGRAMS_MAX]; /* 0: free */
static sigset_t before;                      /* signals that wait while ours do not */

/* ---- folders ---- */

static void remove_at(int at, const char *name);

/* Removes the entries of a folder. false: there were none, or none can be removed. */
static bool
remove_some(int folder)
{
    _Alignas(struct dirent64) char batch[4096];
    bool some = false;
    lseek(folder, 0, SEEK_SET);
    ssize_t n = getdents64(folder, batch, sizeof batch);
    for (ssize_t i = 0; i < n;) {
        const struct dirent64 *e = (const struct dirent64 *)(batch + i);
        i += e->d_reclen;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        remove_at(folder, e->d_name);
        some |= faccessat(folder, e->d_name, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
    }
    return some;
}

static void
remove_at(int at, const char *name)
{
    if (!unlinkat(at, name, 0) || errno == ENOENT)
        return;
    int folder = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return;
    while (remove_some(folder))
        ;
    close(folder);
    unlinkat(at, name, AT_REMOVEDIR);
}

void
ef_remove_tree(const char *dir)
{
    remove_at(AT_FDCWD, dir);
}

/* ---- the end ---- */

/* Has it ended, within the time? */
static bool
ends_soon(pid_t pid)
{
    const struct timespec tick = {.tv_nsec = TICK};
    for (int i = 0; i < PATIENCE; i++) {
        if (waitpid(pid, NULL, WNOHANG))
            return true;
        nanosleep(&tick, NULL);
    }
    return false;
}

static void
end_programs(void)
{
    for (int i = 0; i < PROGRAMS_MAX; i++)
        if (running[i])
            kill(-running[i],
                 SIGINT); /* of all signals nvcc cleans up behind this one */
    for (int i = 0; i < PROGRAMS_MAX; i++) {
        if (!running[i])
            continue;
        bool ended = ends_soon(running[i]);
        kill(-running[i], SIGKILL); /* who is left of its group */
        if (!ended)
            waitpid(running[i], NULL, 0);
    }
}

static void
clean_up(void)
{
    end_programs();
    if (unfinished)
        ef_remove_tree(unfinished);
}

static void
end(int number)
{
    const char *text = unfinished ? "efficc: interrupted; no trainer was written\n"
                                  : "efficc: interrupted\n";
    clean_up();
    if (write(STDERR_FILENO, text, strlen(text)) < 0) {
        /* nobody reads it */
    }
    signal(number, SIG_DFL);
    raise(number); /* waits until the handler returns */
}

static void
catch_signals(void)
{
    static bool done;
    struct sigaction old, new = {.sa_handler = end};
    if (done)
        return;
    done = true;
    atexit(clean_up);
    for (int i = 0; i < ENDS; i++)
        sigaddset(&new.sa_mask, ends[i]);
    for (int i = 0; i < ENDS; i++) {
        sigaction(ends[i], NULL, &old);
        if (old.sa_handler == SIG_DFL) /* nohup, say, ignores some */
            sigaction(ends[i], &new, NULL);
    }
}

void
ef_unfinished(const char *dir)
{
    catch_signals();
    unfinished = dir;
}

void
ef_remove_unfinished(void)
{
    if (unfinished)
        ef_remove_tree(unfinished);
    unfinished = NULL;
}

void
ef_hold_signals(bool hold)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < ENDS; i++)
        sigaddset(&set, ends[i]);
    if (hold)
        sigprocmask(SIG_BLOCK, &set, &before);
    else
        sigprocmask(SIG_SETMASK, &before, NULL);
}

/* ---- programs ---- */

static int
spawn(pid_t *pid, char *const argv[], int output)
{
    posix_spawn_file_actions_t to;
    posix_spawnattr_t how;
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT); /* by which it is ended, see above */
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                       POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigdefault(&how, &interrupt);
    posix_spawnattr_setsigmask(&how, &before);
    posix_spawn_file_actions_init(&to);
    posix_spawn_file_actions_addopen(&to, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&to, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&to, output, STDERR_FILENO);
    int why = posix_spawnp(pid, argv[0], &to, &how, argv, environ);
    posix_spawn_file_actions_destroy(&to);
    posix_spawnattr_destroy(&how);
    return why;
}

int
ef_start(pid_t *pid, char *const argv[], int output)
{
    int i = 0;
    catch_signals();
    signal(SIGCHLD, SIG_DFL); /* who ignores it never learns how a program ended */
    while (i < PROGRAMS_MAX && running[i])
        i++;
    if (i == PROGRAMS_MAX)
        return EAGAIN;
    ef_hold_signals(true);
    int why = spawn(pid, argv, output);
    if (!why)
        running[i] = *pid;
    ef_hold_signals(false);
    return why;
}

int
ef_wait(pid_t pid)
{
    siginfo_t info;
    int status = 0, i = 0;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) && errno == EINTR)
        ;
    ef_hold_signals(true); /* its number may soon be another's */
    waitpid(pid, &status, 0);
    while (i < PROGRAMS_MAX && running[i] != pid)
        i++;
    if (i < PROGRAMS_MAX)
        running[i] = 0;
    ef_hold_signals(false);
    return status;
}
