/* structure_int.h -- families of transformers and the parts of their layers. */
#ifndef EFFICC_STRUCTURE_INT_H
#define EFFICC_STRUCTURE_INT_H

#include "import_int.h"

/* What a matrix or the scale of a norm does in a layer. */
typedef enum fe_role {
    FE_NO_ROLE,
    FE_Q,
    FE_K,
    FE_V,
    FE_QKV, /* one product makes all three */
    FE_O,
    FE_GATE,
    FE_UP,
    FE_FC1,      /* the only product before the activation; gate and up in one */
    FE_FC2,      /* the one behind it */
    FE_NORM_IN,  /* norm whose result is projected to q, k, v */
    FE_NORM_MID, /* whose result goes into gate and up, or fc1 */
    FE_NORM_O,   /* of the result of o */
    FE_NORM_FC2
} fe_role;

struct fe_family { /* a row of families.def */
    const char *name, *types, *sign, *base, *layers, *ids, *positions, *head, *final;
    bool conv1d;
    const char *dropout;
};

struct fe_layer { /* found by structure, in the order of the data */
    EF_VEC(fe_node *) q;
    EF_VEC(fe_node *) k;
    EF_VEC(fe_node *) v;      /* products; one that is in all three is QKV */
    fe_node *o, *in[2], *fc2; /* in[0]: fc1 or gate; NULL: not found */
};

/* ---- onnx_structure.c ---- */
/* Fills im->structure: attention blocks, by their softmax, and what surrounds them. */
void fe_find_structure(fe_imp *);
/* The initializer or Constant that a product reads as its matrix, maybe transposed; NULL: the
 * node is no such product. */
const char *fe_matrix_of(const fe_imp *, const fe_node *);
/* Node that made operand i, seen through reshapes and casts; NULL: an input or a weight. */
fe_node *fe_maker(const fe_imp *, const fe_node *, int i);

/* ---- onnx_families.c ---- */
/* --hf-config; im->config stays NULL if it was not given. false: said why. */
bool fe_read_config(fe_imp *);
/* By config.json, else by the names of weights; sets im->family, which may stay NULL. */
void fe_find_family(fe_imp *);
/* Module of a role within a layer of the family; NULL: the family has no such module. */
const char *fe_part(const fe_family *, fe_role);

/* ---- onnx_renames.c ---- */
/* Names by family for what neither the file nor scopes name. false: said why. */
bool fe_rename(fe_imp *);

#endif
