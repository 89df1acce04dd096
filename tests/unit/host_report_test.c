/* report.html: what of a log and a plan gets into it, how large it may get, and that nothing
 * in it can end its script. What a browser makes of it is tests/e2e/report_test.sh. */
#include "test.h"

#include "host_toy.h"
#include "runtime/host/curve.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>

/* ---- curves ---- */

static double
bump(int64_t i, int64_t n)
{
    return i == n / 3 ? 100 : i == n / 2 ? -100 : (double)(i % 7);
}

static cJSON *
json_of(const rt_curve *c, bool smooth)
{
    rt_text t = {0};
    rt_curve_json(c, smooth, &t);
    cJSON *o = cJSON_Parse(t.s);
    free(t.s);
    NEED(o != NULL);
    return o;
}

static cJSON *
get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static double
at(const cJSON *list, int i)
{
    cJSON *item = cJSON_GetArrayItem(list, i);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

TEST(a_short_curve_is_all_there)
{
    rt_curve c = rt_curve_of("loss");
    for (int i = 1; i <= 5; i++)
        rt_curve_add(&c, i * 10, i == 3 ? NAN : 1.0 / i);
    cJSON *o = json_of(&c, true), *y = get(o, "y");
    CHECK(cJSON_GetArraySize(get(o, "x")) == 5 && cJSON_GetArraySize(y) == 5);
    CHECK(cJSON_IsNull(cJSON_GetArrayItem(y, 2)) && at(get(o, "x"), 2) == 30);
    CHECK_NEAR(at(y, 1), 0.5, 0);
    CHECK(at(get(o, "low"), 0) == 50 && at(get(o, "high"), 0) == 10);
    CHECK(at(get(o, "last"), 0) == 50 && at(get(o, "last"), 1) == 0.2);
    CHECK_NEAR(get(o, "mean")->valuedouble, (1 + .5 + .25 + .2) / 4, 1e-9);
    CHECK(get(o, "rows")->valuedouble == 5 && !get(o, "smooth"));
    cJSON_Delete(o);
    rt_curve_free(&c);
}

TEST(a_long_curve_keeps_its_peaks)
{
    static const int64_t length[] = {1023, 1024, 1025, 4097, 100000};
    for (int k = 0; k < 5; k++) {
        int64_t n = length[k];
        rt_curve c = rt_curve_of("loss");
        for (int64_t i = 0; i < n; i++)
            rt_curve_add(&c, (double)i, bump(i, n));
        cJSON *o = json_of(&c, true), *x = get(o, "x"), *y = get(o, "y");
        int points = cJSON_GetArraySize(x), peaks = 0;
        CHECK(points == cJSON_GetArraySize(y) && points <= 2 * RT_CURVE_BUCKETS);
        CHECK(points >= 500);
        cJSON *px = x->child, *py = y->child;
        for (double before = -1; px; px = px->next, py = py->next) {
            CHECK(px->valuedouble > before);
            CHECK(py->valuedouble == bump((int64_t)px->valuedouble, n));
            before = px->valuedouble;
            peaks += fabs(py->valuedouble) == 100;
        }
        CHECK(peaks == 2);
        CHECK(at(get(o, "high"), 0) == (double)(n / 3));
        CHECK(at(get(o, "low"), 0) == (double)(n / 2));
        CHECK(at(get(o, "last"), 0) == (double)(n - 1));
        CHECK(get(o, "rows")->valuedouble == (double)n);
        cJSON_Delete(o);
        rt_curve_free(&c);
    }
}

/* What is straight stays so, to the ends, in spite of gaps; noise gets less. */
TEST(smoothing_follows_a_line)
{
    rt_curve line = rt_curve_of("a"), noise = rt_curve_of("b");
    for (int i = 0; i < 400; i++) {
        rt_curve_add(&line, i, i % 10 == 3 ? NAN : 5 - 0.25 * i);
        rt_curve_add(&noise, i, i % 2 ? 1 : -1);
    }
    cJSON *o = json_of(&line, true), *s = get(o, "smooth");
    NEED(s && cJSON_GetArraySize(get(s, "y")) == 400);
    CHECK(get(s, "over")->valueint == 41);
    for (int i = 0; i < 400; i++)
        CHECK_NEAR(at(get(s, "y"), i), 5 - 0.25 * i, 1e-3);
    cJSON_Delete(o);
    o = json_of(&noise, true);
    for (int i = 10; i < 390; i++)
        CHECK(fabs(at(get(get(o, "smooth"), "y"), i)) < 0.06);
    cJSON_Delete(o);
    rt_curve_free(&line);
    rt_curve_free(&noise);
}

TEST(a_curve_of_gaps_has_no_values)
{
    rt_curve c = rt_curve_of("loss");
    for (int i = 0; i < 5000; i++)
        rt_curve_add(&c, i, NAN);
    cJSON *o = json_of(&c, true);
    CHECK(!get(o, "last") && !get(o, "smooth"));
    CHECK(cJSON_GetArraySize(get(o, "x")) <= RT_CURVE_BUCKETS);
    CHECK(cJSON_IsNull(cJSON_GetArrayItem(get(o, "y"), 0)));
    rt_curve_add(&c, 5000, 2);
    cJSON_Delete(o);
    o = json_of(&c, true);
    CHECK(at(get(o, "last"), 1) == 2 && at(get(o, "low"), 0) == 5000);
    cJSON_Delete(o);
    rt_curve_free(&c);
}

/* ---- the page ---- */

static char *
page(void)
{
    int err;
    return rt_read_text(toy_path("run/report.html"), 8 << 20, &err);
}

static int
count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text++)
        n++;
    return n;
}

/* The data of the page that the run's folder gets. Delete it. */
static cJSON *
written(const char *options)
{
    rt_report_write(toy_path("run"), toy_path("prog"), options);
    char *html = page();
    const char *start = strstr(html, "id=\"run\">");
    NEED(start != NULL);
    cJSON *o = cJSON_ParseWithOpts(start + 9, NULL, false);
    NEED(o != NULL);
    CHECK(!strncmp(html, "<!doctype html>", 15));
    CHECK(count(html, "</script>") == 2 && count(html, "<script") == 2);
    CHECK(!strstr(html, "{{RUN}}") && strstr(html, "</html>"));
    free(html);
    return o;
}

static void
folders(const char *log, const char *plan)
{
    mkdir(toy_path("run"), 0777);
    mkdir(toy_path("prog"), 0777);
    toy_write("run/log.jsonl", log);
    unlink(toy_path("prog/plan.json"));
    if (plan)
        toy_write("prog/plan.json", plan);
}

TEST(the_page_holds_log_options_and_plan)
{
    folders(
        "{\"step\": 1, \"loss\": 2.5, \"grad_norm\": null, \"outlier\": true}\n"
        "{\"step\": 2, \"loss\": 1.5, \"grad_norm\": 3}\n"
        "{\"step\": 2, \"eval_loss\": 0.125}\n"
        "{\"total_seconds\": 9, \"end\": \"done\"}\n",
        "{\"efficc\": \"1\", \"facts\": {\"model\": \"a</script><b>.onnx\"}, "
        "\"memory\": {\"total\": 7}, \"lora\": {\"r\": 2, \"matches\": [{\"module\": "
        "\"q\"}]}, \"parameters\": [{\"name\": \"w\", \"class\": \"trained\", "
        "\"shape\": [3, 4], \"unit\": \"u\", \"offset\": 0}, {\"name\": \"v\", "
        "\"class\": \"frozen\", \"shape\": [5]}, {\"name\": \"c\", \"class\": "
        "\"constant\", \"shape\": [9]}]}");
    cJSON *o = written("{\"seed\": 1, \"output_dir\": \"<!--<script>\"}");
    cJSON *curves = get(o, "curves"), *count_of = get(o, "count");
    CHECK(get(o, "rows")->valueint == 3 && get(o, "step")->valueint == 2);
    NEED(cJSON_GetArraySize(curves) == 3); /* a flag is no curve */
    cJSON *loss = cJSON_GetArrayItem(curves, 0);
    CHECK_STR(get(loss, "key")->valuestring, "loss");
    CHECK(at(get(loss, "y"), 0) == 2.5 && at(get(loss, "y"), 1) == 1.5);
    CHECK_STR(get(get(o, "ending"), "end")->valuestring, "done");
    CHECK_STR(get(get(o, "options"), "output_dir")->valuestring, "<!--<script>");
    CHECK_STR(get(get(o, "facts"), "model")->valuestring, "a</script><b>.onnx");
    CHECK(get(get(o, "memory"), "total")->valueint == 7);
    CHECK(get(get(o, "lora"), "count")->valueint == 1);
    CHECK(cJSON_GetArraySize(get(o, "trained")) == 1);
    CHECK(get(count_of, "trained")->valueint == 12);
    CHECK(get(count_of, "all")->valueint == 17);
    cJSON_Delete(o);
}

TEST(a_page_without_plan_or_end)
{
    folders("{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"lo", NULL);
    cJSON *o = written("{}");
    CHECK(cJSON_IsNull(get(o, "ending")) && cJSON_IsNull(get(o, "memory")));
    CHECK(get(o, "rows")->valueint == 1 && !cJSON_GetArraySize(get(o, "trained")));
    cJSON_Delete(o);
    folders("", "{\"effi");
    o = written("{}");
    CHECK(!cJSON_GetArraySize(get(o, "curves")));
    cJSON_Delete(o);
    unlink(toy_path("run/log.jsonl"));
    toy_listen();
    rt_report_write(toy_path("run"), toy_path("prog"), "{}");
    toy_heard();
    TOY_HEARD("log.jsonl: No such file");
    char *html = page(); /* the page that was there */
    CHECK(html && strstr(html, "</html>"));
    free(html);
}

TEST(a_long_run_of_a_large_model_is_a_small_page)
{
    rt_text log = {0}, plan = {0};
    for (int i = 1; i <= 20000; i++) {
        rt_putf(&log, "{\"step\": %d", 1000000 + i);
        for (int k = 0; k < 20; k++)
            rt_putf(&log, ", \"value_%d\": %.9g", k, sin(i * 0.1 + k) / 7);
        rt_putf(&log, "}\n");
    }
    rt_putf(&plan, "{\"lora\": {\"matches\": [{\"module\": \"m\"}");
    for (int i = 0; i < 5000; i++)
        rt_putf(&plan, ", {\"module\": \"model.layers.%d.self_attn.q_proj\"}", i);
    rt_putf(&plan, "]}, \"parameters\": [{\"class\": \"trained\", \"shape\": [2]}");
    for (int i = 0; i < 5000; i++)
        rt_putf(&plan,
                ", {\"class\": \"trained\", \"shape\": [4096, 4096], \"name\": "
                "\"model.layers.%d.self_attn.q_proj\"}",
                i);
    rt_putf(&plan, "]}");
    folders(log.s, plan.s);
    cJSON *o = written("{}");
    struct stat st;
    CHECK(!stat(toy_path("run/report.html"), &st) && st.st_size < 1000000);
    CHECK(get(get(o, "lora"), "count")->valueint == 5001);
    CHECK(get(get(o, "count"), "tensors")->valueint == 5001);
    CHECK(get(get(o, "count"), "trained")->valuedouble == 2 + 5000. * 4096 * 4096);
    CHECK(cJSON_GetArraySize(get(o, "trained")) == 400);
    cJSON_Delete(o);
    free(log.s);
    free(plan.s);
}
