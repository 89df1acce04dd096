/* emitted.h -- emitted text, looked at once more: what a line was written for. */
#ifndef EFFICC_EMITTED_H
#define EFFICC_EMITTED_H

#include "../ir/base.h"

/* Start of line n of text, counted from 1; NULL: it has fewer. */
const char *cg_line_at(const char *text, unsigned n);
/* The line of the IR that the code at `at`, in text, was written for: the last comment above that
 * is one. "": none. */
const char *cg_ir_above(ef_arena *, const char *text, const char *at);
/* The ONNX node that a line of the IR names; NULL: none. */
const char *cg_onnx_node(ef_arena *, const char *ir);

#endif
