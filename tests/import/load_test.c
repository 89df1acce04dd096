/* load_test.c -- what a TensorProto may hold, and where external data may lie. */
#include "frontend/onnx_int.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a model with one initializer, "w", made with protobuf-c ---- */

typedef struct fixture {
    ef_ctx *ctx;
    char *said;
    size_t nsaid;
    char dir[40];
    Onnx__ModelProto model;
    Onnx__GraphProto graph;
    Onnx__OperatorSetIdProto opset, *opsets[1];
    Onnx__ValueInfoProto ids, out, *ins[1], *outs[1];
    Onnx__TypeProto type;
    Onnx__TypeProto__Tensor tensor;
    Onnx__NodeProto node, *nodes[1];
    char *node_in[2], *node_out[1];
    Onnx__TensorProto w, *inits[1];
    int64_t dims[9];
    Onnx__StringStringEntryProto entry[4], *entries[4];
} fixture;

/* Gather(w, ids) -> y, with w float [2,3] and no data. */
static void
open_fixture(fixture *f)
{
    *f = (fixture){.dir = "/tmp/efficc-load-XXXXXX"};
    NEED(mkdtemp(f->dir) && !chdir(f->dir));
    f->ctx = ef_ctx_new();
    f->ctx->diag = open_memstream(&f->said, &f->nsaid);
    onnx__model_proto__init(&f->model);
    onnx__graph_proto__init(&f->graph);
    onnx__operator_set_id_proto__init(&f->opset);
    onnx__value_info_proto__init(&f->ids);
    onnx__value_info_proto__init(&f->out);
    onnx__type_proto__init(&f->type);
    onnx__type_proto__tensor__init(&f->tensor);
    onnx__node_proto__init(&f->node);
    onnx__tensor_proto__init(&f->w);
    f->model.has_ir_version = f->opset.has_version = true;
    f->model.ir_version = 8;
    f->opset.version = 17;
    f->model.n_opset_import = 1;
    *(f->model.opset_import = f->opsets) = &f->opset;
    f->model.graph = &f->graph;
    f->tensor.has_elem_type = true;
    f->tensor.elem_type = ONNX__TENSOR_PROTO__DATA_TYPE__INT64;
    f->type.value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    f->type.tensor_type = &f->tensor;
    f->ids.name = f->node_in[1] = "ids";
    f->ids.type = &f->type;
    f->out.name = f->node_out[0] = "y";
    f->w.name = f->node_in[0] = "w";
    f->node.op_type = "Gather";
    f->node.n_input = 2;
    f->node.input = f->node_in;
    f->node.n_output = 1;
    f->node.output = f->node_out;
    f->graph.n_node = f->graph.n_input = f->graph.n_output = f->graph.n_initializer = 1;
    *(f->graph.node = f->nodes) = &f->node;
    *(f->graph.input = f->ins) = &f->ids;
    *(f->graph.output = f->outs) = &f->out;
    *(f->graph.initializer = f->inits) = &f->w;
    f->w.has_data_type = true;
    f->w.data_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT;
    f->w.n_dims = 2;
    f->w.dims = f->dims;
    f->dims[0] = 2;
    f->dims[1] = 3;
}

static void
close_fixture(fixture *f)
{
    fclose(f->ctx->diag);
    ef_ctx_free(f->ctx);
    free(f->said);
    NEED(!chdir("/"));
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", f->dir);
    NEED(!system(command));
}

static fe_model *
load(fixture *f)
{
    size_t n = onnx__model_proto__get_packed_size(&f->model);
    uint8_t *bytes = ef_alloc(f->ctx->arena, n);
    onnx__model_proto__pack(&f->model, bytes);
    FILE *file = fopen("m.onnx", "wb");
    NEED(file && fwrite(bytes, 1, n, file) == n && !fclose(file));
    rewind(f->ctx->diag);
    return fe_load(f->ctx, "m.onnx");
}

static bool
refused(fixture *f, const char *words)
{
    fe_model *m = load(f);
    fflush(f->ctx->diag);
    f->said[f->nsaid] = 0; /* what stood there before is longer, maybe */
    bool ok = !m && strstr(f->said, words);
    if (!ok)
        printf("expected '%s', got %s\n", words, m ? "success" : f->said);
    fe_unload(m);
    return ok;
}

static void
raw(fixture *f, int type, const void *data, size_t n)
{
    f->w.data_type = type;
    f->w.has_raw_data = true;
    f->w.raw_data = (ProtobufCBinaryData){n, (uint8_t *)data};
}

/* Loads; all six elements must be want[]. */
static void
check_values(fixture *f, const double *want, bool direct)
{
    fe_model *m = load(f);
    NEED(m != NULL);
    const fe_tensor *t = ef_map_get(&m->inits, ef_intern(f->ctx, "w"));
    double got[6];
    int64_t whole[6];
    NEED(t && t->count == 6 && t->direct == direct);
    NEED(fe_tensor_f64(m, t, 0, 6, got) && fe_tensor_i64(m, t, 0, 6, whole));
    for (int i = 0; i < 6; i++)
        CHECK(got[i] == want[i] && whole[i] == (int64_t)want[i]);
    NEED(fe_tensor_f64(m, t, 4, 2, got));
    CHECK(got[1] == want[5]);
    fe_unload(m);
}

/* ---- elements ---- */

TEST(raw_data_of_every_type)
{
    static const float f32[] = {1, -2, 3.5F, 0, 5, -6};
    static const double f64[] = {1, -2, 3.5, 0, 5, -6}, ints[] = {1, -2, 3, 0, 5, -6},
                        counts[] = {1, 2, 3, 0, 5, 255}, bools[] = {1, 1, 1, 0, 1, 1};
    static const uint16_t f16[] = {0x3c00, 0xc000, 0x4300, 0, 0x4500, 0xc600};
    static const uint16_t bf16[] = {0x3f80, 0xc000, 0x4060, 0, 0x40a0, 0xc0c0};
    static const int8_t i8[] = {1, -2, 3, 0, 5, -6};
    static const uint8_t u8[] = {1, 2, 3, 0, 5, 255};
    static const int16_t i16[] = {1, -2, 3, 0, 5, -6};
    static const int32_t i32[] = {1, -2, 3, 0, 5, -6};
    static const int64_t i64[] = {1, -2, 3, 0, 5, -6};
    const struct {
        int type;
        const void *data;
        size_t n;
        const double *want;
        bool direct;
    } rows[] = {
        {ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT, f32, sizeof(f32), f64, true},
        {ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE, f64, sizeof(f64), f64, false},
        {ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16, f16, sizeof(f16), f64, true},
        {ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16, bf16, sizeof(bf16), f64, true},
        {ONNX__TENSOR_PROTO__DATA_TYPE__INT8, i8, sizeof(i8), ints, true},
        {ONNX__TENSOR_PROTO__DATA_TYPE__UINT8, u8, sizeof(u8), counts, true},
        {ONNX__TENSOR_PROTO__DATA_TYPE__BOOL, u8, sizeof(u8), bools, true},
        {ONNX__TENSOR_PROTO__DATA_TYPE__INT16, i16, sizeof(i16), ints, false},
        {ONNX__TENSOR_PROTO__DATA_TYPE__INT32, i32, sizeof(i32), ints, true},
        {ONNX__TENSOR_PROTO__DATA_TYPE__INT64, i64, sizeof(i64), ints, true},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        fixture f;
        open_fixture(&f);
        raw(&f, rows[i].type, rows[i].data, rows[i].n);
        check_values(&f, rows[i].want, rows[i].direct);
        close_fixture(&f);
    }
}

TEST(typed_fields)
{
    static const double want[] = {1, -2, 3, 0, 5, -6}, half[] = {1, -2, 3.5, 0, 5, -6};
    fixture f;
    open_fixture(&f);
    float f32[] = {1, -2, 3.5F, 0, 5, -6};
    f.w.n_float_data = 6;
    f.w.float_data = f32;
    check_values(&f, half, true);
    f.w.n_float_data = 0;
    int32_t bits[] = {0x3c00, 0xc000, 0x4300, 0, 0x4500, 0xc600},
            i8[] = {1, -2, 3, 0, 5, -6};
    f.w.n_int32_data = 6;
    f.w.int32_data = bits;
    f.w.data_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16;
    check_values(&f, half, false);
    f.w.int32_data = i8;
    f.w.data_type = ONNX__TENSOR_PROTO__DATA_TYPE__INT8;
    check_values(&f, want, false);
    f.w.n_int32_data = 0;
    int64_t i64[] = {1, -2, 3, 0, 5, -6};
    f.w.n_int64_data = 6;
    f.w.int64_data = i64;
    f.w.data_type = ONNX__TENSOR_PROTO__DATA_TYPE__INT64;
    check_values(&f, want, false);
    f.w.data_type = ONNX__TENSOR_PROTO__DATA_TYPE__INT32;
    CHECK(refused(&f, "not of its type, int32"));
    close_fixture(&f);
}

TEST(sizes)
{
    fixture f;
    float data[100] = {0};
    open_fixture(&f);
    raw(&f, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT, data, 24);
    f.dims[0] = 3;
    CHECK(refused(&f, "24 bytes of data for 36"));
    f.w.raw_data.len = 37;
    CHECK(refused(&f, "37 bytes of data for 36"));
    f.w.raw_data.len = 0;
    CHECK(refused(&f, "no data"));
    f.w.n_dims = 9;
    CHECK(refused(&f, "9 dimensions"));
    f.w.n_dims = 2;
    f.dims[0] = f.dims[1] = (int64_t)1 << 32;
    CHECK(refused(&f, "overflows"));
    f.dims[0] = INT64_MAX;
    f.dims[1] = 1;
    CHECK(refused(&f, "overflows"));
    f.dims[1] = 0;
    CHECK(refused(&f, "zero-size"));
    f.w.n_dims = 0;
    f.w.raw_data.len = 4;
    fe_model *m = load(&f);
    NEED(m != NULL);
    CHECK(m->tensors.at[0]->count == 1 && m->tensors.at[0]->rank == 0);
    fe_unload(m);
    f.w.has_raw_data = false;
    CHECK(refused(&f, "no data"));
    close_fixture(&f);
}

/* ---- external data ---- */

static void
external(fixture *f, const char *location, const char *offset, const char *length)
{
    const char *key[] = {"location", "offset", "length"};
    const char *value[] = {location, offset, length};
    f->w.has_data_location = true;
    f->w.data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    f->w.external_data = f->entries;
    f->w.n_external_data = 0;
    for (int i = 0; i < 3; i++) {
        Onnx__StringStringEntryProto *e = f->entries[f->w.n_external_data] =
            &f->entry[i];
        onnx__string_string_entry_proto__init(e);
        e->key = (char *)key[i];
        e->value = (char *)value[i];
        f->w.n_external_data += value[i] != NULL;
    }
}

TEST(external_data_are_read_where_they_are)
{
    static const float data[] = {9, 9, 1, -2, 3.5F, 0, 5, -6};
    static const double want[] = {1, -2, 3.5, 0, 5, -6};
    static const char *const names[] = {"w.bin", "sub/deep/w.bin",
                                        "./sub//deep/./w.bin"};
    fixture f;
    open_fixture(&f);
    NEED(!mkdir("sub", 0700) && !mkdir("sub/deep", 0700));
    for (size_t i = 0; i < EF_COUNT(names); i++) {
        FILE *file = fopen(names[i], "wb");
        NEED(file && fwrite(data, 1, sizeof(data), file) == sizeof(data) &&
             !fclose(file));
        external(&f, names[i], "8", "24");
        check_values(&f, want, true);
        external(&f, names[i], "8", NULL);
        check_values(&f, want, true);
    }
    close_fixture(&f);
}

TEST(external_data_stay_in_the_folder)
{
    static const struct {
        const char *location, *offset, *length, *words;
    } rows[] = {
        {"", NULL, NULL, "the location is empty"},
        {NULL, "0", NULL, "no location"},
        {"../w.bin", NULL, NULL, "outside"},
        {"sub/../../w.bin", NULL, NULL, "outside"},
        {"sub/..", NULL, NULL, "outside"},
        {"..", NULL, NULL, "outside"},
        {"/etc/passwd", NULL, NULL, "absolute"},
        {"//etc/passwd", NULL, NULL, "absolute"},
        {"link", NULL, NULL, "symbolic link"},
        {"here/w.bin", NULL, NULL, "symbolic link"},
        {"dangling", NULL, NULL, "symbolic link"},
        {"pipe", NULL, NULL, "not a regular file"},
        {"sub", NULL, NULL, "not a regular file"},
        {".", NULL, NULL, "not a regular file"},
        {"w.bin/x", NULL, NULL, "Not a directory"},
        {"none", NULL, NULL, "not found"},
        {"w.bin", "-8", NULL, "decimal"},
        {"w.bin", "0x8", NULL, "decimal"},
        {"w.bin", "", NULL, "decimal"},
        {"w.bin", "99999999999999999999", NULL, "decimal"},
        {"w.bin", "9", NULL, "ends too early"},
        {"w.bin", "33", NULL, "beyond the end"},
        {"w.bin", "9223372036854775000", "24", "beyond the end"},
        {"w.bin", "0", "25", "length 25"},
    };
    fixture f;
    open_fixture(&f);
    FILE *file = fopen("w.bin", "wb");
    NEED(file && fwrite("0123456789abcdef0123456789abcdef", 1, 32, file) == 32 &&
         !fclose(file));
    NEED(!mkdir("sub", 0700) && !symlink("/etc/passwd", "link") &&
         !symlink(".", "here") && !symlink("nowhere", "dangling") &&
         !mkfifo("pipe", 0600));
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        external(&f, rows[i].location, rows[i].offset, rows[i].length);
        CHECK(refused(&f, rows[i].words));
    }
    external(&f, "w.bin", "0", "24");
    raw(&f, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT, "0123456789abcdef01234567", 24);
    CHECK(refused(&f, "both in the file and external"));
    f.w.data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__DEFAULT;
    CHECK(refused(&f, "does not say that they are used"));
    close_fixture(&f);
}

/* As the cache of Hugging Face has it: snapshots/x/model.onnx.data -> ../../blobs/hash. */
TEST(links_are_followed_if_wanted)
{
    fixture f;
    ef_config cfg = ef_config_default;
    open_fixture(&f);
    f.ctx->cfg = &cfg;
    NEED(!mkdir("snapshots", 0700) && !mkdir("blobs", 0700) && !mkfifo("pipe", 0600));
    FILE *file = fopen("blobs/hash", "wb");
    NEED(file && fwrite("0123456789abcdef01234567", 1, 24, file) == 24 &&
         !fclose(file));
    NEED(!symlink("blobs/hash", "w.bin") && !symlink("blobs", "folder") &&
         !symlink("pipe", "device") && !symlink("nowhere", "dangling"));
    external(&f, "w.bin", "0", "24");
    CHECK(refused(&f, "--follow-links"));
    cfg.follow_links = true;
    fe_model *m = load(&f);
    CHECK(m != NULL);
    fe_unload(m);
    external(&f, "folder/hash", "0", "24");
    CHECK(refused(&f, "symbolic link"));
    external(&f, "device", "0", "24");
    CHECK(refused(&f, "not a regular file"));
    external(&f, "dangling", "0", "24");
    CHECK(refused(&f, "not found"));
    external(&f, "../w.bin", "0", "24");
    CHECK(refused(&f, "outside"));
    close_fixture(&f);
}

/* ---- order of nodes ---- */

TEST(nodes_are_sorted)
{
    fixture f;
    float data[6] = {0};
    open_fixture(&f);
    raw(&f, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT, data, sizeof(data));
    Onnx__NodeProto last = ONNX__NODE_PROTO__INIT, *nodes[] = {&last, &f.node};
    char *in[] = {"y"}, *out[] = {"z"};
    last.op_type = "Relu";
    last.n_input = last.n_output = 1;
    last.input = in;
    last.output = out;
    f.graph.n_node = 2;
    f.graph.node = nodes;
    f.out.name = "z";
    fe_model *m = load(&f);
    NEED(m != NULL);
    CHECK_STR(m->proto->graph->node[0]->op_type, "Gather");
    fe_unload(m);
    out[0] = "y";
    CHECK(refused(&f, "tensor y is written twice"));
    out[0] = "ids";
    CHECK(refused(&f, "tensor ids is written twice"));
    in[0] = out[0] = "z";
    CHECK(refused(&f, "cycle (z -> z)"));
    close_fixture(&f);
}
