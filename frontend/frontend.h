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

/* ---- onnx_template.c: what the trainer needs to write model.onnx without a front end ---- */
/* Writes `template_path`, the model's bytes without weights, and `holes_path`, a JSON list
 * of where which tensor goes:
 *   {"size": bytes of the whole file, "holes": [{"at": offset in the finished file,
 *    "bytes": n, "tensor": "param name", "transposed": bool, "dtype": "f32"}]}
 * Un-shared tensors become initializers of their own; a new head (params of role IR_HEAD)
 * is appended with output "logits", computing what pass task computes: meta head.input names
 * the graph output that it reads; meta pool is "first" (Gather of position 0), "pooler" (the
 * output is [B,H] already) or "mean" (over the positions where the mask input named by meta
 * pool.mask is not 0: Cast, Unsqueeze, Mul, ReduceSum, Div by ReduceSum clipped to >= 1; over
 * all positions, ReduceMean, if that meta is absent); then Gemm. false: said why. */
bool fe_write_template(fe_model *, const ir_module *, const char *template_path,
                       const char *holes_path);

#endif
