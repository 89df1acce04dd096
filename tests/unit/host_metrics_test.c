/* What an evaluation says, from arena and inputs that are filled by hand: against sums over
 * all elements at once. */
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/host/host_int.h"

enum { BATCH = 4, OUTPUTS = 2, N = BATCH * OUTPUTS };

typedef struct rig { /* arena of a program: loss, right, values */
    char arena[64 + 4 * N];
    float values[N];
    int64_t targets[BATCH];
    void *input[1];
    rt_input in;
    rt_program program;
    rt_run run;
} rig;

static void
rig_open(rig *r, bool regression)
{
    *r = (rig){.in = {.name = regression ? "values" : "targets",
                      .role = regression ? RT_VALUES : RT_TARGETS,
                      .rank = regression ? 2 : 1,
                      .dim = {BATCH, OUTPUTS}},
               .program = {.batch = BATCH,
                           .labels = regression ? OUTPUTS : 3,
                           .ninput = 1,
                           .eval_loss_at = 0,
                           .eval_right_at = regression ? -1 : 8,
                           .eval_value_at = regression ? 64 : -1}};
    r->program.input = &r->in;
    r->input[0] = regression ? (void *)r->values : (void *)r->targets;
    r->run =
        (rt_run){.program = &r->program, .arena = r->arena, .host_input = r->input};
}

static double
value_of(const rt_log_value *row, int n, const char *key)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(row[i].key, key))
            return row[i].value;
    return -99;
}

/* Batches of y = a value with noise around `level`; every fifth is not supervised. */
typedef struct pairs {
    int n[OUTPUTS];
    double x[OUTPUTS][100], y[OUTPUTS][100];
} pairs;

static void
add_batch(rig *r, rt_metrics *m, pairs *all, int batch, double level)
{
    float *y = (float *)(r->arena + 64), loss = 0;
    for (int i = 0; i < N; i++) {
        int k = i % OUTPUTS;
        y[i] = (float)(level + sin(batch * N + i + 1));
        r->values[i] = (float)(level + cos(3 * (batch * N + i)) + (double)k);
        if ((batch * N + i) % 5 == 2)
            r->values[i] = NAN;
        if (isnan(r->values[i]))
            continue;
        all->x[k][all->n[k]] = (double)y[i];
        all->y[k][all->n[k]++] = (double)r->values[i];
        loss += (y[i] - r->values[i]) * (y[i] - r->values[i]);
    }
    memcpy(r->arena, &loss, sizeof loss);
    rt_metrics_add(m, &r->run);
}

static double
mean_of(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

static double
pearson_of(const double *x, const double *y, int n)
{
    double mx = mean_of(x, n), my = mean_of(y, n), xx = 0, yy = 0, xy = 0;
    for (int i = 0; i < n; i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
        xy += (x[i] - mx) * (y[i] - my);
    }
    return xy / sqrt(xx * yy);
}

static void
check_regression(double level, double tolerance)
{
    rig r;
    pairs all = {0};
    rt_metrics m;
    rt_log_value row[RT_MAX_METRICS];
    rt_text text = {0};
    rig_open(&r, true);
    rt_metrics_start(&m, &r.program);
    for (int b = 0; b < 9; b++)
        add_batch(&r, &m, &all, b, level);
    int n = rt_metrics_rows(&m, &r.program, row, &text), count = all.n[0] + all.n[1];
    double mse = 0, mae = 0;
    for (int k = 0; k < OUTPUTS; k++)
        for (int i = 0; i < all.n[k]; i++) {
            mse += pow(all.x[k][i] - all.y[k][i], 2) / count;
            mae += fabs(all.x[k][i] - all.y[k][i]) / count;
        }
    CHECK(m.supervised == count && n == 4);
    CHECK_NEAR(value_of(row, n, "eval_loss"), mse, tolerance);
    CHECK_NEAR(value_of(row, n, "eval_mse"), mse, tolerance);
    CHECK_NEAR(value_of(row, n, "eval_mae"), mae, 1e-9);
    CHECK_NEAR(value_of(row, n, "eval_pearson"),
               (pearson_of(all.x[0], all.y[0], all.n[0]) +
                pearson_of(all.x[1], all.y[1], all.n[1])) /
                   2,
               1e-9);
    CHECK(strstr(text.s, "Pearson correlation") != NULL);
    rt_metrics_free(&m);
    free(text.s);
}

TEST(regression)
{
    check_regression(0, 1e-6);
}

TEST(values_far_from_zero)
{
    check_regression(1e4, 1e-2);
}

TEST(a_constant_has_no_correlation)
{
    rig r;
    rt_metrics m;
    rt_log_value row[RT_MAX_METRICS];
    rt_text text = {0};
    rig_open(&r, true);
    rt_metrics_start(&m, &r.program);
    rt_metrics_add(&m, &r.run);
    int n = rt_metrics_rows(&m, &r.program, row, &text);
    CHECK(isnan(value_of(row, n, "eval_pearson")));
    CHECK(value_of(row, n, "eval_mae") == 0);
    CHECK(strstr(text.s, "correlation unknown") != NULL && !strstr(text.s, "nan"));
    rt_metrics_free(&m);
    free(text.s);
}

static void
check_classes(int64_t labels, int keys)
{
    rig r;
    rt_metrics m;
    rt_log_value row[RT_MAX_METRICS];
    rt_text text = {0};
    rig_open(&r, false);
    r.program.labels = labels;
    rt_metrics_start(&m, &r.program);
    r.targets[1] = RT_IGNORE;
    float loss = 6;
    int64_t right = 2;
    memcpy(r.arena, &loss, sizeof loss);
    memcpy(r.arena + 8, &right, sizeof right);
    rt_metrics_add(&m, &r.run);
    int n = rt_metrics_rows(&m, &r.program, row, &text);
    CHECK(n == keys && m.supervised == 3);
    CHECK_NEAR(value_of(row, n, "eval_loss"), 2, 1e-12);
    CHECK_NEAR(value_of(row, n, "eval_accuracy"), 2.0 / 3, 1e-12);
    if (!labels)
        CHECK_NEAR(value_of(row, n, "eval_perplexity"), exp(2), 1e-12);
    rt_metrics_free(&m);
    free(text.s);
}

TEST(classes_and_words)
{
    check_classes(3, 2);
    check_classes(0, 3);
}
