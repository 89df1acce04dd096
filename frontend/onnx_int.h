/* onnx_int.h -- what the files of frontend/ share about an ONNX model.
 *
 * The model is a tree of protobuf-c structures in which big tensor payloads are missing:
 * the pre-scan cut them out before the tree was made. For every TensorProto, wherever it
 * stands, there is a fe_tensor that says where its bytes are. Nothing but scan, load,
 * external data and template looks at raw_data and the other data fields of a TensorProto.
 *
 * protobuf-c leaves absent strings NULL: compare names through fe_str().
 */
#ifndef EFFICC_ONNX_INT_H
#define EFFICC_ONNX_INT_H

#include "frontend.h"
#include "onnx.pb-c.h"

enum {
    FE_IR_MAX = 14,   /* newest ir_version that onnx.proto knows */
    FE_OPSET_MIN = 7, /* of the default domain */
    FE_OPSET_MAX = 28,
    FE_DEPTH_MAX = 64,  /* messages within messages; C++ protobuf refuses 100 */
    FE_KEEP_BYTES = 256 /* payloads up to this size stay in the tree */
};

/* One TensorProto: initializer, Constant value or any other tensor attribute. */
typedef struct fe_tensor {
    const Onnx__TensorProto *proto;
    const char
        *name; /* the initializer's; for a Constant the node's output; never NULL */
    int type;  /* ONNX__TENSOR_PROTO__DATA_TYPE__* */
    ir_dtype dtype; /* its type in the IR; double is F32; 16, 32 and 64 bit integers but
                         i32 are I64: converted when read */
    int rank;
    int64_t dim[IR_MAX_RANK];
    int64_t count; /* elements; checked: no overflow, and the data have this size */
    /* Where the elements are, row-major and little-endian, `bytes` of them. */
    const char *path; /* model or external file; NULL: only in memory */
    uint64_t at, bytes;
    const uint8_t *data; /* in memory; NULL: only in the file */
    bool direct; /* path is set and holds elements of `dtype`: fit for IR_INIT_FILE */
} fe_tensor;

/* A copy of a shared 1-D initializer for one consumer, decided by the importer: in the
 * written model `node` reads its own initializer `param` instead of `initializer`. */
typedef struct fe_unshared {
    const char *param;       /* name of the IR param and of the new initializer */
    const char *initializer; /* the shared one, of the main graph */
    Onnx__NodeProto *node; /* consumer in the main graph, not the Identity before it */
    int input;             /* index into node->input */
} fe_unshared;

struct fe_model {
    ef_ctx *ctx;
    ef_arena *arena; /* freed by fe_unload() */
    const char *path;
    const char *dir; /* folder of path, "." if none */
    uint64_t file_bytes;
    Onnx__ModelProto *proto;     /* graph is never NULL after fe_load() */
    int opset;                   /* of the default domain */
    EF_VEC(fe_tensor *) tensors; /* in the file's order */
    ef_map by_proto;             /* Onnx__TensorProto* -> fe_tensor* */
    ef_map inits;                /* interned name -> fe_tensor* of the main graph */
    EF_VEC(fe_unshared)
    unshared;        /* filled by an import, read by fe_writer_new() */
    ef_map readings; /* ir_param* -> fe_reading*; filled by an import */
};

/* ---- onnx_load.c and onnx_tensor.c ---- */
static inline const char *
fe_str(const char *s)
{
    return s ? s : "";
}
/* The tensor of a TensorProto of this model; never NULL after fe_load(). */
const fe_tensor *fe_tensor_of(const fe_model *, const Onnx__TensorProto *);
/* Elements [first, first+n) as doubles (integers exact below 2^53) or as integers (floats
 * truncate). false: said why (the file changed or can't be read). */
bool fe_tensor_f64(const fe_model *, const fe_tensor *, int64_t first, int64_t n,
                   double *out);
bool fe_tensor_i64(const fe_model *, const fe_tensor *, int64_t first, int64_t n,
                   int64_t *out);
/* Type in the IR of an ONNX element type; IR_NDTYPES: it has none (strings, complex,
 * float8, 4 bits and less). */
ir_dtype fe_dtype(int onnx);
const char *fe_type_name(int onnx); /* "float16"; "unknown" */
/* Version of an operator set that the model imports; 0: not imported. "" and "ai.onnx" are
 * the same domain. */
int fe_opset(const fe_model *, const char *domain);
/* A node's name, or if it has none "OpType of OUTPUT"; for diagnostics and locs; interned. */
const char *fe_node_loc(ef_ctx *, const Onnx__NodeProto *);

/* ---- onnx_scan.c ---- */
typedef struct fe_payload { /* a data field that was cut out, or left in place */
    uint64_t at, bytes;     /* in the file */
    bool cut;
    int field; /* 9 raw_data, 4 float_data, 10 double_data; 0: no such field */
} fe_payload;
typedef struct fe_scan {
    uint8_t *wire; /* the model without cut payloads, in the arena */
    size_t n;
    EF_VEC(fe_payload) payloads; /* one per TensorProto, in the order of the file */
} fe_scan;
/* Walks the wire format of a ModelProto of n bytes: every length fits, nothing nests deeper
 * than FE_DEPTH_MAX, no tensor holds its data twice. Pages of cut payloads are never read.
 * NULL: fine, or what is wrong (static or in the arena). */
const char *fe_scan_wire(ef_arena *, const uint8_t *model, size_t n, fe_scan *);

/* ---- onnx_tensor.c, besides reading, above ---- */
/* Fills t from t->proto and checks it: type, dims, size, where the data are. false: said
 * why. */
bool fe_tensor_describe(fe_model *, fe_tensor *, const fe_payload *where);
const char *fe_dims_text(ef_arena *, size_t rank, const int64_t *dim); /* "16 x 32" */

/* ---- external.c ---- */
/* Checks where the external_data entries of t point and fills path, at, bytes. Never opens
 * anything outside m->dir, no symbolic links (but see --follow-links), regular files only.
 * false: said why. */
bool fe_external(fe_model *m, fe_tensor *t);

/* ---- onnx_check.c ---- */
/* Rules that a file has to keep before it makes sense to look at operators: versions,
 * inputs and outputs, local functions, and the rules of fe_order(). Fills m->opset and
 * m->inits. false: said why. */
bool fe_check(fe_model *);

/* "domain::name:overload", interned; what a node calls if a function has this id. */
const char *fe_function_id(fe_model *, const char *domain, const char *name,
                           const char *overload);

/* ---- onnx_inline.c ---- */
/* Replaces calls of local functions, whose nodes are in order, by these nodes. false: said
 * why. */
bool fe_inline(fe_model *);

/* ---- onnx_order.c ---- */
/* Every name is written once and known where it is read, nothing is a cycle. Sorts the
 * nodes of every graph so that they can run in that order. false: said why. */
bool fe_order(fe_model *);

/* ---- onnx_head.c ---- */
/* A new initializer of the main graph, without data; its name gets a number if it is
 * taken. */
Onnx__TensorProto *fe_new_initializer(fe_model *, const char *name, int type, int rank,
                                      const int64_t *dim);
/* Appends the head that pass task made, see fe_writer_new(), and puts its output in
 * front of the others. bias may be NULL. made[]: the initializers for weight and bias. */
bool fe_add_head(fe_model *, const ir_module *, const ir_param *weight,
                 const ir_param *bias, Onnx__TensorProto *made[2]);

#endif
