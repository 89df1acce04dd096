/* tables.c -- the rows of ops.def, attrs.def and dtypes.def as arrays. */
#include <string.h>

#include "ir_int.h"

/* Letters of ops.def; see there. */
#define P IR_PURE
#define E IR_EFFECT
#define W IR_EW
#define V IR_VIEW
#define G IR_ACC
#define T IR_TYPED
#define I IR_INPLACE
#define S IR_SHARDWISE
#define N IR_LAST_INF
#define R IR_ROWWISE

#define BIT(key)                   ((uint64_t)1 << IR_ATTR_##key)
#define A0                         0
#define A1(a)                      BIT(a)
#define A2(a, b)                   (A1(a) | BIT(b))
#define A3(a, b, c)                (A2(a, b) | BIT(c))
#define A4(a, b, c, d)             (A3(a, b, c) | BIT(d))
#define A5(a, b, c, d, e)          (A4(a, b, c, d) | BIT(e))
#define A6(a, b, c, d, e, f)       (A5(a, b, c, d, e) | BIT(f))
#define A7(a, b, c, d, e, f, g)    (A6(a, b, c, d, e, f) | BIT(g))
#define A8(a, b, c, d, e, f, g, h) (A7(a, b, c, d, e, f, g) | BIT(h))

_Static_assert(IR_NATTRS < 64, "a set of attributes is a uint64_t");

const ir_opinfo ir_ops[IR_NOPS] = {
#define OP(name, in, in_max, out, out_max, flags, cast, attrs, shape, vjp, lower, doc) \
    {#name, doc, in, in_max, out, out_max, flags, IR_CAST_##cast, attrs, shape},
#include "ops.def"
#undef OP
};

const ir_attrinfo ir_attrs[IR_NATTRS] = {
#define ATTR(name, kind, need, doc) {#name, doc, #kind[0], need},
#include "attrs.def"
#undef ATTR
};

const ir_dtypeinfo ir_dtypes[IR_NDTYPES] = {
#define DTYPE(name, text, bits, is_float) {text, bits, is_float},
#include "dtypes.def"
#undef DTYPE
};

ir_opcode
ir_op_by_name(const char *name)
{
    int op = 0;
    while (op < IR_NOPS && strcmp(ir_ops[op].name, name))
        op++;
    return (ir_opcode)op;
}
