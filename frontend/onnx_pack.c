/* onnx_pack.c -- the bytes of a model whose weights are not in memory.
 *
 * A tensor that gets other contents, or whose bytes the pre-scan cut out, has as its raw_data
 * the address of a `piece`: protobuf-c never looks at bytes, it hands them to a buffer, and
 * our buffer knows these addresses. It asks the sink for the contents of a hole, and streams
 * those of another tensor from their file.
 *
 * Protobuf ends at 2 GB. Beyond it, pieces are put into a file beside the model instead, each
 * at a multiple of a page, and the model says where.
 */
#include "pack_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COPY_BYTES = 1 << 20, PAGE = 4096, BESIDE_BYTES = 1024 };

static const char *
dtype_name(int onnx)
{
    return onnx == ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE
               ? "f64"
               : ir_dtypes[fe_dtype(onnx)].name;
}

fe_piece *
fe_pack_piece(fe_writer *w, Onnx__TensorProto *t, uint64_t bytes)
{
    EF_ASSERT(w->npiece < w->cap);
    fe_piece *p = &w->pieces[w->npiece++];
    *p = (fe_piece){.hole = {.bytes = bytes, .dtype = dtype_name(t->data_type)},
                    .proto = t};
    t->n_float_data = t->n_double_data = t->n_int32_data = 0;
    t->n_external_data = 0;
    t->has_data_location = false;
    t->has_raw_data = true;
    t->raw_data = (ProtobufCBinaryData){(size_t)bytes, (uint8_t *)p};
    return p;
}

/* ---- bytes ---- */

static void
fail(fe_writer *w, const char *path, const char *why)
{
    if (w->ok)
        ef_error(w->m->ctx, NULL, E_FILE, path, why);
    w->ok = false;
}

static void
put(fe_writer *w, bool beside, const void *data, size_t n)
{
    if (n && w->ok)
        w->ok = w->sink->put(w->sink, beside, data, n);
}

/* The bytes of a tensor from where they are. */
static void
put_source(fe_writer *w, bool beside, const fe_tensor *t)
{
    if (t->data) {
        put(w, beside, t->data, (size_t)t->bytes);
        return;
    }
    int fd = open(t->path, O_RDONLY | O_CLOEXEC);
    for (uint64_t done = 0; w->ok && done < t->bytes;) {
        uint64_t n = t->bytes - done < COPY_BYTES ? t->bytes - done : COPY_BYTES;
        ssize_t got =
            fd < 0 ? -1 : pread(fd, w->copy, (size_t)n, (off_t)(t->at + done));
        if (got <= 0)
            fail(w, t->path, got ? strerror(errno) : "the file became shorter");
        else
            put(w, beside, w->copy, (size_t)got);
        done += got > 0 ? (uint64_t)got : 0;
    }
    if (fd >= 0)
        close(fd);
}

static void
put_piece(fe_writer *w, const fe_piece *p)
{
    if (!p->hole.param)
        put_source(w, p->beside, p->source);
    else if (w->ok)
        w->ok = w->sink->fill(w->sink, p->beside, &p->hole);
}

static void
append(ProtobufCBuffer *buffer, size_t n, const uint8_t *data)
{
    fe_writer *w = (fe_writer *)buffer;
    uintptr_t first = (uintptr_t)w->pieces, here = (uintptr_t)data;
    if (here < first || here >= first + sizeof(fe_piece) * (size_t)w->npiece) {
        put(w, false, data, n);
    } else {
        fe_piece *p = &w->pieces[(here - first) / sizeof(fe_piece)];
        EF_ASSERT(p->hole.bytes == n);
        p->at = w->at;
        put_piece(w, p);
    }
    w->at += n;
}

/* ---- the file beside it ---- */

static Onnx__StringStringEntryProto *
entry(ef_arena *a, const char *key, const char *value)
{
    Onnx__StringStringEntryProto *e = EF_NEW(a, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(e);
    e->key = ef_strdup(a, key);
    e->value = ef_strdup(a, value);
    return e;
}

/* Makes t refer to bytes [at, at + bytes) of the file. */
static void
refer(ef_arena *a, Onnx__TensorProto *t, const char *name, uint64_t at, uint64_t bytes)
{
    t->has_raw_data = false;
    t->raw_data = (ProtobufCBinaryData){0};
    t->has_data_location = true;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    t->n_external_data = 3;
    t->external_data = EF_NEWN(a, Onnx__StringStringEntryProto *, 3);
    t->external_data[0] = entry(a, "location", name);
    t->external_data[1] =
        entry(a, "offset", ef_printf(a, "%llu", (unsigned long long)at));
    t->external_data[2] =
        entry(a, "length", ef_printf(a, "%llu", (unsigned long long)bytes));
}

void
fe_writer_beside(fe_writer *w, const char *name)
{
    uint64_t at = 0;
    for (int i = 0; i < w->npiece; i++) {
        fe_piece *p = &w->pieces[i];
        if (p->hole.bytes < BESIDE_BYTES)
            continue;
        at = (at + PAGE - 1) / PAGE * PAGE;
        p->beside = true;
        p->at = at;
        refer(w->m->arena, p->proto, name, at, p->hole.bytes);
        at += p->hole.bytes;
    }
}

static void
put_beside(fe_writer *w)
{
    static const uint8_t zero[PAGE];
    uint64_t at = 0;
    for (int i = 0; i < w->npiece && w->ok; i++) {
        const fe_piece *p = &w->pieces[i];
        if (!p->beside)
            continue;
        put(w, true, zero, (size_t)(p->at - at));
        put_piece(w, p);
        at = p->at + p->hole.bytes;
    }
}

/* ---- the whole ---- */

void
fe_pack_init(fe_writer *w, fe_model *m, int most_pieces)
{
    *w = (fe_writer){.base = {append}, .m = m, .cap = most_pieces, .ok = true};
    w->pieces = EF_NEWN(m->arena, fe_piece, most_pieces);
    w->copy = ef_alloc(m->arena, COPY_BYTES);
}

uint64_t
fe_writer_bytes(const fe_writer *w)
{
    return onnx__model_proto__get_packed_size(w->m->proto);
}

bool
fe_writer_run(fe_writer *w, fe_sink *sink)
{
    w->sink = sink;
    put_beside(w);
    if (w->ok)
        onnx__model_proto__pack_to_buffer(w->m->proto, &w->base);
    return w->ok;
}
