/* What the lines of progress say and that they fit; in real terminals: tests/e2e/terminal_test.sh. */
#include "test.h"

#include "host_toy.h"

static char line[2048];

static const char *
at(const rt_progress *p, const rt_state *s, int columns)
{
    rt_progress_line(line, sizeof line, p, s, columns);
    return line;
}

TEST(the_live_line_fits)
{
    rt_progress p = {.live = true, .start = rt_now() - 100};
    rt_state s = {1234, 100000, 0.123456, 4.9e-5, 12.3456, 123456, 0};
    for (int columns = 5; columns <= 200; columns++) {
        size_t n = strlen(at(&p, &s, columns));
        CHECK(n <= (size_t)columns);
        CHECK(columns < 20 || n == (size_t)columns);
        CHECK(columns < 20 || strstr(line, "1234/100000"));
        CHECK(columns < 77 || (strstr(line, "loss 0.1235") && strstr(line, "left")));
    }
    s.total = 9999;
    at(&p, &s, 77); /* all of it in 80 columns, with room for a terminal's "^C" */
    CHECK(!strncmp(line, "#--- 1234/9999 loss 0.1235 lr 4.9e-5 norm 12.35  123k tok/s",
                   59));
    CHECK(line[strlen(line) - 1] == 'B');
    s.step = s.total;
    CHECK(!strncmp(at(&p, &s, 77), "####", 4) && !strstr(line, "#-"));
}

/* Numbers keep their columns, so the fields stand still. */
TEST(fields_stand_still)
{
    static const double loss[] = {0,     1e-9,   7.34e-4, 0.00999, 0.01, 0.123456,
                                  0.999, 1.0001, 10.456,  12345.6, 1e20, NAN};
    static const char *const shown[] = {"0.0000", "1.0e-9", "7.3e-4", "1.0e-2",
                                        "0.0100", "0.1235", "0.9990", "1.0001",
                                        "10.456", "12346 ", "1e20  ", "-     "};
    rt_progress p = {.live = true, .start = rt_now() - 100};
    for (int i = 0; i < 12; i++) {
        rt_state s = {1234, 9999, loss[i], loss[i], loss[i], 123456, 0};
        at(&p, &s, 100);
        CHECK(strstr(line, " lr ") == strstr(line, "loss ") + 11);
        CHECK(strstr(line, " norm ") == strstr(line, " lr ") + 10);
        CHECK(strlen(line) == 100);
        CHECK(!strncmp(strstr(line, "loss ") + 5, shown[i], 6));
    }
}

/* The time left of a run that went on at step 900 comes from what was done since. */
TEST(time_left_counts_from_where_it_began)
{
    rt_progress p = {.live = true, .start = rt_now() - 10, .first = 900};
    rt_state s = {910, 1000, 1, 1e-3, 1, 100, 0};
    CHECK(strstr(at(&p, &s, 200), " 1:30 left") != NULL);
    p.first = 0;
    p.start = rt_now() - 910;
    CHECK(strstr(at(&p, &s, 200), " 1:30 left") != NULL);
    p.first = s.step = 910; /* nothing is known yet */
    CHECK(strstr(at(&p, &s, 200), " 0:00 left") != NULL);
}

TEST(unicode_bars_have_eighths)
{
    rt_progress p = {.live = true, .blocks = true, .start = rt_now()};
    rt_state s = {1, 16, 1, 1e-3, 1, 100, 0};
    int columns = 0;
    at(&p, &s, 71); /* behind the bar: 67 */
    for (const char *c = line; *c; c++)
        columns += (*c & 0xc0) != 0x80;
    CHECK(columns == 71);
    s.step = 16;
    for (const char *c = at(&p, &s, 71); *c != ' '; c += 3)
        CHECK(!strncmp(c, "\u2588", 3));
}

TEST(a_pipe_gets_a_line_for_each_row)
{
    rt_progress p;
    rt_state s = {5, 10, 0.5, 1e-3, 2, 1000, 0};
    toy_listen();
    rt_progress_start(&p, 4);
    rt_progress_step(&p, &s, false);
    rt_progress_part(&p, "eval", 1, 2);
    rt_progress_step(&p, &s, true);
    s.loss = NAN;
    s.step = 10;
    rt_progress_step(&p, &s, true);
    rt_progress_clear(&p);
    toy_heard();
    CHECK(!strncmp(toy_said,
                   "step 5/10  loss 0.5  lr 0.001  grad norm 2  1.0k tokens/s", 56));
    TOY_HEARD("\nstep 10/10  skipped  lr 0.001  1.0k tokens/s");
    CHECK(!strchr(toy_said, '\r') && !strchr(toy_said, 033) &&
          !strstr(toy_said, "eval"));
}
