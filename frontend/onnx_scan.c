/* onnx_scan.c -- a look at the bytes of an ONNX file before protobuf-c sees them.
 *
 * protobuf-c 1.4 recurses without a limit and copies every byte field, so a small file can
 * overflow the stack and a big one is held twice. This walk over the wire format, driven by
 * the descriptors that protoc-c makes from onnx.proto, bounds the nesting, checks that
 * every length fits into what encloses it, and writes a copy of the model in which tensor
 * payloads above FE_KEEP_BYTES are missing. Payloads are stepped over: their pages of the
 * mapped file are never touched.
 *
 * Every tensor in the copy gets a number (field scan_index), which leads from the unpacked
 * structure back to the place of its payload, whatever the order of fields in the file.
 * Lengths of messages are written as varints of five bytes, since they are known only
 * after the contents have been copied.
 */
#include "onnx_int.h"

#include <string.h>

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { F_FLOAT_DATA = 4, F_RAW_DATA = 9, F_DOUBLE_DATA = 10, F_SCAN_INDEX = 15000 };
enum { LENGTH_BYTES = 5 };

typedef struct scanner {
    ef_arena *arena;
    const uint8_t *in;
    fe_scan *scan;
    ef_buf out;
    const char *wrong; /* the first fault */
} scanner;

typedef struct field {
    size_t start;   /* of its tag */
    size_t at, end; /* of its value; WIRE_BYTES: of the contents */
    uint32_t number;
    int wire;
} field;

static bool
fault(scanner *s, const char *what, size_t at)
{
    if (!s->wrong)
        s->wrong =
            ef_printf(s->arena, "not a valid ONNX file: %s at byte %zu", what, at);
    return false;
}

static bool
varint(scanner *s, size_t *at, size_t end, uint64_t *v)
{
    *v = 0;
    for (int i = 0; i < 10; i++) {
        if (*at == end)
            return fault(s, "the data end within a number", *at);
        uint8_t b = s->in[(*at)++];
        *v |= (uint64_t)(b & 127) << (7 * i);
        if (!(b & 128))
            return true;
    }
    return fault(s, "a number of more than ten bytes", *at);
}

/* Reads the field that starts at `at`; the next one starts at f->end. */
static bool
next_field(scanner *s, size_t at, size_t end, field *f)
{
    uint64_t tag, n = 0;
    f->start = at;
    if (!varint(s, &at, end, &tag))
        return false;
    f->number = (uint32_t)(tag >> 3);
    f->wire = (int)(tag & 7);
    if (tag >> 3 == 0 || tag >> 3 > 536870911)
        return fault(s, "an impossible field number", f->start);
    f->at = at;
    if (f->wire == WIRE_VARINT)
        return varint(s, &at, end, &n) && (f->end = at, true);
    if (f->wire == WIRE_64)
        n = 8;
    else if (f->wire == WIRE_32)
        n = 4;
    else if (f->wire != WIRE_BYTES)
        return fault(s, "an impossible field type", f->start);
    else if (!varint(s, &at, end, &n))
        return false;
    if (n > end - at) {
        if (!s->wrong)
            s->wrong =
                ef_printf(s->arena,
                          "truncated or not a valid ONNX file: the field at byte "
                          "%zu has %llu bytes, but only %zu are "
                          "left",
                          f->start, (unsigned long long)n, end - at);
        return false;
    }
    f->at = at;
    f->end = at + (size_t)n;
    return true;
}

static void
put_varint(scanner *s, uint64_t v)
{
    char b[10];
    size_t n = 0;
    for (; v > 127; v >>= 7)
        b[n++] = (char)(v & 127) | (char)128;
    b[n++] = (char)v;
    ef_putn(&s->out, b, n);
}

/* Finds the data field of the tensor in [at, end), if there is one that can be cut. */
static bool
find_payload(scanner *s, size_t at, size_t end, fe_payload *p)
{
    int raw = 0, typed = 0;
    *p = (fe_payload){0};
    for (field f; at < end; at = f.end) {
        if (!next_field(s, at, end, &f))
            return false;
        if (f.number == F_RAW_DATA)
            raw++;
        else if (f.number == F_FLOAT_DATA || f.number == F_DOUBLE_DATA)
            typed++;
        else
            continue;
        if (f.wire == WIRE_BYTES)
            *p = (fe_payload){f.at, f.end - f.at, false, (int)f.number};
    }
    if (raw > 1 || (raw && typed))
        return fault(s, "a tensor that holds its data twice", end);
    if (raw + typed != 1) /* typed data in pieces stay, and protobuf-c joins them */
        *p = (fe_payload){0};
    p->cut = p->bytes > FE_KEEP_BYTES;
    return true;
}

static bool
tensor(scanner *s, size_t at, size_t end)
{
    fe_payload p;
    if (!find_payload(s, at, end, &p))
        return false;
    put_varint(s, (uint64_t)F_SCAN_INDEX << 3 | WIRE_VARINT);
    put_varint(s, (uint64_t)s->scan->payloads.n);
    ef_push(s->arena, s->scan->payloads, p);
    for (field f; at < end; at = f.end) {
        if (!next_field(s, at, end, &f))
            return false;
        bool drop =
            f.number == F_SCAN_INDEX || (p.cut && f.number == (uint32_t)p.field);
        if (!drop)
            ef_putn(&s->out, (const char *)s->in + f.start, f.end - f.start);
    }
    return true;
}

static bool message(scanner *, const ProtobufCMessageDescriptor *, size_t at,
                    size_t end, int depth);

/* A message within a message: its tag, room for its length, its contents. */
static bool
inner(scanner *s, const ProtobufCMessageDescriptor *d, const field *f, int depth)
{
    if (depth > FE_DEPTH_MAX) {
        if (!s->wrong)
            s->wrong = ef_printf(s->arena,
                                 "graphs or types are nested too deeply: more than %d "
                                 "messages within each other at byte %zu",
                                 FE_DEPTH_MAX, f->start);
        return false;
    }
    put_varint(s, (uint64_t)f->number << 3 | WIRE_BYTES);
    size_t length_at = s->out.n;
    ef_putn(&s->out, "\0\0\0\0\0", LENGTH_BYTES);
    bool ok = d == &onnx__tensor_proto__descriptor
                  ? tensor(s, f->at, f->end)
                  : message(s, d, f->at, f->end, depth);
    size_t n = s->out.n - length_at - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++, n >>= 7)
        s->out.s[length_at + (size_t)i] =
            (char)((n & 127) | (i + 1 < LENGTH_BYTES ? 128 : 0));
    return ok;
}

static bool
message(scanner *s, const ProtobufCMessageDescriptor *d, size_t at, size_t end,
        int depth)
{
    uint64_t seen = 0; /* single messages: protobuf would merge a second one */
    for (field f; at < end; at = f.end) {
        if (!next_field(s, at, end, &f))
            return false;
        const ProtobufCFieldDescriptor *fd =
            protobuf_c_message_descriptor_get_field(d, f.number);
        if (!fd || fd->type != PROTOBUF_C_TYPE_MESSAGE || f.wire != WIRE_BYTES) {
            ef_putn(&s->out, (const char *)s->in + f.start, f.end - f.start);
            continue;
        }
        EF_ASSERT(f.number < 64);
        if (fd->label != PROTOBUF_C_LABEL_REPEATED && seen >> f.number & 1)
            return fault(s, "a part that may stand once stands twice", f.start);
        seen |= (uint64_t)1 << f.number;
        if (!inner(s, fd->descriptor, &f, depth + 1))
            return false;
    }
    return true;
}

const char *
fe_scan_wire(ef_arena *arena, const uint8_t *model, size_t n, fe_scan *scan)
{
    scanner s = {.arena = arena, .in = model, .scan = scan, .out = {.arena = arena}};
    *scan = (fe_scan){0};
    if (!message(&s, &onnx__model_proto__descriptor, 0, n, 0))
        return s.wrong;
    scan->wire = (uint8_t *)s.out.s;
    scan->n = s.out.n;
    return NULL;
}
