/* NumPy, nanoGPT, llm.c and Megatron: rows and targets as JSONL of the same ids has them, and
 * broken files, each with the numbers that say why.
 */
#include "test.h"

#include "host_toy.h"

static rt_data d;
static rt_data_spec spec;

static void
wants(rt_label label, rt_use use)
{
    static rt_program p;
    p = toy_program();
    if (label == RT_LABEL_TOKEN) {
        p.task = "causal-lm";
        p.labels = 0;
    }
    spec = rt_data_spec_of(&p, use);
    spec.label = label;
    spec.labels = 2;
}

static int
open_path(const char *path)
{
    rt_data_close(&d);
    toy_listen();
    int code = rt_data_open(&d, &(rt_words){1, &path}, &spec);
    toy_heard();
    return code;
}

static const char *
put(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(toy_path(name), "w");
    fwrite(bytes, 1, n, f);
    fclose(f);
    return toy_path(name);
}

/* An .npy of the header's version and text. */
static const char *
npy_text(const char *name, int version, const char *text, const void *bytes, size_t n)
{
    FILE *f = fopen(toy_path(name), "w");
    uint32_t length = (uint32_t)strlen(text);
    fprintf(f, "\x93NUMPY%c%c", version, 0);
    fwrite(&length, version == 1 ? 2 : 4, 1, f);
    fputs(text, f);
    fwrite(bytes, 1, n, f);
    fclose(f);
    return toy_path(name);
}

static const char *
npy(const char *name, const char *type, const char *shape, const void *bytes, size_t n)
{
    char text[256];
    snprintf(text, sizeof text,
             "{'descr': '%s', 'fortran_order': False, 'shape': %s, }   \n", type,
             shape);
    return npy_text(name, 1, text, bytes, n);
}

/* All rows as text: ids, and in brackets what else they have. */
static const char *
text_of_rows(void)
{
    static char text[1024];
    size_t n = 0;
    rt_row r = {0};
    for (int64_t i = 0; i < d.n; i++) {
        CHECK(rt_data_row(&d, i, &r) == RT_OK);
        for (int64_t t = 0; t < r.n; t++)
            n += (size_t)sprintf(text + n, t ? " %d" : "%d", r.field[RT_F_IDS][t]);
        for (int64_t t = 0; r.field[RT_F_MASK] && t < r.n; t++)
            n += (size_t)sprintf(text + n, t ? " %d" : " m %d", r.field[RT_F_MASK][t]);
        for (int64_t t = 0; r.field[RT_F_LABELS] && t < r.nlabel; t++)
            n +=
                (size_t)sprintf(text + n, t ? " %d" : " l %d", r.field[RT_F_LABELS][t]);
        for (int64_t t = 0; r.value && t < r.nlabel; t++)
            n += (size_t)sprintf(text + n, t ? " %g" : " v %g", (double)r.value[t]);
        n += (size_t)sprintf(text + n, ";");
    }
    rt_row_free(&r);
    return text;
}

/* Opens it, and compares all rows. */
static void
gives(const char *path, const char *rows)
{
    CHECK(open_path(path) == RT_OK);
    if (d.store)
        CHECK_STR(text_of_rows(), rows);
    if (strcmp(text_of_rows(), rows))
        printf("  %s: %s\n  %s\n", path, text_of_rows(), toy_said);
}

static void
refuses(const char *path, const char *mention)
{
    CHECK(open_path(path) == RT_USER);
    TOY_HEARD(mention);
    if (!strstr(toy_said, mention))
        printf("  no '%s' in: %s", mention, toy_said);
}

/* ---- NumPy ---- */

TEST(npy_of_every_integer_type)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    const char *rows = "1 2 3 4;5 6 7 0;1 2;";
    gives(npy("a.npy", "|u1", "(10,)", (uint8_t[]){1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, 10),
          rows);
    gives(npy("a.npy", "|i1", "(10,)", (int8_t[]){1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, 10),
          rows);
    gives(npy("a.npy", "<u2", "(10,)", (uint16_t[]){1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, 20),
          rows);
    gives(npy("a.npy", "<i2", "(10,)", (int16_t[]){1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, 20),
          rows);
    gives(npy("a.npy", "<u4", "(10,)", (uint32_t[]){1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, 40),
          rows);
    gives(npy("a.npy", "<i4", "(10,)", (int32_t[]){1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, 40),
          rows);
    gives(npy("a.npy", "<u8", "(10,)", (uint64_t[]){1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, 80),
          rows);
    gives(npy("a.npy", "<i8", "(10,)", (int64_t[]){1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, 80),
          rows);
    TOY_HEARD("NumPy, int64 [10] alone: 3 rows, 10 tokens, 7 supervised");
    gives(npy("a.npy", "<i8", "(2, 3)", (int64_t[]){1, 2, 3, 4, 5, 6}, 48),
          "1 2 3;4 5 6;");
    CHECK(d.supervised == 4);
    /* any header that says the same */
    const char *text = "{\"shape\":(1L,2),'descr':'<i2','fortran_order':False}";
    for (int version = 1; version <= 3; version++)
        gives(npy_text("a.npy", version, text, (int16_t[]){1, 2}, 4), "1 2;");
}

TEST(npy_with_files_beside)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    npy("b.labels.npy", "<i4", "(2, 2)", (int32_t[]){1, -100, 3, 7}, 16);
    npy("b.attention_mask.npy", "|b1", "(2, 2)", "\1\0\1\1", 4);
    gives(npy("b.npy", "<i4", "(2, 2)", (int32_t[]){1, 2, 3, 4}, 16),
          "1 2 m 1 0 l 1 -100;3 4 m 1 1 l 3 7;");
    TOY_HEARD("int32 [2, 2] with attention_mask, labels: 2 rows");
    CHECK(d.supervised == 1 && d.nreal == 3);
    /* a name that ends in input_ids.npy: the field's name in its place; classes of rows */
    wants(RT_LABEL_ROW, RT_TRAINING);
    npy("input_ids.npy", "<i4", "(2, 2)", (int32_t[]){1, 2, 3, 4}, 16);
    npy("labels.npy", "<u2", "(2,)", (uint16_t[]){2, 0}, 4);
    gives(toy_path("input_ids.npy"), "1 2 l 2;3 4 l 0;");
    npy("x_labels.npy", "<i8", "(2, 1)", (int64_t[]){-100, 1}, 16);
    npy("x_token_type_ids.npy", "<i8", "(2, 2)", (int64_t[]){0, 0, 0, 0}, 32);
    gives(npy("x_input_ids.npy", "<i4", "(2, 2)", (int32_t[]){1, 2, 3, 4}, 16),
          "1 2 l -100;3 4 l 1;");
    TOY_HEARD("token_type_ids: not used");
    CHECK(d.supervised == 1);
}

TEST(npy_of_a_regression)
{
    wants(RT_LABEL_VALUES, RT_TRAINING);
    npy("r.labels.npy", "<f4", "(2, 2)", (float[]){0.5f, NAN, -1, 1e30f}, 16);
    gives(npy("r.npy", "<i4", "(2, 1)", (int32_t[]){1, 2}, 8),
          "1 v 0.5 nan;2 v -1 1e+30;");
    CHECK(d.supervised == 3 && rt_data_value(&d, 1, 0) == -1);
    npy("r.labels.npy", "<f8", "(2,)", (double[]){0.25, 3}, 16);
    refuses(toy_path("r.npy"), "has 1 values a row, but the model has 2 outputs");
    spec.labels = 1;
    gives(toy_path("r.npy"), "1 v 0.25;2 v 3;");
    npy("r.labels.npy", "<i2", "(2,)", (int16_t[]){-3, 400}, 4);
    gives(toy_path("r.npy"), "1 v -3;2 v 400;");
    npy("r.labels.npy", "<f8", "(2,)", (double[]){INFINITY, 3}, 16);
    refuses(toy_path("r.npy"), "row 0 (from 0): a label is infinite");
    npy("r.labels.npy", "<f8", "(2,)", (double[]){NAN, NAN}, 16);
    refuses(toy_path("r.npy"), "no row is supervised");
}

TEST(npy_for_a_prediction)
{
    wants(RT_LABEL_ROW, RT_PREDICTION);
    npy("p.labels.npy", "<i4", "(3,)", (int32_t[]){-1, 2, 3}, 12);
    gives(npy("p.npy", "<i4", "(3, 1)", (int32_t[]){1, 2, 3}, 12),
          "1 l -100;2 l 2;3 l -100;");
    TOY_HEARD("labels: 2 are not labels of this model");
    remove(toy_path("p.labels.npy"));
    gives(toy_path("p.npy"), "1;2;3;");
}

TEST(npy_that_cannot_be_read)
{
    int32_t x[8] = {1, 2, 3, 4, 5, 6, 7, 0};
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    refuses(npy("n.npy", ">i4", "(8,)", x, 32), "big endian");
    refuses(npy("n.npy", "<f4", "(8,)", x, 32), "not float32");
    refuses(npy("n.npy", "<c8", "(4,)", x, 32), "type '<c8' can't be read");
    refuses(npy("n.npy", "|O", "(4,)", x, 32), "type '|O'");
    refuses(npy("n.npy", "<i3", "(4,)", x, 12), "type '<i3'");
    refuses(npy("n.npy", "<i4", "()", x, 4), "has no dimensions");
    refuses(npy("n.npy", "<i4", "(2,2,2)", x, 32), "more than two dimensions");
    refuses(npy("n.npy", "<i4", "(8,)", x, 31), "8 x 1 numbers of 4 bytes");
    refuses(npy("n.npy", "<i4", "(7,)", x, 32), "but the file has");
    refuses(npy("n.npy", "<i4", "(999999999999999999, 16)", x, 32), "x 16 numbers");
    refuses(npy("n.npy", "<i4", "(99999999999999999999,)", x, 32), "shape");
    refuses(npy("n.npy", "<i4", "(0,)", x, 0), "holds no rows");
    refuses(npy("n.npy", "<i4", "(8, 0)", x, 0), "holds no rows");
    refuses(npy("n.npy", "<i4", "(1, 8)", x, 32), "rows have 8 tokens, but at most 4");
    refuses(npy("n.npy", "<i4", "(8", x, 32), "not a NumPy header: shape");
    refuses(npy("n.npy", "<i4", "(-8,)", x, 32), "not a NumPy header: shape");
    refuses(npy_text("n.npy", 1, "{'descr': [('a', '<i4')]}", x, 32), "several fields");
    refuses(npy_text("n.npy", 1, "{'descr': '<i4'}", x, 32), "shape is missing");
    refuses(npy_text("n.npy", 1, "{'descr': '<i4', 'x': 1}", x, 32), "header: x");
    refuses(npy_text("n.npy", 1, "{'descr'", x, 32), "':' is missing");
    refuses(npy_text("n.npy", 1, "", x, 32), "no dictionary");
    refuses(npy_text("n.npy", 4, "{}", x, 32), "version");
    refuses(npy_text("n.npy", 1, "{'descr':'<i4','fortran_order':True,'shape':(2,4)}",
                     x, 32),
            "ascontiguousarray");
    refuses(put("n.npy", "\x93NUMPY\1\0\xff\xff{", 11), "ends at byte 11");
    refuses(put("n.npy", "\x93NUMPY\1", 7), "ends at byte 7");
    refuses(put("n.npy", "text", 4), "is not a NumPy file");
    refuses(put("n.npy", "PK\3\4....", 8), "a zip archive");
}

TEST(npy_values_out_of_range)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    refuses(npy("v.npy", "<i4", "(2, 2)", (int32_t[]){1, 2, 8, -1}, 16),
            "v.npy: token 2 (row 1, place 0, from 0) is 8, but the model knows token "
            "ids 0 to 7");
    TOY_HEARD("token 3 (row 1, place 1, from 0) is -1");
    refuses(npy("v.npy", "<u8", "(1,)", (uint64_t[]){UINT64_MAX}, 8), "token 0");
    refuses(npy("v.npy", "<i8", "(2,)", (int64_t[]){1, (int64_t)1 << 32}, 16),
            "is 4294967296");
    npy("v.attention_mask.npy", "|u1", "(2, 2)", "\1\2\1\1", 4);
    npy("v.npy", "<i4", "(2, 2)", (int32_t[]){1, 2, 3, 4}, 16);
    refuses(toy_path("v.npy"),
            "attention_mask 1 (row 0, place 1, from 0) is 2; a mask");
    npy("v.attention_mask.npy", "|u1", "(2, 2)", "\1\1\0\0", 4);
    refuses(toy_path("v.npy"), "row 1 (from 0): attention_mask hides every token");
    npy("v.attention_mask.npy", "|u1", "(4,)", "\1\1\1\1", 4);
    refuses(toy_path("v.npy"), "is [4], but must be [2, 2], as the ids are");
    npy("v.attention_mask.npy", "<f4", "(2, 2)", (float[4]){1, 1, 1, 1}, 16);
    refuses(toy_path("v.npy"), "whole numbers, not float32");
    remove(toy_path("v.attention_mask.npy"));
    npy("v.labels.npy", "<i4", "(2, 2)", (int32_t[]){1, 2, 9, -100}, 16);
    refuses(toy_path("v.npy"), "is 9, but labels are 0 to 7, or -100");
    npy("v.labels.npy", "<f4", "(2, 2)", (float[4]){1}, 16);
    refuses(toy_path("v.npy"), "labels are floats");
    npy("v.labels.npy", "<i4", "(2,)", (int32_t[]){1, 2}, 8);
    refuses(toy_path("v.npy"), "must be [2, 2]: one label a token");
    wants(RT_LABEL_ROW, RT_TRAINING);
    npy("v.labels.npy", "<i4", "(3,)", (int32_t[]){1, 2, 0}, 12);
    refuses(toy_path("v.npy"), "is [3], but must be [2]: one label a row");
    npy("v.npy", "<i4", "(3,)", (int32_t[]){1, 2, 3}, 12);
    refuses(toy_path("v.npy"), "the ids are one stream");
    remove(toy_path("v.labels.npy"));
    refuses(toy_path("v.npy"), "has no labels, which this model learns from");
}

/* ---- token streams ---- */

static const uint16_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 0, 1};

TEST(nanogpt)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    gives(put("n.bin", tokens, 18), "1 2 3 4;5 6 7 0;1;");
    TOY_HEARD("nanoGPT tokens, uint16: 3 rows, 9 tokens, 6 supervised");
    refuses(put("n.bin", tokens, 17), "has 17 bytes, an odd number");
    refuses(put("n.bin", "", 0), "holds no rows");
    refuses(put("n.bin", (uint16_t[]){1, 2, 3, 4, 5, 8}, 12),
            "token 5 (row 1, place 1, from 0) is 8");
    refuses(put("n.bin", "PK\3\4....", 8), "a zip archive");
    refuses(put("n.bin", "{\"input_ids\": [1]}\n\n", 20), "looks like JSON");
    spec.high[RT_F_IDS] = 0;
    gives(put("n.bin", "{\"\1\0", 4), "8827 1;"); /* a token that begins as JSON does */
    spec.high[RT_F_IDS] = 1 << 16;                /* nothing to check */
    gives(put("n.bin", (uint16_t[]){65535, 0}, 4), "65535 0;");
    wants(RT_LABEL_ROW, RT_TRAINING);
    refuses(toy_path("n.bin"), "has no labels");
}

static const char *
llmc(int32_t magic, int32_t version, int32_t n, const void *bytes, size_t size)
{
    int32_t head[256] = {magic, version, n};
    FILE *f = fopen(toy_path("l.bin"), "w");
    fwrite(head, sizeof head, 1, f);
    fwrite(bytes, 1, size, f);
    fclose(f);
    return toy_path("l.bin");
}

TEST(llmc_of_both_versions)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    gives(llmc(20240520, 1, 9, tokens, 18), "1 2 3 4;5 6 7 0;1;");
    TOY_HEARD("llm.c tokens, uint16: 3 rows");
    gives(llmc(20240801, 7, 5, (uint32_t[]){1, 2, 3, 4, 5}, 20), "1 2 3 4;5;");
    TOY_HEARD("llm.c tokens, uint32");
    refuses(
        llmc(20240520, 1, 9, tokens, 16),
        "says 9 tokens of 2 bytes, 1042 bytes with the header, but the file has 1040");
    refuses(llmc(20240520, 1, 8, tokens, 18), "says 8 tokens");
    refuses(llmc(20240520, 1, -1, tokens, 18), "says -1 tokens");
    refuses(llmc(20240520, 2, 9, tokens, 18),
            "version 2 of magic 20240520 is not known");
    refuses(llmc(20240801, 1, 9, tokens, 18), "version 1 of magic 20240801");
    refuses(llmc(20240522, 1, 9, tokens, 18), "file of an evaluation");
    refuses(llmc(20240801, 7, 1, (uint32_t[]){0x80000001}, 4), "is 2147483649");
    refuses(put("l.bin", (int32_t[]){20240520}, 4), "ends at byte 4");
    refuses(put("l.bin", (int32_t[]){20240520, 1, 0}, 12), "0 tokens");
    refuses(llmc(20240520, 1, 0, tokens, 0), "holds no rows");
}

/* ---- Megatron ---- */

typedef struct index {
    char code;
    uint64_t version, n, documents;
    int32_t length[3];
    int64_t pointer[3], document[4];
} index_file;

static const index_file good = {8, 1, 3, 4, {2, 6, 1}, {0, 4, 16}, {0, 1, 2, 3}};

/* m.idx and m.bin; cut: bytes of the index left out. */
static const char *
megatron(const index_file *x, const void *bytes, size_t size, size_t cut)
{
    char text[200] = "MMIDIDX\0";
    memcpy(text + 9, &x->version, 8);
    text[17] = x->code;
    memcpy(text + 18, &x->n, 8);
    memcpy(text + 26, &x->documents, 8);
    memcpy(text + 34, x->length, 12);
    memcpy(text + 46, x->pointer, 24);
    memcpy(text + 70, x->document, 32);
    put("m.idx", text, 102 - cut);
    return put("m.bin", bytes, size);
}

TEST(megatron_by_either_name)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    megatron(&good, tokens, 18, 0);
    gives(toy_path("m.bin"), "1 2;3 4 5 6;7 0;1;");
    TOY_HEARD("Megatron, uint16, 3 sequences: 4 rows, 9 tokens, 5 supervised");
    gives(toy_path("m.idx"), "1 2;3 4 5 6;7 0;1;");
    index_file x = good; /* in another order; an empty one is no row */
    x.code = 1;
    x.length[0] = 0;
    x.length[1] = 2;
    x.length[2] = 3;
    x.pointer[1] = 3;
    x.pointer[2] = 0;
    megatron(&x, "\1\2\3\4\5", 5, 0);
    gives(toy_path("m.bin"), "4 5;1 2 3;");
    x.code = 5;
    x.pointer[1] = 24;
    megatron(&x, (int64_t[]){1, 2, 3, 4, 5}, 40, 0);
    gives(toy_path("m.idx"), "4 5;1 2 3;");
}

TEST(megatron_that_does_not_fit)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    index_file x = good;
    x.pointer[1] = 8;
    megatron(&x, tokens, 18, 0);
    refuses(toy_path("m.bin"), "sequence 1 is 6 tokens of 2 bytes at byte 8, but");
    x.pointer[1] = 5;
    megatron(&x, tokens, 18, 0);
    refuses(toy_path("m.bin"), "at byte 5");
    x.pointer[1] = -2;
    megatron(&x, tokens, 18, 0);
    refuses(toy_path("m.bin"), "at byte -2");
    x = good;
    x.length[0] = -1;
    megatron(&x, tokens, 18, 0);
    refuses(toy_path("m.bin"), "sequence 0 is -1 tokens");
    x.length[0] = 1;
    megatron(&x, tokens, 18, 0);
    refuses(toy_path("m.bin"), "has 9 tokens, but the sequences of");
    megatron(&good, tokens, 17, 0);
    refuses(toy_path("m.bin"), "not whole tokens of 2 bytes");
    megatron(&good, tokens, 18, 1);
    refuses(toy_path("m.bin"), "do not fit its size of 101 bytes");
    megatron(&good, tokens, 18, 90);
    refuses(toy_path("m.bin"), "ends at byte 12");
    x = good;
    x.n = UINT64_MAX / 2;
    megatron(&x, tokens, 18, 0);
    refuses(toy_path("m.bin"), "do not fit its size");
    x = good;
    x.version = 2;
    megatron(&x, tokens, 18, 0);
    refuses(toy_path("m.bin"), "version 1");
    for (int code = 0; code < 10; code++) {
        x = good;
        x.code = (char)code;
        megatron(&x, tokens, 18, 0);
        if (code == 0 || code == 6 || code == 7 || code == 9)
            refuses(toy_path("m.idx"), "not whole numbers");
    }
    remove(toy_path("m.bin"));
    megatron(&good, (uint16_t[]){1, 2, 3, 9, 5, 6, 7, 0, 1}, 18, 0);
    refuses(toy_path("m.idx"), "token 3 (from 0) is 9");
    remove(toy_path("m.bin"));
    refuses(toy_path("m.idx"), "m.bin: No such file");
    put("m.idx", "something else that is long enough to be one", 44);
    put("m.bin", tokens, 18);
    refuses(toy_path("m.bin"), "not an index of Megatron");
    refuses(toy_path("m.idx"), "not an index of Megatron");
    remove(toy_path("m.idx"));
}

/* ---- all ---- */

TEST(what_other_tools_write_is_named)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    refuses(put("f", "PAR1....", 8), "is Parquet");
    refuses(put("f", "ARROW1..", 8), "is Arrow");
    refuses(put("f", "\x1f\x8b\x08.....", 8), "compressed with gzip");
    refuses(put("f", "\x28\xb5\x2f\xfd....", 8), "compressed with zstd");
    refuses(put("f", "GGUF....", 8), "a GGUF model");
}

TEST(a_file_that_changes_under_a_run_is_an_error)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    put("c.bin", tokens, 18);
    NEED(open_path(toy_path("c.bin")) == 0);
    CHECK(rt_data_length(&d, 0) == 4 && rt_data_supervised(&d, 1) == 3);
    NEED(truncate(toy_path("c.bin"), 16) == 0);
    toy_listen();
    CHECK(rt_data_length(&d, 1) == 4); /* it was read already */
    CHECK(rt_data_length(&d, 0) == -1 && rt_data_supervised(&d, 2) == -1);
    CHECK(rt_data_label(&d, 0, 0) == RT_IGNORE);
    toy_heard();
    TOY_HEARD("c.bin has changed since the trainer started");
    rt_program p = toy_program();
    rt_run run = {.program = &p};
    rt_inputs_new(&run, rt_alloc((size_t)rt_inputs_bytes(&p)));
    toy_listen();
    CHECK(rt_batch_fill(&run, &d, (int64_t[]){0, 1}, 2) == -1);
    toy_heard();
    rt_inputs_free(&run);
    /* one that is replaced is still there as it was */
    put("c.bin", tokens, 18);
    NEED(open_path(toy_path("c.bin")) == 0);
    put("new.bin", tokens + 1, 10);
    NEED(rename(toy_path("new.bin"), toy_path("c.bin")) == 0);
    CHECK_STR(text_of_rows(), "1 2 3 4;5 6 7 0;1;");
}

static const char *
identity(const char *path)
{
    static rt_text t[4];
    static int turn;
    rt_text *one = &t[turn++ % 4];
    one->n = 0;
    CHECK(open_path(path) == 0);
    rt_data_identity(&d, one);
    return one->s;
}

TEST(data_are_known_again)
{
    wants(RT_LABEL_TOKEN, RT_TRAINING);
    const char *a = identity(put("i.bin", tokens, 18));
    CHECK_STR(identity(put("j.bin", tokens, 18)), a);
    CHECK(strcmp(identity(put("j.bin", tokens, 16)), a) != 0);
    CHECK(strcmp(identity(put("j.bin", (uint16_t[]){1, 2, 3, 4, 5, 6, 7, 0, 2}, 18)),
                 a) != 0);
    const char *lines = "{\"input_ids\": [1,2]}\n{\"input_ids\": [3,4]}\n";
    const char *b = identity(toy_write("i.jsonl", lines));
    CHECK_STR(identity(toy_write("k.jsonl", "{\"input_ids\":[ 1,2.0]}\r\n"
                                            "{\"input_ids\": [3,4], \"text\": \"\"}")),
              b);
    CHECK(strcmp(identity(toy_write("k.jsonl", "{\"input_ids\": [1,2]}\n"
                                               "{\"input_ids\": [3,5]}\n")),
                 b) != 0);
    CHECK(strcmp(identity(toy_write("k.jsonl", "{\"input_ids\": [3,4]}\n"
                                               "{\"input_ids\": [1,2]}\n")),
                 b) != 0);
    rt_data_close(&d);
}

TEST(nothing_need_be_known_of_the_task)
{
    spec = (rt_data_spec){.label = RT_LABEL_ANY};
    for (int f = 0; f < RT_NFIELDS; f++)
        spec.takes[f] = true;
    gives(toy_write("u.jsonl",
                    "{\"input_ids\": [1,2147483647], \"labels\": [1, -100]}\n"
                    "{\"input_ids\": [1,2], \"labels\": 3}\n"
                    "{\"input_ids\": [1,2], \"labels\": 0.5}\n"
                    "{\"input_ids\": [1,2], \"labels\": [1,2,null]}\n"
                    "{\"input_ids\": [7]}\n"),
          "1 2147483647 l 1 -100;1 2 l 3;1 2 v 0.5;1 2 v 1 2 nan;7;");
    CHECK(d.supervised == 5 && d.absent[RT_F_LABELS] == 1);
    gives(put("u.bin", tokens, 18), "1 2 3 4 5 6 7 0 1;");
    npy("u.labels.npy", "<f4", "(2,)", (float[]){1, 2}, 8);
    gives(npy("u.npy", "<i4", "(2, 1)", (int32_t[]){5, 6}, 8), "5 v 1;6 v 2;");
    npy("u.labels.npy", "<i4", "(2,)", (int32_t[]){1, 2}, 8);
    gives(toy_path("u.npy"), "5 l 1;6 l 2;");
    rt_data_close(&d);
}
