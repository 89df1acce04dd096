/* process_test.c -- programs that efficc starts, and what a signal leaves of them and of a folder. */
#include "ir/process.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[40];

static void
begin(void)
{
    strcpy(dir, "/tmp/efficc-process-XXXXXX");
    NEED(mkdtemp(dir) && !chdir(dir));
}

static void
end(void)
{
    NEED(!chdir("/"));
    ef_remove_tree(dir);
    CHECK(access(dir, F_OK));
}

static void
write_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    NEED(fd >= 0 && write(fd, "x", 1) == 1 && !close(fd));
}

static void
pause_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* Waits, 20 s at most. */
static bool
appears(const char *path)
{
    for (int i = 0; i < 2000 && access(path, F_OK); i++)
        pause_ms(10);
    return !access(path, F_OK);
}

static pid_t
start(const char *script, const char *said)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    pid_t pid = 0;
    int fd = open(said, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    NEED(fd >= 0 && !ef_start(&pid, argv, fd) && !close(fd));
    return pid;
}

static const char *
read_file(const char *path)
{
    static char text[100];
    memset(text, 0, sizeof text);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) >= 0 && !close(fd));
    return text;
}

/* Is there no such process, or a zombie? */
static bool
is_dead(int pid)
{
    char stat[60], state = 0;
    snprintf(stat, sizeof stat, "/proc/%d/stat", pid);
    FILE *f = fopen(stat, "r");
    bool read = f && fscanf(f, "%*d %*s %c", &state) == 1;
    if (f)
        fclose(f);
    return !read || state == 'Z';
}

/* Does the process, whose number is in the file, end? Who was killed ends when it is its turn. */
static bool
has_ended(const char *path)
{
    int pid = atoi(read_file(path));
    for (int i = 0; i < 2000 && !is_dead(pid); i++)
        pause_ms(10);
    return is_dead(pid);
}

TEST(status_and_outputs)
{
    begin();
    int status = ef_wait(start("cat; echo out; echo err >&2; exit 7", "said"));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK_STR(read_file("said"), "out\nerr\n");
    status = ef_wait(start("kill -9 $$", "said"));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    char *none[] = {"no-such-program", NULL};
    pid_t pid;
    CHECK(ef_start(&pid, none, STDERR_FILENO) == ENOENT);
    end();
}

TEST(a_status_is_learnt_where_children_are_ignored)
{
    begin();
    pid_t child = fork();
    if (!child) {
        signal(SIGCHLD, SIG_IGN);
        int status = ef_wait(start("exit 3", "said"));
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 100);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    end();
}

/* Half-written, with a folder and links in it, and two programs that go on for ever. */
static void
half_written(const char *script)
{
    NEED(!mkdir("half", 0700) && !mkdir("half/src", 0700) && !mkdir("kept", 0700));
    write_file("kept/file");
    write_file("half/weights");
    write_file("half/src/step.c");
    NEED(!symlink("../kept", "half/link") && !symlink("nowhere", "half/src/link"));
    for (int i = 0; i < 300; i++) { /* more than the system tells in one go */
        char name[80];
        snprintf(name, sizeof name, "half/a-file-with-a-long-name-%d", i);
        write_file(name);
    }
    ef_unfinished("half");
    start(script, "one");
    start(script, "two");
}

/* The status of a process that was half_written(), after the signal came to it alone. */
static int
ended_by(int number, const char *script)
{
    pid_t child = fork();
    if (!child) {
        half_written(script);
        write_file("ready");
        for (;;)
            pause();
    }
    int status = 0;
    CHECK(appears("ready") && appears("grandchild"));
    NEED(!kill(child, number) && waitpid(child, &status, 0) == child);
    return status;
}

TEST(a_signal_ends_programs_and_removes_what_is_half_written)
{
    static const int number[] = {SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 3; i++) {
        begin();
        int status = ended_by(number[i], "sleep 1000 & echo $! >pid; echo $$ >own; "
                                         "mv pid grandchild; wait");
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == number[i]);
        CHECK(access("half", F_OK) && !access("kept/file", F_OK));
        CHECK(has_ended("grandchild") && has_ended("own"));
        end();
    }
}

TEST(programs_that_do_not_listen_are_killed)
{
    begin();
    int status = ended_by(SIGTERM, "trap '' INT TERM; sleep 1000 & echo $! >pid; echo "
                                   "$$ >own; mv pid grandchild; wait; wait");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    CHECK(access("half", F_OK) && has_ended("grandchild") && has_ended("own"));
    end();
}

/* A child's status that does `what` with a folder that it made. */
static int
child(void (*what)(void))
{
    pid_t pid = fork();
    if (!pid) {
        NEED(!mkdir("half", 0700));
        ef_unfinished("half");
        what();
        _exit(0);
    }
    int status;
    NEED(waitpid(pid, &status, 0) == pid);
    return status;
}

static void
leave(void)
{
    exit(5);
}

static void
finish(void)
{
    ef_unfinished(NULL);
    exit(5);
}

static void
hold(void)
{
    ef_hold_signals(true);
    raise(SIGTERM);
    write_file("done");
    ef_unfinished(NULL);
    ef_hold_signals(false);
    write_file("not reached");
}

static void
ignore(void)
{
    raise(SIGHUP);
    write_file("went on");
}

TEST(exit_removes_it_unless_it_is_whole)
{
    begin();
    int status = child(leave);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5 && access("half", F_OK));
    status = child(finish);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5 && !access("half", F_OK));
    end();
}

TEST(signals_wait_while_they_are_held)
{
    begin();
    int status = child(hold);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    CHECK(!access("done", F_OK) && !access("half", F_OK));
    CHECK(access("not reached", F_OK));
    end();
}

TEST(what_nohup_ignores_stays_ignored)
{
    begin();
    signal(SIGHUP, SIG_IGN);
    int status = child(ignore);
    signal(SIGHUP, SIG_DFL);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status) && !access("went on", F_OK));
    end();
}
