/* ops_int.h -- the builders that onnx_ops.def names. */
#ifndef EFFICC_OPS_INT_H
#define EFFICC_OPS_INT_H

#include "import_int.h"

static inline bool
fe_result(fe_call *c, fe_val *v)
{
    c->out[0] = v;
    return v != NULL;
}

static inline int64_t
fe_clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* Room for n numbers that are known; NULL: too many, said so. */
double *fe_room(fe_call *, int64_t n);
/* i64 [n]: 0, 1, .. */
fe_val *fe_count_up(fe_call *, int64_t n);

/* What FusedGemm names as its activation; NULL: said why. */
fe_val *fe_activation(fe_call *, const char *name, fe_val *);

typedef bool fe_builder(fe_call *);
#define ONNX(op, domain, since, until, builder, code, attrs) fe_builder op_##builder;
#include "onnx_ops.def"
#undef ONNX

#endif
