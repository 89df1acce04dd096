/* import_int.h -- what the files that turn an ONNX graph into a module share.
 *
 * The import runs in steps: names of the graph become tables (onnx_graph.c), symbolic dims
 * get sizes (onnx_dims.c), nodes get units (onnx_units.c), weights become params with names
 * (onnx_names.c) and ties (onnx_ties.c); then the operators run in order (onnx_ops*.c), each
 * through fe_emit(), which computes at once whatever is known (onnx_fold.c). What is left
 * are the ops that depend on weights or on the data.
 *
 * The importer knows three kinds of elements: f32 (all floats), i64 (all integers), bool.
 */
#ifndef EFFICC_IMPORT_INT_H
#define EFFICC_IMPORT_INT_H

#include "onnx_int.h"

typedef struct fe_imp fe_imp;
typedef struct fe_call fe_call;
typedef struct fe_node fe_node;
typedef struct fe_family fe_family; /* structure_int.h, and the next */
typedef struct fe_layer fe_layer;

typedef struct fe_row { /* one row of onnx_ops.def */
    const char *name, *domain;
    int since, until; /* opsets; until 0: the newest */
    bool (*build)(fe_call *);
    ir_opcode code;    /* for builders that serve several rows */
    const char *attrs; /* attributes that the builder understands, by commas */
} fe_row;
extern const fe_row fe_rows[];
extern const int fe_nrows;
/* NULL: no row has this operator at this opset. */
const fe_row *fe_row_of(const char *domain, const char *op, int opset);

struct fe_node {
    Onnx__NodeProto *p;
    const char **in, **out; /* interned; "" for what is left out */
    int nin, nout;
    const char **captured; /* outer names that the subgraphs of an If read */
    int ncaptured;
    const char *loc;   /* for diagnostics and ops */
    const char *scope; /* "bert.encoder.layer.0.attention.self.query"; NULL: unknown */
    int unit, layer; /* layer: index into fe_imp.layers of the node itself; -1: none */
    bool needed;     /* by an output of its graph */
};

typedef struct fe_users { /* who reads a name; twice, if it does so twice */
    EF_VEC(fe_node *) node;
} fe_users;

typedef struct fe_graph {
    Onnx__GraphProto *p;
    fe_node *node;
    int n;
    ef_map producer;         /* name -> fe_node* */
    ef_map users;            /* name -> fe_users* */
    EF_VEC(fe_node *) order; /* those that the outputs need, in the order they run */
} fe_graph;

typedef struct fe_val { /* a tensor while it is imported */
    const ir_type *type;
    const double *data; /* its elements, where they are known; else NULL */
    const char *name;   /* of the node's output; NULL: made on the way */
    ir_value *v;        /* in the module; NULL: known and not placed yet */
} fe_val;

/* A weight for one group of consumers: becomes one ir_param. */
typedef struct fe_param {
    const fe_tensor *t;
    const char *onnx; /* the initializer, or the output of the Constant */
    const char *key;  /* PyTorch name of the group, or the initializer's name */
    const char *hf;   /* PyTorch name; NULL: unknown */
    bool transposed;  /* PyTorch's layout is the transpose of the file's */
    bool owner;       /* this group keeps the initializer; the others are un-shared */
    int unit;         /* of its consumers; -1: none yet */
    struct fe_param *tie; /* the param that this one is a copy of; NULL: none */
    bool tie_transposed;
    bool table, product; /* rows of it are looked up; it is read in other ways */
    const char *lookup;  /* name by the scope that looks rows up; NULL: unknown */
    const char *reader,
        *other;     /* scopes of two modules that read it; NULL: unknown, none */
    bool added;     /* an Add reads it */
    bool foreign;   /* an operator that is not ONNX's own reads it */
    bool shift;     /* it holds PyTorch's parameter + 1 */
    bool lead;      /* its first dim, 1, is not in PyTorch's */
    bool some_rows; /* it holds only some rows of PyTorch's */
    bool looked_up; /* rows of PyTorch's, for tokens of fixed places: not trained */
    EF_VEC(struct fe_param *) copies;
    ir_param *ir; /* NULL until first used */
} fe_param;

typedef struct fe_use { /* one operand that reads a weight */
    fe_node *node;
    fe_node *owner; /* node of the main graph that `node` stands in, or node itself */
    int input;
    const char *alias; /* the name it reads: the weight's, or that of an Identity */
} fe_use;

typedef struct fe_weight { /* float initializer or Constant of more than one element */
    const fe_tensor *t;
    const char *name; /* interned */
    EF_VEC(fe_use) uses;
} fe_weight;

typedef struct fe_alias {
    fe_weight *w;
    const char *name;
} fe_alias;

typedef struct fe_dim {      /* a symbolic dimension with its size */
    const char *name, *from; /* from: "--batch", "--seq", "--dim" */
    int64_t size;
} fe_dim;

typedef struct fe_config {    /* config.json of the model's repository */
    const char *type;         /* model_type */
    const char *architecture; /* the first of them; NULL: not said */
    bool untied;              /* it says that table and output layer are not tied */
    int64_t layers;           /* 0: not said */
    int64_t transformers;     /* major version that wrote it; 0: not said */
} fe_config;

struct fe_imp {
    ef_ctx *ctx;
    fe_model *f;
    ir_module *m;
    ef_arena *arena; /* freed when the import ends */
    fe_graph *main;
    ef_map branches; /* Onnx__GraphProto* of an If -> fe_graph* */
    ef_map vals;     /* interned name -> fe_val* */
    ef_map aliases;  /* interned name -> fe_alias* */
    ef_map use;      /* &node->input[i] -> fe_param* */
    ef_map tables;   /* hash of contents -> fe_table list, see onnx_fold.c */
    EF_VEC(fe_weight *) weights;
    EF_VEC(fe_param *) params;
    EF_VEC(fe_dim) dims;
    EF_VEC(const char *) layers;  /* "transformer.h.0", .. in order */
    EF_VEC(const char *) dropped; /* graph outputs that are left out */
    const char *prefix;           /* PyTorch names = prefix + scope; "" as a rule */
    ef_map reruns; /* scope of a module's second run, "a.fc_1" -> "a.fc" */
    EF_VEC(fe_layer *) structure; /* of layers, whatever they are called */
    const fe_config *config;      /* NULL: not given */
    const fe_family *family;      /* NULL: unknown */
    const char *base;             /* what stands before the layers' names */
    int64_t batch, seq;           /* 0: no input has them */
    int nunit;
    int64_t positions; /* rows of the table that constant indices read; 0: none */
    const char *positions_of;
    ir_block *block; /* where ops go */
    /* nodes Dropout in training mode: ops, and those that are left out */
    int ndropped, nundropped;
};

/* ---- onnx_graph.c ---- */
fe_graph *fe_graph_new(fe_imp *, Onnx__GraphProto *);
void fe_graph_order(fe_imp *, fe_graph *); /* fills order */
/* What a node reads: its inputs, then the outer names of its subgraphs. */
static inline int
fe_ndep(const fe_node *n)
{
    return n->nin + n->ncaptured;
}
static inline const char *
fe_dep(const fe_node *n, int i)
{
    return i < n->nin ? n->in[i] : n->captured[i - n->nin];
}
/* The graph of an If branch, made at first use. */
fe_graph *fe_branch(fe_imp *, Onnx__GraphProto *);
/* Has every node in order a row? Reports all that have none at once. */
bool fe_graph_supported(fe_imp *, const fe_graph *);
const fe_users *fe_users_of(const fe_graph *, const char *name); /* never NULL */
const Onnx__AttributeProto *fe_node_attr(const Onnx__NodeProto *, const char *name);

/* ---- onnx_dims.c ---- */
/* Makes step's arguments and their values: every dim has a size. false: said why. */
bool fe_inputs(fe_imp *);

/* ---- onnx_units.c ---- */
/* Gives each node of the main graph its unit, sorts order by it and makes the blocks. */
void fe_units(fe_imp *);

/* ---- onnx_names.c ---- */
/* Weights, who reads them, params with their PyTorch names. false: said why. */
bool fe_params(fe_imp *);
/* "bert.pooler.dense.weight" rather than "onnx::MatMul_302" or "val_12". */
bool fe_is_torch_name(const char *);
bool fe_make_param(fe_imp *, fe_param *); /* sets ir; false: said why */
/* The value of a param, which is made at first use; NULL: said why. */
fe_val *fe_param_val(fe_call *, fe_param *);
/* The weight that an output or an operand without consumer group reads; NULL: not one. */
fe_param *fe_param_of(fe_imp *, const char *name);

/* ---- onnx_weights.c ---- */
/* What the model written anew has to know of the params: who reads an initializer of its own,
 * and how they are read. */
void fe_record_params(fe_imp *);
/* The module that `import_` makes of a model; NULL: it said why not. */
ir_module *fe_import_by(ef_ctx *, fe_model *, bool (*import_)(fe_imp *));

/* ---- onnx_ties.c ---- */
/* Finds params of two dims that are byte copies of another, as they are or transposed.
 * false: said why (the file can't be read). */
bool fe_ties(fe_imp *);

/* ---- onnx_fold.c ---- */
enum { FE_FOLD_MAX = 1 << 20 }; /* elements of a result that is computed here */

struct fe_call { /* one node while its builder runs */
    fe_imp *im;
    fe_node *n;
    const fe_row *row;
    int opset;
    fe_val **out; /* n->nout results, filled by the builder */
};
/* E_ONNX_OP about the node, false. */
bool fe_fail(fe_call *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Name of a node's result in the IR, in the import's arena. */
const char *fe_base_name(const fe_imp *, const fe_node *);
fe_val *fe_known_val(fe_imp *, const ir_type *, const double *data);
fe_val *fe_ir_val(fe_imp *, ir_value *);
/* An op on the operands; computed if they are all known, else appended to the block. NULL
 * where an operand is NULL, or said why. */
fe_val *fe_emit(fe_call *, ir_opcode, int narg, fe_val *const *arg, int nattr,
                const ir_attr *attr, const ir_type *given);
/* The value in the module, placed in the current block if it is known. */
ir_value *fe_place(fe_imp *, fe_val *);
bool fe_run(fe_imp *, const fe_graph *); /* builders of all nodes in order */

/* ---- onnx_operands.c ---- */
/* Operand i; NULL: said why. */
fe_val *fe_in(fe_call *, int i);
fe_val *fe_by_name(fe_call *, const char *name);
bool fe_has(const fe_call *, int i); /* it is not left out */
/* Operand i as known integers, n of them, in the arena. NULL: said why. */
const int64_t *fe_ints_in(fe_call *, int i, const char *what, int *n);
bool fe_num_in(fe_call *, int i, const char *what, double *x); /* one known number */

int64_t fe_attr_i(const fe_call *, const char *name, int64_t absent);
double fe_attr_f(const fe_call *, const char *name, double absent);
const char *fe_attr_s(const fe_call *, const char *name, const char *absent);
const int64_t *fe_attr_is(const fe_call *, const char *name, int *n); /* NULL: absent */

/* A tensor of the file as known value; NULL: said why. */
fe_val *fe_load_known(fe_call *, const fe_tensor *);

/* Shorthands; NULL operands pass through. */
const ir_type *fe_type(fe_call *, ir_dtype, int rank, const int64_t *dim);
fe_val *fe_ew1(fe_call *, ir_opcode, fe_val *);
fe_val *fe_ew2(fe_call *, ir_opcode, fe_val *, fe_val *);
fe_val *fe_num(fe_call *, ir_dtype, double);
/* With a number of its own type. */
fe_val *fe_with(fe_call *, ir_opcode, fe_val *, double);
fe_val *fe_splat(fe_call *, const ir_type *, double);
fe_val *fe_reshape(fe_call *, fe_val *, int rank, const int64_t *dim);
fe_val *fe_expand(fe_call *, fe_val *, int rank, const int64_t *dim);
fe_val *fe_permute(fe_call *, fe_val *, const int64_t *perm);
fe_val *fe_convert(fe_call *, fe_val *, ir_dtype);
fe_val *fe_slice(fe_call *, fe_val *, int axis, int64_t start, int64_t step, int64_t n);
fe_val *fe_concat(fe_call *, int n, fe_val *const *, int axis);
fe_val *fe_gather(fe_call *, fe_val *, fe_val *indices, int axis);
bool fe_axis(fe_call *, int64_t axis, int rank,
             int *out); /* negative ones count back */

/* ---- onnx_facts.c ---- */
/* Roles of inputs, vocabulary, pad id, labels, family; params that are not weights become
 * constants. false: said why. */
bool fe_facts(fe_imp *);
/* Is it a buffer of PyTorch's model, such as slopes of ALiBi? Its exporters keep parameters in
 * initializers, nameless only where they are matrices or vectors. */
bool fe_is_buffer(const fe_imp *, const fe_param *);

/* ---- onnx_tables.c ---- */
/* Do the values of a param say that it is no weight: a mask to be added to scores, slopes of
 * ALiBi, or sines and cosines? */
bool fe_is_table(fe_imp *, const ir_param *);

/* ---- onnx_report.c ---- */
void fe_report_import(fe_imp *);

#endif
