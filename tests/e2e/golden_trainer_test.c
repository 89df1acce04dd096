/* golden_trainer_test.c -- optimizers and schedules of the trainer against PyTorch's and
 * transformers' (tests/cases/trainer-goldens.json; make_trainer_goldens.py made it).
 *
 * Learning rates within 1e-9, losses within 1e-4 max(1, loss), norms within 1e-3. The log
 * holds 9 digits, so the rates that it shows are compared within 1e-8.
 */
#include "golden.h"
#include "test.h"

#include "runtime/host/host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *
get(const cJSON *j, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(j, key);
}

static double
number(const cJSON *j, const char *key)
{
    const cJSON *v = get(j, key);
    return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}

static double
element(const cJSON *j, const char *key, int i)
{
    const cJSON *v = cJSON_GetArrayItem(get(j, key), i);
    return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}

static cJSON *
goldens(void)
{
    cJSON *j = json_read(SRC_DIR "/tests/cases/trainer-goldens.json");
    NEED(j != NULL);
    return j;
}

/* A rate that should be 0 may be what is left of it by rounding. */
static bool
near(double got, double want, double share, double peak)
{
    return fabs(got - want) <= share * fabs(want) + 1e-15 * peak;
}

TEST(schedules_are_those_of_transformers)
{
    cJSON *j = goldens();
    const cJSON *s;
    int n = 0;
    cJSON_ArrayForEach(s, get(j, "schedules"))
    {
        rt_opts o = {.max_steps = (int64_t)number(s, "total"),
                     .learning_rate = number(s, "peak"),
                     .warmup_steps = number(s, "warmup_steps"),
                     .warmup_ratio = number(s, "warmup_ratio"),
                     .lr_scheduler_type = cJSON_GetStringValue(get(s, "type")),
                     .gradient_accumulation_steps = 1};
        rt_schedule r = rt_schedule_of(&o, 100, 1);
        for (int k = 0; k < o.max_steps; k++) {
            double got = rt_schedule_lr(&r, k), want = element(s, "learning_rate", k);
            bool same = near(got, want, 1e-9, o.learning_rate);
            if (!same)
                printf("  %s, %lld steps, warm-up %g/%g: step %d: %.17g, want %.17g\n",
                       o.lr_scheduler_type, (long long)o.max_steps, o.warmup_steps,
                       o.warmup_ratio, k, got, want);
            CHECK(same);
        }
        n++;
    }
    CHECK(n > 60);
    cJSON_Delete(j);
}

/* ---- curves ---- */

typedef struct worst {
    double loss, norm, rate;
} worst;

static worst
compare(const cJSON *want, const char *log, int steps)
{
    worst w = {0};
    char *text = text_read(log), *line = text;
    double peak = element(want, "learning_rate", 0);
    for (int k = 1; k < steps; k++)
        peak = fmax(peak, element(want, "learning_rate", k));
    for (int k = 0; k < steps; k++) {
        cJSON *row = line ? cJSON_ParseWithOpts(line, NULL, false) : NULL;
        double loss = element(want, "loss", k), norm = element(want, "grad_norm", k);
        double rate = element(want, "learning_rate", k);
        double l = fabs(number(row, "loss") - loss) / fmax(1, loss);
        double n = fabs(number(row, "grad_norm") - norm) / norm;
        bool same = number(row, "step") == k + 1 &&
                    near(number(row, "learning_rate"), rate, 1e-8, peak);
        /* what is missing is NaN, which no comparison passes */
        w.loss = l <= w.loss ? w.loss : l;
        w.norm = n <= w.norm ? w.norm : n;
        w.rate = same ? w.rate : k + 1;
        cJSON_Delete(row);
        line = line ? strchr(line, '\n') : NULL;
        line = line ? line + 1 : NULL;
    }
    free(text);
    return w;
}

TEST(curves_are_those_of_pytorch)
{
    cJSON *j = goldens();
    const cJSON *r;
    const char *name = cJSON_GetStringValue(get(j, "case"));
    char dir[512], data[600];
    int steps = (int)number(j, "steps"), n = 0;
    snprintf(dir, sizeof dir, "%s", fresh_dir("golden-trainer"));
    snprintf(data, sizeof data, "%s/data.jsonl", dir);
    tensors golden =
        tensors_read(fmt("%s/tests/cases/%s/golden.safetensors", SRC_DIR, name));
    const tensor *ids = tensors_get(&golden, "batch0.input_ids");
    NEED(ids != NULL && batches_write(data, &golden, (int[]){0, 1, 2, 3}, 4));
    NEED(run(fmt("%s/compile.log", dir),
             "%s/efficc %s/tests/cases/%s/model.onnx --fp32 --batch %d --seq %d -o "
             "%s/out "
             "--cflags '-O1 -march=native'",
             BIN_DIR, SRC_DIR, name, (int)ids->dim[0], (int)ids->dim[1], dir) == 0);
    cJSON_ArrayForEach(r, get(j, "runs"))
    {
        int code = run(fmt("%s/log", dir),
                       "%s/out/trainer --train-data %s --shuffle false --max-steps %d "
                       "--logging-steps 1 --save-strategy no --overwrite-output-dir "
                       "--output-dir %s/res %s",
                       dir, data, steps, dir, cJSON_GetStringValue(get(r, "options")));
        worst w = compare(r, fmt("%s/res/log.jsonl", dir), steps);
        bool good = !code && w.loss <= 1e-4 && w.norm <= 1e-3 && !w.rate;
        printf("  %-28s loss %.1e, norm %.1e\n", cJSON_GetStringValue(get(r, "name")),
               w.loss, w.norm);
        if (!good)
            printf("  exit code %d, rate of step %g differs: %.300s\n", code, w.rate,
                   text_read(fmt("%s/log", dir)));
        CHECK(good);
        n++;
    }
    CHECK(n == 10);
    tensors_free(&golden);
    cJSON_Delete(j);
}
