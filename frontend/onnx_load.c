/* onnx_load.c -- an ONNX file as protobuf-c structures, checked.
 *
 * The file is mapped, walked by the pre-scan, and its reduced copy unpacked into the
 * model's arena with a limit on memory, since two bytes of input can ask for a structure
 * of a hundred. Then every tensor is described, wherever it stands, and the graph's rules
 * are checked.
 */
#include "onnx_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TREE_BYTES_MAX = 1 << 30 };

typedef struct mapping {
    uint8_t *at;
    size_t n;
} mapping;

static bool
map_file(ef_ctx *ctx, const char *path, mapping *f)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return ef_error(ctx, NULL, E_ONNX_FILE, strerror(errno));
    const char *wrong = NULL;
    if (fstat(fd, &st))
        wrong = strerror(errno);
    else if (!S_ISREG(st.st_mode))
        wrong = "not a regular file";
    else if (st.st_size == 0)
        wrong = "empty file";
    else if (st.st_size > INT_MAX)
        wrong =
            "larger than 2 GB, which protobuf does not allow: export it with external "
            "data";
    if (!wrong) {
        f->n = (size_t)st.st_size;
        f->at = mmap(NULL, f->n, PROT_READ, MAP_PRIVATE, fd, 0);
        if (f->at == MAP_FAILED)
            wrong = strerror(errno);
        else /* else the kernel may map 2 MB around each byte that is looked at */
            madvise(f->at, f->n, MADV_NOHUGEPAGE);
    }
    close(fd);
    return !wrong || ef_error(ctx, NULL, E_ONNX_FILE, wrong);
}

/* ---- unpacking into an arena, with a limit ---- */

typedef struct pool {
    ef_arena *arena;
    size_t left;
} pool;

static void *
pool_alloc(void *data, size_t n)
{
    pool *p = data;
    if (n > p->left)
        return NULL;
    p->left -= n;
    return ef_alloc(p->arena, n);
}

static void
pool_free(void *data, void *pointer)
{
    (void)data, (void)pointer; /* freed with the arena */
}

/* Passes on what the pre-scan or protobuf-c found wrong. */
static bool
not_onnx(ef_ctx *ctx, const mapping *f, const char *why)
{
    static const char lfs[] = "version https://git-lfs";
    ef_error(ctx, NULL, E_ONNX_FILE, why);
    if (f->n > sizeof(lfs) && !memcmp(f->at, lfs, sizeof(lfs) - 1))
        ef_hint(ctx, "this is a pointer of Git LFS: fetch the file with git lfs pull");
    return false;
}

static bool
unpack(fe_model *m, const mapping *f, fe_scan *scan)
{
    ef_arena *scratch = ef_arena_new();
    const char *wrong = fe_scan_wire(scratch, f->at, f->n, scan);
    if (!wrong) {
        pool p = {m->arena, TREE_BYTES_MAX};
        ProtobufCAllocator allocator = {pool_alloc, pool_free, &p};
        m->proto = onnx__model_proto__unpack(&allocator, scan->n, scan->wire);
        if (!m->proto)
            wrong = p.left < TREE_BYTES_MAX / 2
                        ? "its structure, without weights, needs more than 1 GB"
                        : "not a valid ONNX file: its fields are not of the types that "
                          "ONNX gives them";
        else if (!m->proto->graph)
            wrong = "not a valid ONNX file: it holds no graph";
    }
    fe_payload *payloads = ef_dup(m->arena, scan->payloads.at,
                                  sizeof(fe_payload) * (size_t)scan->payloads.n);
    if (wrong)
        not_onnx(m->ctx, f, wrong);
    scan->payloads.at = payloads;
    scan->wire = NULL;
    ef_arena_free(scratch);
    return !wrong;
}

/* ---- tensors ---- */

static bool
add_tensor(fe_model *m, const fe_scan *scan, Onnx__TensorProto *t, const char *owner)
{
    EF_ASSERT(t->has_scan_index && t->scan_index < (uint32_t)scan->payloads.n);
    fe_tensor *info = EF_NEW(m->arena, fe_tensor);
    info->proto = t;
    info->name = ef_intern(m->ctx, owner ? owner : fe_str(t->name));
    ef_push(m->arena, m->tensors, info);
    ef_map_set(m->arena, &m->by_proto, t, info);
    t->has_scan_index = false;
    return fe_tensor_describe(m, info, &scan->payloads.at[t->scan_index]);
}

static const char *
first_output(const ProtobufCMessage *node)
{
    const Onnx__NodeProto *n = (const Onnx__NodeProto *)node;
    return n->n_output ? n->output[0] : "";
}

/* Visits every tensor below msg; `owner`: what the node around it gives, NULL outside. */
static bool
add_tensors(fe_model *m, const fe_scan *scan, ProtobufCMessage *msg, const char *owner)
{
    const ProtobufCMessageDescriptor *d = msg->descriptor;
    if (d == &onnx__tensor_proto__descriptor)
        return add_tensor(m, scan, (Onnx__TensorProto *)msg, owner);
    if (d == &onnx__node_proto__descriptor)
        owner = first_output(msg);
    if (d == &onnx__graph_proto__descriptor)
        owner = NULL;
    bool ok = true;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        void *member = (char *)msg + f->offset,
             *count = (char *)msg + f->quantifier_offset;
        if (f->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            for (size_t k = 0; k < *(size_t *)count; k++)
                ok &= add_tensors(m, scan, (*(ProtobufCMessage ***)member)[k], owner);
            continue;
        }
        bool other =
            f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && *(uint32_t *)count != f->id;
        if (!other && *(ProtobufCMessage **)member)
            ok &= add_tensors(m, scan, *(ProtobufCMessage **)member, owner);
    }
    return ok;
}

/* ---- the whole ---- */

static const char *
folder_of(ef_arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return ".";
    return slash == path ? "/" : ef_strndup(a, path, (size_t)(slash - path));
}

fe_model *
fe_load(ef_ctx *ctx, const char *path)
{
    mapping file = {0};
    if (!map_file(ctx, path, &file))
        return NULL;
    ef_arena *arena = ef_arena_new();
    fe_model *m = EF_NEW(arena, fe_model);
    m->ctx = ctx;
    m->arena = arena;
    m->path = ef_strdup(arena, path);
    m->dir = folder_of(arena, path);
    m->file_bytes = file.n;
    fe_scan scan;
    bool ok = unpack(m, &file, &scan);
    munmap(file.at, file.n);
    ok = ok && add_tensors(m, &scan, &m->proto->base, NULL) && fe_check(m);
    if (!ok) {
        fe_unload(m);
        return NULL;
    }
    return m;
}

void
fe_unload(fe_model *m)
{
    if (m)
        ef_arena_free(m->arena);
}

const fe_tensor *
fe_tensor_of(const fe_model *m, const Onnx__TensorProto *t)
{
    const fe_tensor *info = ef_map_get(&m->by_proto, t);
    EF_ASSERT(info);
    return info;
}

int
fe_opset(const fe_model *m, const char *domain)
{
    bool standard = !*domain || !strcmp(domain, "ai.onnx");
    if (standard)
        return m->opset;
    for (size_t i = 0; i < m->proto->n_opset_import; i++)
        if (!strcmp(fe_str(m->proto->opset_import[i]->domain), domain))
            return (int)m->proto->opset_import[i]->version;
    return 0;
}

const char *
fe_node_loc(ef_ctx *ctx, const Onnx__NodeProto *n)
{
    if (n->name && *n->name)
        return ef_intern(ctx, n->name);
    return ef_internf(ctx, "%s of %s", fe_str(n->op_type),
                      n->n_output ? n->output[0] : "nothing");
}
