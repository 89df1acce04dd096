/* fuse_int.h -- what the files of pass fuse share. */
#ifndef EFFICC_FUSE_INT_H
#define EFFICC_FUSE_INT_H

#include "pass.h"

/* The first op that uses v, in the order of the function; NULL: none. */
ir_op *fuse_first_user(const ir_value *v);
/* Do all uses of op's results stand behind `where`, which is behind op? */
bool fuse_unused_before(const ir_op *op, const ir_op *where);
/* Removes op if nobody uses it. */
void fuse_drop(ir_op *op);
/* Everyone reads `with`, under old's name. */
void fuse_pass_on(ir_value *old, ir_value *with);
/* The same; then old's op goes, if nobody uses its other results. */
void fuse_replace(ir_value *old, ir_value *with);
/* What op does to a product, or beside it, becomes part of it where that can be. */
void fuse_product(ir_op *op);
/* Elementwise ops of f move next to others with which they can share a kernel. */
void fuse_move(ir_func *f);

#endif
