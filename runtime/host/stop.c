/* stop.c -- how a run is asked to stop: signals and --max-time.
 *
 * Until the first step nothing can be lost, and a signal ends the process at once. After
 * that it only sets a flag, which the loops ask for between two steps or two batches. A
 * second SIGINT or SIGTERM has its default action, for people who cannot wait; but `timeout`
 * and launchers that forward signals send the same one twice in a row, so one within half a
 * second of the first is taken for the same. SIGUSR1, by which batch systems tell that time
 * is nearly up, and SIGHUP, which the kernel and the shell both send when a terminal closes,
 * may come any number of times.
 *
 * A shell starts background jobs with SIGINT ignored, and nohup does so with SIGHUP; what
 * was ignored stays ignored.
 */
#include "host_int.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct stop_signal {
    int number;
    const char *name;
} stop_signal[] = {
    {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}};
enum { NSIGNALS = sizeof stop_signal / sizeof *stop_signal, GRACE_MS = 500 };

/* Written by the handler. */
static volatile sig_atomic_t asked, gently, hard;
static struct timespec hard_at;

static double until; /* 0: no limit */
static bool open_now;
static struct sigaction before[NSIGNALS];

static void
end_at_once(void)
{
    static const char text[] =
        "stopped: nothing is lost, the same command begins again\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(RT_STOPPED);
}

static void
on_signal(int number)
{
    if (!gently)
        end_at_once();
    if (!asked)
        asked = number;
    if (number == SIGUSR1 || number == SIGHUP)
        return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long ms = (long)(now.tv_sec - hard_at.tv_sec) * 1000 +
              (now.tv_nsec - hard_at.tv_nsec) / 1000000;
    if (hard && ms > GRACE_MS) {
        signal(number, SIG_DFL);
        raise(number); /* arrives when this handler returns */
    }
    if (!hard)
        hard_at = now;
    hard = 1;
}

void
rt_stop_open(double at)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NSIGNALS; i++)
        sigaddset(&action.sa_mask, stop_signal[i].number);
    asked = gently = hard = 0;
    until = at;
    open_now = true;
    for (int i = 0; i < NSIGNALS; i++) {
        sigaction(stop_signal[i].number, NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(stop_signal[i].number, &action, NULL);
    }
}

void
rt_stop_gently(void)
{
    gently = 1;
}

bool
rt_stop_asked(void)
{
    return rt_stop_why() != NULL;
}

const char *
rt_stop_why(void)
{
    for (int i = 0; i < NSIGNALS && asked; i++)
        if (asked == stop_signal[i].number)
            return stop_signal[i].name;
    return until > 0 && rt_now() >= until ? "--max-time" : NULL;
}

const char *
rt_stop_word(void)
{
    return *rt_stop_why() == '-' ? "max time" : "signal";
}

void
rt_stop_close(void)
{
    for (int i = 0; i < NSIGNALS && open_now; i++)
        sigaction(stop_signal[i].number, &before[i], NULL);
    asked = gently = hard = 0;
    until = 0;
    open_now = false;
}

double
rt_seconds(const char *text)
{
    static const char unit[] = "smhd";
    static const double size[] = {1, 60, 3600, 86400};
    double total = 0;
    for (int part = 0; part < 3; part++) {
        if (*text < '0' || *text > '9')
            return -1;
        char *end;
        double x = strtod(text, &end);
        const char *u = *end ? strchr(unit, *end) : NULL;
        if (!part && u && !end[1])
            return x * size[u - unit];
        total = total * 60 + x;
        if (!*end)
            return part == 1 ? -1 : total;
        if (*end != ':')
            return -1;
        text = end + 1;
    }
    return -1;
}
