/* The reader of JSON lines takes what RFC 8259 says, no more and no less. */
#include "test.h"

#include "host_toy.h"

/* Nothing is asked of a row but input_ids. */
static const rt_data_spec any = {.label = RT_LABEL_ANY, .use = RT_PREDICTION};

static bool
takes(const char *line, size_t n)
{
    return rt_data_check_line(&any, line, n) == RT_OK;
}

/* Is it a JSON value, as one that is not used and as an element of a nested one? */
static bool
takes_value(const char *value)
{
    char line[4096];
    int n = snprintf(line, sizeof line, "{\"x\": %s, \"input_ids\": [1]}", value);
    int m = snprintf(line, sizeof line, "{\"input_ids\": [1],\"y\":{\"a\":[%s , 0]}}",
                     value);
    bool nested = takes(line, (size_t)m);
    snprintf(line, sizeof line, "{\"x\": %s, \"input_ids\": [1]}", value);
    bool plain = takes(line, (size_t)n);
    CHECK(plain == nested);
    return plain && nested;
}

TEST(values_of_json_are_taken)
{
    static const char *const good[] = {
        "0",
        "-0",
        "12",
        "-1",
        "0.5",
        "-0.0",
        "1e5",
        "1E+5",
        "1e-5",
        "0e0",
        "10.25e3",
        "123456789012345678901234567890",
        "1e400",
        "-1e-400",
        "true",
        "false",
        "null",
        "\"\"",
        "\"a\"",
        "\" \\\" \\\\ \\/ \\b\\f\\n\\r\\t\"",
        "\"\\u0041\\uFFFF\"",
        "\"\\ud800\"",
        "\"\x7f\"",
        "\"\xc3\xa9\"",
        "\"\xe2\x82\xac\"",
        "\"\xf0\x9f\x98\x80\"",
        "\"\xf4\x8f\xbf\xbf\"",
        "[]",
        "[ ]",
        "{}",
        "{ }",
        "[[]]",
        "[[],[]]",
        "[1,2]",
        "[ 1 , 2 ]",
        "{\"a\":1}",
        "{\"a\":{\"b\":[1,{\"c\":null}]}}",
        "{\"a\":1,\"a\":2}",
        "[\"]\", \"}\"]",
        "\t1 ",
        "[{},{}]",
        "[{\"a\":[]},1]",
        "{\"a\":[],\"b\":{}}",
        "{\"\":0}",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK(takes_value(good[i]));
        if (!takes_value(good[i]))
            printf("  refused: %s\n", good[i]);
    }
}

TEST(what_is_not_json_is_refused)
{
    static const char *const bad[] = {
        "",
        "-",
        "+1",
        "01",
        "-01",
        "1.",
        ".5",
        "-.5",
        "1e",
        "1e+",
        "1.e5",
        "0x10",
        "1a",
        "1 2",
        "NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "-inf",
        "True",
        "nul",
        "nulll",
        "truefalse",
        "'a'",
        "\"",
        "\"a",
        "\"\\\"",
        "\"\\x41\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\\"",
        "\"\t\"",
        "\"\x01\"",
        "\"\x80\"",
        "\"\xc0\xaf\"",
        "\"\xc1\xbf\"",
        "\"\xc3\"",
        "\"\xe0\x80\x80\"",
        "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"",
        "\"\xf5\x80\x80\x80\"",
        "\"\xff\"",
        "\"\xe2\x82\"",
        "[",
        "]",
        "{",
        "}",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[,]",
        "[1 2]",
        "[1}",
        "{1:2}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":1]",
        "{a:1}",
        "{\"a\":1,,\"b\":2}",
        "[[]",
        "[]]",
        "/*c*/1",
        "1//",
        "\xef\xbb\xbf"
        "1",
        "\x0b"
        "1",
        "\xa0"
        "1",
        "[1],[",
        "{} {}",
        "\"a\" \"b\"",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!takes_value(bad[i]));
        if (takes_value(bad[i]))
            printf("  taken: %s\n", bad[i]);
    }
}

#define TAKES(line) takes(line, sizeof(line) - 1)

TEST(lines)
{
    CHECK(TAKES("") && TAKES(" \t") && TAKES("\r"));
    CHECK(TAKES("{\"input_ids\":[1]}") && TAKES(" \t{ \"input_ids\" : [ 1 ] } \r"));
    CHECK(TAKES("{\"input_ids\":[1,2.0,3e0,0.4e1,-0]}"));
    CHECK(TAKES("{\"input\\u005fids\":[1]}")); /* the same key */
    CHECK(TAKES("{\"x\":{\"input_ids\":[]},\"input_ids\":[1]}"));
    CHECK(!TAKES("{\"input_ids\":[1]"));
    CHECK(!TAKES("{\"input_ids\":[1]}x"));
    CHECK(!TAKES("{\"input_ids\":[1]}{}"));
    CHECK(!TAKES("{\"input_ids\":[1],}"));
    CHECK(!TAKES("{\"input_ids\":[1,]}") && !TAKES("{\"input_ids\":[01]}"));
    CHECK(!TAKES("{\"input_ids\":[1]\0}") && !TAKES("{\"input_ids\":[1]}\0"));
    CHECK(!TAKES("{\"x\0\":1,\"input_ids\":[1]}"));
    CHECK(!TAKES("{}") && !TAKES("[]") && !TAKES("1") && !TAKES("null"));
    CHECK(!TAKES("{\"input_ids\":[1],\"input\\u005fids\":[2]}")); /* twice */
    CHECK(!TAKES("{\"input_ids\":[2147483648]}")); /* more than an int32 */
    CHECK(TAKES("{\"input_ids\":[2147483647]}"));
    CHECK(!TAKES("{\"input_ids\":[[1]]}") && !TAKES("{\"input_ids\":[{}]}"));
}

TEST(depth_has_a_limit)
{
    enum { DEEP = 1000 };
    static char line[2 * 2 * DEEP + 64];
    for (int depth = DEEP - 1; depth <= DEEP + 1; depth++) {
        size_t n = (size_t)sprintf(line, "{\"input_ids\":[1],\"x\":");
        memset(line + n, '[', (size_t)depth);
        memset(line + n + depth, ']', (size_t)depth);
        strcpy(line + n + 2 * depth, "}");
        CHECK(takes(line, n + 2 * (size_t)depth + 1) == (depth <= DEEP));
        memset(line + n, '[', sizeof line - n); /* without an end */
        CHECK(!takes(line, sizeof line));
    }
}

/* Any bytes: cut, changed and doubled lines neither crash nor read beyond the end. */
TEST(broken_lines_do_no_harm)
{
    static const char row[] =
        "{\"input_ids\": [1, 22, 3.5e1], \"attention_mask\": [1,1,0], \"labels\": "
        "[-100, null, \"\\u00e9\xc3\xa9\"], \"text\": {\"a\": [true, {\"b\": 0.25}]}}";
    uint64_t x = 1;
    int taken = 0;
    for (int i = 0; i < 100000; i++) {
        char line[2 * sizeof row];
        size_t n = sizeof row - 1;
        memcpy(line, row, n);
        for (int k = 0; k < 1 + i % 3; k++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(x >> 33) % n;
            static const char byte[] = "\"\\{}[],:0-.eE \xff\x80un\n\t1";
            line[at] = byte[(x >> 20) % (sizeof byte - 1)];
        }
        if (i % 5 == 0)
            n = (size_t)(x >> 40) % n;
        taken += takes(line, n);
    }
    CHECK(taken > 1000 && taken < 60000);
}
