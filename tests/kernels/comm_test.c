/* Collectives on one rank: what a part holds is what all hold. */
#include "kernel.h"

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
        CHECK(!reduced.pending && !memcmp(buf, before, 4000));
    }
}
