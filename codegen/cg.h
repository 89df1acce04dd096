/* cg.h -- planned module to sources, and sources to a trainer.
 *
 *     OUT/src/step.c     straight-line calls of rt_ functions, a comment with IR line and
 *                        ONNX node above each
 *     OUT/src/plan.h     offsets, tables of params, inputs and GEMMs
 *     OUT/src/kernels.c  fused elementwise kernels, and kernels.h; kernels.cu for a GPU
 *     OUT/src/Makefile   builds by hand
 *     OUT/plan.json      memory, options, match table, schedule hash
 *     OUT/base.safetensors  initial weights
 *     OUT/trainer
 */
#ifndef EFFICC_CG_H
#define EFFICC_CG_H

#include "../passes/pass.h"

/* Settles the target where the options leave it open: where there is a CUDA device, and what
 * compiles for it, cuda. The line that says which, and why; of cuda a second one with the nvcc. */
const char *cg_choose_target(ef_ctx *, ef_config *);
/* The target named in the configuration, cpu if none is; NULL: said why. */
const pass_target *cg_target(ef_ctx *);
/* Is there what cg_build() will need? Found out before the work begins. false: said what is
 * missing. */
bool cg_ready(ef_ctx *);
/* Sources into dir/src, plan.json and base.safetensors into dir, which exists. */
bool cg_emit(ir_module *, const pass_target *, const char *dir);
/* Checks the sources in dir/src (clang_check.h); then, unless the configuration says not to
 * build, compiles and links them into dir/trainer with its compiler. On failure the
 * compiler's first lines are shown and the log is kept. */
bool cg_build(ef_ctx *, const char *dir);

#endif
