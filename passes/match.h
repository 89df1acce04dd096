/* match.h -- patterns over def-use chains, written as text.
 *
 *     "(add (mul n:(div ?d ?s) $w) $b)"
 *
 *   ?x          any value; the same name again must be the same value
 *   $w          a parameter that is a weight (not of class const)
 *   #e          a constant number
 *   0.5         that constant, to a relative 1e-6 (files hold constants as f32)
 *   (op a b)    result 0 of op; add, mul, max, min, and, or take operands in either order
 *   n:(op ..)   the same, and its value is known as n
 *   (scale a c) a mul by the constant c, in either order, or a div by 1/c
 *
 * A pattern matches only if no value inside it has a use outside of it: what is replaced
 * then vanishes, and nothing is computed twice.
 */
#ifndef EFFICC_MATCH_H
#define EFFICC_MATCH_H

#include "../ir/ir.h"

enum { MATCH_SLOTS = 12, MATCH_OPS = 24 };

typedef struct pass_pattern pass_pattern;

typedef struct pass_match {
    const pass_pattern *pattern;
    ir_value
        *value[MATCH_SLOTS]; /* by slot of the pattern's names; NULL: not bound yet */
    double number[MATCH_SLOTS];
    int nop;
    ir_op *op[MATCH_OPS]; /* of the pattern; the root is first */
} pass_match;

/* The pattern that text says, in the arena. A malformed text is an internal error. */
const pass_pattern *pass_pattern_new(ef_arena *, const char *text);
/* Quick test: can op be the outermost op at all? */
bool pass_pattern_may_root(const pass_pattern *, const ir_op *);
/* Does the pattern match with `root` as its outermost op? Fills *m. */
bool pass_match_at(const pass_pattern *, ir_op *root, pass_match *m);
/* What a name of the pattern (without ?, $, #) is bound to; an unknown name is an internal
 * error. */
ir_value *pass_bound(const pass_match *, const char *name);
double pass_number(const pass_match *, const char *name);

/* Do the operands of this op commute? */
bool pass_commutes(ir_opcode);
/* If op is mul or div of a value by a number: that value, and *factor what it is multiplied
 * by. Else NULL. */
ir_value *pass_scaled(const ir_op *, double *factor);

#endif
