/* toolkit.h -- what CUDA there is on this machine: devices, nvcc, libraries.
 *
 * All of it is found when efficc runs, so that a toolkit may come after efficc was built; only
 * the runtime that trainers link needs one while efficc is built.
 */
#ifndef EFFICC_TOOLKIT_H
#define EFFICC_TOOLKIT_H

#include "cg.h"

typedef EF_VEC(char *) cg_words; /* of a command */

/* Devices that the driver tells of; 0: no driver either. */
int cg_cuda_devices(void);
/* --nvcc, or the first of $CUDA_HOME/bin, the one that efficc was built with,
 * /usr/local/cuda/bin and PATH that is there; NULL: none. */
const char *cg_nvcc(ef_ctx *);
/* --nvcc where it is no program; NULL: it is one, or was not given. */
const char *cg_wrong_nvcc(ef_ctx *);
/* "; CUDA_HOME is .., where there is no bin/nvcc" if it is set, is looked at, and has none; else
 * "". */
const char *cg_wrong_home(ef_ctx *);
/* Is there the runtime that CUDA trainers link? */
bool cg_has_cuda_runtime(void);
const char *cg_arch(const ef_ctx *); /* "sm_90" */
/* -gencode and its value for --cuda-arch: code for it, and PTX for later ones. */
const char *cg_arch_flags(ef_ctx *);
/* Adds what links the toolkit's libraries, and lets the program find them where it runs. */
void cg_link_toolkit(ef_ctx *, const char *nvcc, cg_words *);

#endif
