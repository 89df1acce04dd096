/* recognise_int.h -- what the files of pass recognise share. */
#ifndef EFFICC_RECOGNISE_INT_H
#define EFFICC_RECOGNISE_INT_H

#include "match.h"
#include "pass.h"

typedef struct recogniser { /* state of one run of the pass */
    pass_ctx *pc;
    ir_module *m;
    ef_map probed[2]; /* mask_probe.c: ir_value* -> mask_rule*; [1]: inverted */
    ir_opcode unary;  /* op of the row that is tried, for rec_unary() */
} recogniser;

/* Emits what the match is, before the root; returns what replaces the root's result, of its
 * type. NULL: it is not that, after all, and nothing was emitted. */
typedef ir_value *rec_fn(recogniser *, const pass_match *);
#define RECOGNISE(name, pattern, build, doc) rec_fn rec_##build;
#include "recognise.def"
#undef RECOGNISE

/* ---- view.c: where the elements of a value lie in another one ---- */
/* A value made from `base` by reshapes, transposes, slices, expands and constant factors:
 * its dimension k consists of atoms [first[k], first[k+1]), outermost first; an element is
 * at `offset` plus the sum of index times stride over all atoms, in elements of base. */
enum { VIEW_ATOMS = 24 };
typedef struct view {
    ir_value *base;
    double factor; /* what the elements are multiplied by */
    int rank, natom, first[IR_MAX_RANK + 1];
    int64_t size[VIEW_ATOMS], stride[VIEW_ATOMS], offset;
} view;
/* v as a view of the value `back` view ops before it; 0: of itself. false: there are not so
 * many, or the result is no view in this sense (a reshape across a cut). */
bool view_of(ir_value *v, int back, view *out);
int view_depth(const ir_value *v); /* how many view ops lie before v, at most 32 */
void view_swap_last(view *);       /* exchanges the last two dimensions */
/* Are these n atoms, in order, the atoms of v? Atoms of size 1 and neighbours that are one
 * stretch don't count. */
bool view_is(const view *v, int n, const int64_t *size, const int64_t *stride);

/* Heads in the columns of a base [B,S,..], whose last dimensions count as one: head h is `d`
 * columns from offset + h * stride on; `group` neighbouring heads of the view are one and the
 * same. */
typedef struct head_view {
    int64_t offset, heads, group, d, stride;
} head_view;
/* Is the view [B,heads,S,d], or [B,S,heads,d] if by_token, of such heads? */
bool view_heads(const view *, int64_t heads, int64_t d, bool by_token, head_view *);
/* The base as [B,S,C], before `at`. */
ir_value *view_flat(ir_op *at, ir_value *base);
/* The heads of `base` [B,S,C] as `type`, which is [B,heads,S,d] or [B,S,heads,d] in the order
 * of elements, before `at`. NULL: slices don't reach them, nothing was emitted. */
ir_value *view_emit_heads(ir_op *at, ir_value *base, const head_view *, bool by_token,
                          const ir_type *type);

/* ---- recognise_rotary.c ---- */
/* Queries, keys and values that are columns of one product, of which queries and keys were
 * turned apart: turned in place one after the other, they are one value, and so is their
 * gradient. Sets v[0..2] to it, before `at`, if that is so. */
void rec_turn_together(ir_op *at, ir_value *v[3], const head_view h[3]);

/* ---- mask_probe.c: what a mask does ---- */
typedef struct mask_rule {
    bool known;     /* false: none of the rules below */
    bool causal;    /* position i sees positions <= i only */
    int64_t window; /* position i sees positions > i - window only; 0: no such limit */
    ir_value *key; /* [B,S] argument: only keys where it is not 0 are seen; NULL: all */
    double masked_max; /* additive: largest number at a masked place */
} mask_rule;
/* Classifies v, which is broadcast to scores [B,heads,S,S], by evaluating it. Boolean v:
 * true is seen, or masked if inverted; numeric v: added to the scores, 0 is seen, very
 * negative is not. */
mask_rule mask_probe(recogniser *, ir_value *v, bool inverted, const ir_type *scores);
/* Does v depend on arguments and constants only, by few ops? */
bool mask_like(const ir_value *v);

#endif
