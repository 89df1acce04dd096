/* clang_check.h -- emitted sources are read by libclang before a compiler sees them.
 *
 * It finds what would be a bug of efficc: names that nothing declares, calls that don't fit
 * the declaration in the runtime's headers, kernels that call functions of the host. A C
 * compiler warns of some of these at most; here each is an error that names the call, the
 * line of the IR it was written for, and the header's line.
 *
 * Where efficc was built without libclang, nothing is checked and cg_check_about() says so.
 */
#ifndef EFFICC_CLANG_CHECK_H
#define EFFICC_CLANG_CHECK_H

#include "../ir/diag.h"

typedef struct cg_headers { /* folders; NULL: those that efficc was built with */
    const char *runtime;    /* of efficc_rt.h */
    const char *resource;   /* clang's own, of include/stddef.h */
} cg_headers;

/* Step and kernels in the folder src. false: said why. */
bool cg_check_sources(ef_ctx *, const char *src);
/* One file, C or (by its suffix .cu) CUDA. false: said why, with at most 4 faults. */
bool cg_check_file(ef_ctx *, const char *path, const cg_headers *);
bool cg_checks(void);             /* is there a libclang? */
const char *cg_check_about(void); /* a line for --version */

#endif
