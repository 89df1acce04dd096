/* fuse_int.h -- what the two files of pass fuse share. */
#ifndef EFFICC_FUSE_INT_H
#define EFFICC_FUSE_INT_H

#include "pass.h"

/* The first op that uses v, in the order of the function; NULL: none. */
ir_op *fuse_first_user(const ir_value *v);
/* Elementwise ops of f move next to others with which they can share a kernel. */
void fuse_move(ir_func *f);

#endif
