/* clang_lib.h -- libclang, loaded when it is needed.
 *
 * Its headers are there when efficc is built; the library itself is found by dlopen(), so
 * that commands which check nothing don't wait for it (20 ms), and efficc runs without it.
 */
#ifndef EFFICC_CLANG_LIB_H
#define EFFICC_CLANG_LIB_H

#include <clang-c/Index.h>

typedef struct cg_clang {
#define CLANG(name) __typeof__(clang_##name) *name;
#include "clang_lib.def"
#undef CLANG
} cg_clang;

/* NULL: it is not there. It stays loaded. */
const cg_clang *cg_clang_load(void);

#endif
