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

/* ---- mask_probe.c: what a mask does ---- */
typedef struct mask_rule {
    bool known;    /* false: none of the rules below */
    bool causal;   /* position i sees positions <= i only */
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
