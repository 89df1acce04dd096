/* frontend.h -- ONNX files in, templates of ONNX files out, and the command line.
 *
 * Nothing outside frontend/ knows ONNX or argv.
 */
#ifndef EFFICC_FRONTEND_H
#define EFFICC_FRONTEND_H

#include "../ir/config.h"
#include "../ir/ir.h"

/* ---- opts.c ---- */
/* Fills *cfg from argv. Returns -1 to go on, or the exit code (0 after --help or --version,
 * 1 after an error that was said). Strings live in ctx->arena. */
int fe_options(ef_ctx *, int argc, char **argv, ef_config *cfg);
void fe_help(FILE *);
/* More of --version: a line that main() knows from the layers above, or NULL. */
extern const char *(*fe_about)(void);

/* ---- onnx_load.c: a file as protobuf-c structures, checked, without its payloads ---- */
typedef struct fe_model fe_model;
/* Reads and checks the file named by ctx->file: wire-level pre-scan (nesting, sizes), then
 * protobuf-c on a copy that has tensor payloads cut out. External data is confined to the
 * model's folder. NULL: said why (at most 12 lines). */
fe_model *fe_load(ef_ctx *, const char *path);
void fe_unload(fe_model *);

/* ---- onnx_import.c: graph to module ---- */
/* Every unsupported operator is reported in one go. The module has one function, `step`,
 * whose fwd blocks compute the graph's outputs (`ret` lists them); meta and params are set,
 * shape arithmetic is folded away, ties are merged, shared 1-D initializers are un-shared,
 * and each decision stands in the report. NULL: said why. */
ir_module *fe_import(ef_ctx *, fe_model *);
void fe_print_docs(FILE *); /* docs/onnx-support.md, the table of operators */

/* ---- input.c ---- */
/* The module of the configuration's input file, of either kind; *model stays NULL for a text.
 * NULL: said why. */
ir_module *fe_read(ef_ctx *, fe_model **model);

/* ---- precision.c ---- */
/* Settles bf16, fp16 and fp32, of which the options may have named one: for module m, on a
 * machine that multiplies in the types for which `computes` holds. Returns a line for the
 * report: which, and why. */
const char *fe_precision(ef_ctx *, ef_config *, const ir_module *m,
                         bool (*computes)(ir_dtype));

/* ---- onnx_weights.c: the weights of a file alone ---- */
/* A module without blocks, whose params are the file's weights as fe_import() names and ties
 * them. Operators and inputs need not be supported. NULL: said why. */
ir_module *fe_import_weights(ef_ctx *, fe_model *);
typedef struct fe_reading { /* how the graph reads a weight */
    bool table;             /* rows of it are looked up */
    bool product;           /* y = x w, w [in,out] .. */
    bool out_in;            /*   or y = x w^T, w [out,in] */
} fe_reading;
/* Of a param that an import made; all false: in other ways. */
fe_reading fe_reading_of(const fe_model *, const ir_param *);
/* PyTorch's name of the parameter whose values these are; NULL: unknown, or the values are
 * computed from it: exporters keep the names of vectors, so one without is a result of
 * constant folding, although it is called by its module. With a shift, p is that much more
 * than the parameter (Gemma's norms: 1 + weight). */
const char *fe_torch_name(const ir_param *);

/* ---- onnx_template.c, onnx_pack.c: the model once more, with other weights ---- */
typedef struct fe_hole { /* the contents of a trained tensor (IR_TRAIN, IR_HEAD) */
    const ir_param *param;
    bool transposed;   /* the tensor is the transpose of the param */
    const char *dtype; /* f32, f16, bf16, f64 */
    uint64_t bytes;
} fe_hole;
typedef struct fe_sink fe_sink;
struct
    fe_sink { /* beside: the file beside the model, else the model. false: said why */
    bool (*put)(fe_sink *, bool beside, const void *, size_t n);
    bool (*fill)(fe_sink *, bool beside, const fe_hole *); /* puts its bytes */
};
typedef struct fe_writer fe_writer;
/* Edits the model. Un-shared tensors of which one is trained become initializers of their
 * own; a new head (params of role IR_HEAD) is appended with output "logits", computing what
 * pass task computes: meta head.input names the graph output that it reads; meta pool is
 * "first" (Gather of position 0), "pooler" (the output is [B,H] already) or "mean" (over the
 * positions where the mask input named by meta pool.mask is not 0: Cast, Unsqueeze, Mul,
 * ReduceSum, Div by ReduceSum clipped to >= 1; over all positions, ReduceMean, if that meta
 * is absent); then Gemm. NULL: said why. */
fe_writer *fe_writer_new(fe_model *, const ir_module *);
uint64_t fe_writer_bytes(const fe_writer *); /* of one file with everything */
/* Weights go to a file of that name beside the model; for files above 2 GB. */
void fe_writer_beside(fe_writer *, const char *name);
bool fe_writer_run(fe_writer *, fe_sink *); /* false: said why */
/* What a trainer needs to write the trained model without a front end: `template_path`, the
 * model's bytes without holes, and `holes_path`, a JSON list of where which tensor goes:
 *   {"size": bytes of the whole file, "holes": [{"at": offset in the finished file,
 *    "bytes": n, "tensor": "param name", "transposed": bool, "dtype": "f32"}]}
 * Of a model above 2 GB there is no template, and "export", the model's path, stands for the
 * holes. false: said why. */
bool fe_write_template(fe_model *, const ir_module *, const char *template_path,
                       const char *holes_path);

#endif
