/* Opening the device, its memory, and what is said when it fails. */
#include "kernel.h"

#ifdef KT_DEVICE
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/host/host_int.h"

/* A process that draws a line of progress in this terminal, and then has a device that fails. */
static void
fail_in(const char *terminal)
{
    rt_progress p;
    const rt_state at = {.step = 1, .total = 9};
    rt_out = rt_err = fopen(terminal, "w");
    if (!rt_out)
        _exit(99);
    setenv("TERM", "xterm", 1);
    rt_progress_start(&p, 0);
    rt_progress_step(&p, &at, false);
    kt_device_fail();
    _exit(98); /* it has gone on */
}

/* Before any other test: a process can't go on with CUDA that was opened before it was forked. */
TEST(a_failure_of_the_device_wipes_the_line_of_progress)
{
    char text[4096];
    size_t n = 0;
    int status = 0, screen = posix_openpt(O_RDWR | O_NOCTTY);
    NEED(screen >= 0 && !grantpt(screen) && !unlockpt(screen));
    fflush(NULL);
    pid_t child = fork();
    if (!child)
        fail_in(ptsname(screen));
    waitpid(child, &status, 0);
    fcntl(screen, F_SETFL, O_NONBLOCK);
    for (ssize_t k = 1; k > 0 && n + 1 < sizeof text; n += k > 0 ? (size_t)k : 0)
        k = read(screen, text + n, sizeof text - 1 - n);
    text[n] = 0;
    close(screen);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == RT_BUG);
    const char *line = strstr(text, "1/9 "),
               *error = strstr(text, "trainer: error: CUDA: ");
    NEED(line && error && line < error);
    CHECK(!strncmp(error - 4, "\r\033[K", 4));
}
#endif

TEST(memory_is_zero_and_aligned)
{
    static const size_t sizes[] = {0, 1, 4096, (2 << 20) + 1};
    rt_program p = {0};
    rt_stream *s = kt_open(&p, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *x = rt_alloc(sizes[i]), *host = malloc(sizes[i] + 1);
        NEED(x != NULL && host != NULL);
        CHECK((uintptr_t)x % RT_ALIGN == 0);
        rt_download(s, host, x, (int64_t)sizes[i]);
        size_t zero = 0;
        while (zero < sizes[i] && host[zero] == 0)
            zero++;
        CHECK(zero == sizes[i]);
        free(host);
    }
    CHECK(rt_alloc((size_t)1 << 60) == NULL);
    rt_device_close(s);
    kt_done();
}

#ifndef KT_DEVICE
TEST(a_missing_processor_feature_is_named)
{
    static const char *const odd[] = {"no-such-feature", NULL};
    rt_program p = {.threads = 1, .cpu_features = odd};
    char error[200];
    rt_stream *s;
    CHECK(!rt_device_open(&p, &s, error, sizeof error));
    CHECK(s == NULL && strstr(error, "no-such-feature"));
    static const char *const here[] = {"sse4.2", NULL};
    p.cpu_features = here;
    CHECK(rt_device_open(&p, &s, error, sizeof error));
    rt_device_close(s);
    rt_device_close(NULL);
}
#endif
