/* scan_test.c -- the pre-scan of ONNX files: what is cut, what is refused. */
#include "frontend/onnx_int.h"
#include "test.h"

#include <string.h>

enum { BIG = FE_KEEP_BYTES + 64 };

static void
varint(ef_buf *b, uint64_t v)
{
    for (; v > 127; v >>= 7)
        ef_putn(b, (char[]){(char)(v | 128)}, 1);
    ef_putn(b, (char[]){(char)v}, 1);
}

static void
field(ef_buf *b, int number, const char *data, size_t n)
{
    varint(b, (uint64_t)number << 3 | 2);
    varint(b, n);
    ef_putn(b, data, n);
}

/* ModelProto { graph { initializer { tensor } } } */
static ef_buf
model_of(ef_arena *a, const ef_buf *tensor)
{
    ef_buf graph = {.arena = a}, model = {.arena = a};
    field(&graph, 5, tensor->s, tensor->n);
    field(&model, 7, graph.s, graph.n);
    return model;
}

static const char *
scan(ef_arena *a, const ef_buf *model, fe_scan *s)
{
    return fe_scan_wire(a, (const uint8_t *)model->s, model->n, s);
}

static Onnx__ModelProto *
unpacked(const fe_scan *s)
{
    return onnx__model_proto__unpack(NULL, s->n, s->wire);
}

TEST(big_raw_data_is_cut_and_found)
{
    ef_arena *a = ef_arena_new();
    ef_buf t = {.arena = a};
    char data[BIG];
    fe_scan s;
    memset(data, 'x', sizeof(data));
    field(&t, 8, "w", 1);
    field(&t, 9, data, sizeof(data));
    ef_buf model = model_of(a, &t);
    NEED(!scan(a, &model, &s) && s.payloads.n == 1);
    const fe_payload *p = &s.payloads.at[0];
    CHECK(p->cut && p->field == 9 && p->bytes == BIG);
    CHECK(!memcmp(model.s + p->at, data, BIG));
    CHECK(s.n < 100);
    Onnx__ModelProto *m = unpacked(&s);
    NEED(m && m->graph && m->graph->n_initializer == 1);
    const Onnx__TensorProto *got = m->graph->initializer[0];
    CHECK(!got->has_raw_data && got->has_scan_index && got->scan_index == 0);
    CHECK_STR(got->name, "w");
    onnx__model_proto__free_unpacked(m, NULL);
    ef_arena_free(a);
}

TEST(small_raw_data_stay)
{
    ef_arena *a = ef_arena_new();
    ef_buf t = {.arena = a};
    char data[FE_KEEP_BYTES] = {7};
    fe_scan s;
    field(&t, 9, data, sizeof(data));
    ef_buf model = model_of(a, &t);
    NEED(!scan(a, &model, &s) && s.payloads.n == 1);
    CHECK(!s.payloads.at[0].cut && model.s[s.payloads.at[0].at] == 7);
    Onnx__ModelProto *m = unpacked(&s);
    NEED(m != NULL);
    CHECK(m->graph->initializer[0]->raw_data.len == FE_KEEP_BYTES);
    onnx__model_proto__free_unpacked(m, NULL);
    ef_arena_free(a);
}

TEST(float_data_in_one_piece_are_cut_in_two_they_stay)
{
    ef_arena *a = ef_arena_new();
    char data[BIG] = {0};
    for (int pieces = 1; pieces <= 2; pieces++) {
        ef_buf t = {.arena = a};
        fe_scan s;
        for (int i = 0; i < pieces; i++)
            field(&t, 4, data, sizeof(data));
        ef_buf model = model_of(a, &t);
        NEED(!scan(a, &model, &s) && s.payloads.n == 1);
        CHECK(s.payloads.at[0].cut == (pieces == 1));
        Onnx__ModelProto *m = unpacked(&s);
        NEED(m != NULL);
        CHECK(m->graph->initializer[0]->n_float_data ==
              (pieces == 1 ? 0 : 2 * BIG / sizeof(float)));
        onnx__model_proto__free_unpacked(m, NULL);
    }
    ef_arena_free(a);
}

TEST(a_number_in_the_file_does_not_mislead)
{
    ef_arena *a = ef_arena_new();
    ef_buf t = {.arena = a};
    fe_scan s;
    varint(&t, 15000 << 3); /* scan_index 77 */
    varint(&t, 77);
    field(&t, 8, "w", 1);
    ef_buf model = model_of(a, &t);
    NEED(!scan(a, &model, &s));
    Onnx__ModelProto *m = unpacked(&s);
    NEED(m != NULL);
    CHECK(m->graph->initializer[0]->scan_index == 0);
    onnx__model_proto__free_unpacked(m, NULL);
    ef_arena_free(a);
}

TEST(data_twice_is_refused)
{
    ef_arena *a = ef_arena_new();
    const int fields[][2] = {{9, 9}, {9, 4}, {10, 9}};
    for (size_t i = 0; i < EF_COUNT(fields); i++) {
        ef_buf t = {.arena = a};
        fe_scan s;
        field(&t, fields[i][0], "12345678", 8);
        field(&t, fields[i][1], "12345678", 8);
        ef_buf model = model_of(a, &t);
        const char *wrong = scan(a, &model, &s);
        CHECK(wrong && strstr(wrong, "twice"));
    }
    ef_arena_free(a);
}

TEST(two_graphs_are_refused)
{
    ef_arena *a = ef_arena_new();
    ef_buf model = {.arena = a};
    fe_scan s;
    field(&model, 7, "", 0);
    CHECK(!scan(a, &model, &s));
    field(&model, 7, "", 0);
    const char *wrong = scan(a, &model, &s);
    CHECK(wrong && strstr(wrong, "twice"));
    ef_arena_free(a);
}

/* An empty message within `depth` - 1 others: graphs in attributes of nodes, or types. */
static ef_buf
nested(ef_arena *a, int depth, bool types)
{
    static const int graph_fields[] = {1, 5, 6}; /* node, attribute, g */
    ef_buf inner = {.arena = a};
    ef_puts(&inner, "");
    for (int i = depth; i > 0; i--) {
        ef_buf outer = {.arena = a};
        /* 1 graph, 2 input, 3 its type, then 4 sequence_type and 1 elem_type in turn */
        int number = i == 1   ? 7
                     : !types ? graph_fields[(i - 2) % 3]
                     : i == 2 ? 11
                     : i == 3 ? 2
                              : (i % 2 ? 1 : 4);
        field(&outer, number, inner.n ? inner.s : "", inner.n);
        inner = outer;
    }
    return inner;
}

TEST(nesting_has_a_limit)
{
    ef_arena *a = ef_arena_new();
    fe_scan s;
    for (int types = 0; types < 2; types++) {
        ef_buf most = nested(a, FE_DEPTH_MAX, types),
               more = nested(a, FE_DEPTH_MAX + 1, types);
        CHECK(!scan(a, &most, &s));
        const char *wrong = scan(a, &more, &s);
        CHECK(wrong && strstr(wrong, "too deeply"));
    }
    ef_arena_free(a);
}

TEST(broken_wire_is_refused)
{
    static const struct {
        const char *bytes;
        size_t n;
    } rows[] = {
        {"\x08", 1}, /* a tag without a value */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
         12},                                                 /* 11 bytes of varint */
        {"\x3a\x05\x0a", 3},                                  /* longer than the file */
        {"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11}, /* 2^64 - 1 bytes */
        {"\x0b\x0c", 2},                                      /* a group */
        {"\x0f", 1},                                          /* wire type 7 */
        {"\x00\x01", 2},                                      /* field 0 */
        {"\x09\x01\x02", 3},     /* 64 bits of which 16 are there */
        {"\x3a\x02\x0a\x01", 4}, /* inner longer than outer */
    };
    ef_arena *a = ef_arena_new();
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        fe_scan s;
        CHECK(fe_scan_wire(a, (const uint8_t *)rows[i].bytes, rows[i].n, &s) != NULL);
    }
    ef_arena_free(a);
}

/* Every beginning of a model, and the model with every byte changed in turn: no crash, and
 * what the scan lets through protobuf-c takes or refuses. */
TEST(damage_does_no_harm)
{
    ef_arena *a = ef_arena_new(), *scratch = ef_arena_new();
    size_t n;
    int refused = 0;
    char *good = ef_read_file(a, SRC_DIR "/tests/cases/bad/op_if.onnx", 1 << 20, &n);
    NEED(good != NULL);
    for (size_t k = 0; k < 2 * n; k++) {
        uint8_t *bytes = ef_dup(scratch, good, n);
        fe_scan s;
        if (k >= n)
            bytes[k - n] ^= (uint8_t)(1 << (k % 8));
        if (fe_scan_wire(scratch, bytes, k < n ? k : n, &s)) {
            refused++;
        } else {
            Onnx__ModelProto *m = unpacked(&s);
            if (m)
                onnx__model_proto__free_unpacked(m, NULL);
        }
        ef_arena_reset(scratch);
    }
    CHECK(refused > (int)n / 2);
    ef_arena_free(scratch);
    ef_arena_free(a);
}
