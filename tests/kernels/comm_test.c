/* Collectives: on one rank what a part holds is what all hold; between ranks, a process each. */
#include "kernel.h"

#ifdef KT_DEVICE
#include "runtime/cuda/comm.h"
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 4, STEPS = 3, NO_DEVICE = 77 };

/* Small integers: any order of a sum is exact. */
static float
value(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 13) % 101);
}

/* Of each step: the gathered buffer, and the own part of the reduced one. */
static bool
as_wanted(float *const all[STEPS], float *const own[STEPS], int rank, int ranks,
          int64_t part)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < STEPS * ranks * part; i++) {
        int64_t step = i / (ranks * part), k = i % (ranks * part);
        wrong += all[step][k] != value((int)(k / part), k) + (float)step;
    }
    for (int64_t i = 0; i < STEPS * part; i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++)
            sum += value(r, rank * part + i % part);
        wrong += own[i / part][i % part] != sum;
    }
    return wrong == 0;
}

/* Both kinds are in flight at once, as steps of a program would have them; what a step gathers
 * was computed behind the gather before. */
static bool
run_rank(rt_stream *s, int rank, int ranks, int64_t part)
{
    int64_t n = ranks * part, bytes = n * (int64_t)sizeof(float);
    float *a = kt_floats(n), *b = kt_floats(n), *from = kt_floats(n),
          *one = kt_floats(part);
    float *all[STEPS], *own[STEPS];
    rt_future gathered = {0}, reduced = {0};
    for (int64_t i = 0; i < n; i++) {
        a[i] = i / part == rank ? value(rank, i) : NAN;
        from[i] = value(rank, i);
    }
    for (int64_t i = 0; i < part; i++)
        one[i] = 1;
    for (int i = 0; i < STEPS; i++) {
        all[i] = kt_floats(n), own[i] = kt_floats(part);
        rt_all_gather(s, &gathered, a, bytes);
        rt_copy(s, b, from, bytes);
        rt_reduce_scatter(s, &reduced, b, n);
        rt_wait(s, &gathered);
        rt_copy(s, all[i], a, bytes);
        rt_add_to(s, a + rank * part, one, part);
        rt_wait(s, &reduced);
        rt_copy(s, own[i], b + rank * part, bytes / ranks);
    }
    kt_wait(s);
    return as_wanted(all, own, rank, ranks, part);
}

static int
rank_main(int rank, int ranks, int64_t part, const char *id)
{
    char error[256], card[16];
    rt_program program = {0};
    rt_stream *s = NULL;
    snprintf(card, sizeof card, "%d", rank);
    setenv("CUDA_VISIBLE_DEVICES", card, 1);
    kt_device_seed(rank);
    if (!rt_device_open(&program, &s, error, sizeof error))
        return NO_DEVICE;
    rtc_comm_open(s, rank, ranks, id);
    bool ok = run_rank(s, rank, ranks, part);
    rtc_comm_close(s);
    rt_device_close(s);
    kt_done();
    return !ok;
}

/* Runs the ranks; the exit code of the first that does not end with 0. */
static int
run_ranks(int ranks, int64_t part)
{
    char id[RTC_COMM_ID];
    pid_t pid[MOST_RANKS];
    int code = 0;
    rtc_comm_id(id);
    fflush(stdout);
    for (int r = 0; r < ranks; r++) {
        pid[r] = fork();
        if (pid[r] == 0)
            _exit(rank_main(r, ranks, part, id));
    }
    for (int i = 0; i < ranks; i++) {
        int status;
        NEED(wait(&status) > 0);
        if (status && !code) {
            code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            for (int r = 0; r < ranks; r++)
                kill(pid[r], SIGKILL); /* they would wait for it */
        }
    }
    return code;
}

/* First of all: a process that has used a GPU can't be forked. */
TEST(ranks_gather_and_reduce)
{
    static const int64_t parts[] = {1, 3, 31, 1000};
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            int code = run_ranks(ranks, parts[i]);
            if (code == NO_DEVICE)
                SKIP("a rank has no GPU");
            CHECK(code == 0);
        }
}
#endif

TEST(one_rank_gathers_and_reduces_its_own_buffer)
{
    rt_program program = {0};
    float *buf = kt_noise(1000, 3, 1), *before = kt_copy(buf, 1000);
    RUN_TEAMS(&program, s, team)
    {
        rt_future gathered = {0}, reduced = {0};
        rt_all_gather(s, &gathered, buf, 4000);
        CHECK(gathered.pending);
        rt_wait(s, &gathered);
        rt_reduce_scatter(s, &reduced, buf, 1000);
        CHECK(!gathered.pending && reduced.pending);
        rt_wait(s, &reduced);
        rt_wait(s, &reduced);
        CHECK(!reduced.pending);
        kt_wait(s);
        CHECK(!memcmp(buf, before, 4000));
    }
    kt_done();
}
