/* ir_int.h -- what the files of ir/ share and nobody else needs. */
#ifndef EFFICC_IR_INT_H
#define EFFICC_IR_INT_H

#include "ir.h"

#define IR_MAX_COUNT ((int64_t)1 << 40) /* elements of a tensor */
enum { IR_MAX_NRES = 4 };               /* results of an op, whatever its row */

/* ---- names.c ---- */
/* `name` reduced to [A-Za-z0-9_./-] and made unique among the keys of `names` that have a
 * value, by the smallest free suffix ".1", ".2"; interned, not yet taken. */
const char *ir_name_unique(ef_ctx *, ef_arena *, const ef_map *names, ef_map *suffixes,
                           const char *name);
void ir_name_take(ef_arena *, ef_map *names, const char *unique, void *what);
void ir_name_free(ef_ctx *, ef_arena *, ef_map *names, ef_map *suffixes,
                  const char *name);
bool ir_name_char(char);
const char *ir_name_clean(ef_ctx *,
                          const char *); /* other bytes become '_'; interned */

/* ---- shape.c, shape_nn.c, shape_attn.c ---- */
typedef const char *ir_shape_rule(ef_ctx *, const ir_op *, const ir_type **out);
#define OP(name, in, in_max, out, out_max, flags, cast, attrs, shape, ...) \
    ir_shape_rule shape;
#include "ops.def"
#undef OP
/* Arity, attributes, operands and given type of op against its row, then the shape rule.
 * NULL, or what is wrong. op->res may hold no types but the given one. */
const char *ir_op_types(ef_ctx *, const ir_op *, const ir_type **out);

/* "operand 1 is f32[3,4], expected ..", interned. */
const char *ir_bad(ef_ctx *, const ir_op *, int operand, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Type of the dims of t in [lo, hi) followed by one of size n; n < 0: by none. */
const ir_type *ir_type_part(ef_ctx *, const ir_type *t, int lo, int hi, int64_t n);
bool ir_same_dims(const ir_type *a, int alo, const ir_type *b, int blo, int n);

/* ---- build.c ---- */
/* An op at the end of block, or before `before`, with room for operands and results; the
 * results have neither names nor types yet. */
ir_op *ir_op_new(ir_block *, ir_op *before, ir_opcode, int narg, int nres);
void ir_op_arg(ir_op *, int i, ir_value *);          /* first setting of operand i */
void ir_op_name(ir_op *, int i, const char *unique); /* result i takes the name */

/* ---- print.c: words of the text form, for the parser and messages ---- */
extern const char *const ir_phase_word[3], *const ir_class_word[IR_NCLASSES],
                                               *const ir_role_word[5];
extern const char *const ir_init_word[6]; /* NULL where the text has no word for it */
void ir_put_quoted(ef_buf *, const char *);
const char *ir_value_text(ef_ctx *, const ir_value *); /* "%x" or "$w", interned */

#endif
