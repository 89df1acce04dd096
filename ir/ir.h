/* ir.h -- the program that every pass reads and rewrites.
 *
 * A module is a list of params and up to two functions, `step` (training) and `eval`
 * (forward only). A function is a list of blocks that run in order, without branches; a
 * block is one unit (embedding, layer i, head) in one phase; a block is a list of ops.
 * The loop over micro-batches and steps is the trainer's: fwd and bwd blocks of `step` are
 * one micro-step, update blocks run once a step.
 *
 * Everything lives in the module's arena. Types and strings are interned: compare with ==.
 * The text form is in docs/ir.md; print and parse are inverse to each other.
 */
#ifndef EFFICC_IR_H
#define EFFICC_IR_H

#include "base.h"
#include "diag.h"

enum { IR_MAX_RANK = 8, IR_FORMAT = 1 };

typedef enum ir_dtype {
#define DTYPE(name, text, bits, is_float) IR_##name,
#include "dtypes.def"
#undef DTYPE
    IR_NDTYPES
} ir_dtype;

typedef enum ir_opcode {
#define OP(name, ...) IR_OP_##name,
#include "ops.def"
#undef OP
    IR_NOPS
} ir_opcode;

typedef enum ir_attr_key {
#define ATTR(name, kind, need, doc) IR_ATTR_##name,
#include "attrs.def"
#undef ATTR
    IR_NATTRS
} ir_attr_key;

/* A named dimension: its size may vary from batch to batch, up to the known maximum that
 * stands in ir_type.dim. Printed "rows:96". */
typedef enum ir_sym { IR_FIXED, IR_ROWS, IR_SUP } ir_sym;

typedef struct ir_type { /* interned in the ctx: compare with == */
    ir_dtype dtype;
    uint8_t rank;
    bool sharded;             /* "/dp": this rank holds its part of the flat buffer */
    uint8_t sym[IR_MAX_RANK]; /* ir_sym */
    int64_t dim[IR_MAX_RANK];
} ir_type;

typedef struct ir_value ir_value;
typedef struct ir_param ir_param;
typedef struct ir_op ir_op;
typedef struct ir_block ir_block;
typedef struct ir_func ir_func;
typedef struct ir_module ir_module;

struct ir_value {     /* an op's result, a function's argument (def NULL) or a param */
    const char *name; /* interned, unique in its function; never renumbered */
    const ir_type *type;
    ir_op *def;      /* NULL for arguments and params */
    ir_param *param; /* NULL unless a param */
    uint32_t nuse;   /* kept by ir_set_arg() and friends; the verifier recounts it */
    void *aux;       /* scratch of the running pass; meaningless between passes */
};

typedef struct ir_attr {
    ir_attr_key key;
    int n; /* elements of a list */
    union {
        int64_t i;
        double f;
        const char *s;
        const int64_t *l;
    } u;
} ir_attr;

struct ir_op {
    ir_opcode code;
    int narg, nres, nattr;
    ir_value **arg, **res;
    ir_attr *attr;   /* sorted by key */
    const char *loc; /* ONNX node it comes from; a new op copies it from an old one */
    ir_block *block;
    ir_op *prev, *next;
};

typedef enum ir_phase { IR_FWD, IR_BWD, IR_UPDATE } ir_phase;

struct ir_block {
    const char *name;
    ir_phase phase;
    int unit; /* index into ir_module.units */
    ir_op *first, *last;
    ir_func *func;
    ir_block *prev, *next;
};

struct ir_func {
    const char *name; /* "step" or "eval" */
    EF_VEC(ir_value *) args;
    ir_block *first, *last;
    ir_module *module;
    ef_map names, suffixes; /* private to names.c: name -> value; stem -> next suffix */
};

/* Where a param's first contents come from. */
typedef enum ir_init {
    IR_INIT_NONE,   /* gradient and state buffers: zero */
    IR_INIT_FILE,   /* bytes of a file: path, at, of dtype file_dtype, row-major */
    IR_INIT_VALUES, /* literal values, in `values`, printed run-length coded */
    IR_INIT_ZERO,
    IR_INIT_KAIMING, /* U(-1/sqrt(k), 1/sqrt(k)), k = the last dimension (PEFT's A) */
    IR_INIT_NORMAL   /* N(0, 0.02), a new classifier's weight */
} ir_init;

/* Scale of a loss scaler before the first step (torch.amp.GradScaler). */
#define IR_FIRST_SCALE 65536.0

typedef enum ir_pclass {
    IR_TRAIN,  /* trained: has a gradient and optimizer state; f32 master weights */
    IR_FROZEN, /* a weight that is not trained */
    IR_CONST,  /* not a weight: folded tables, masks */
    IR_GRAD,   /* gradient buffer of `of` */
    IR_STATE,  /* optimizer state of `of` */
    IR_IMAGE,  /* `of`, trained or frozen, in the compute type; kept so by optim */
    IR_SCALER, /* state of the loss scaler of fp16, f32[4], in unit 0; see op rescale */
    IR_NCLASSES
} ir_pclass;

/* What a param is for; decides names in the trainer's results. */
typedef enum ir_prole {
    IR_BASE,   /* a tensor of the model */
    IR_LORA_A, /* [r,in], an adapter on module `module` */
    IR_LORA_B, /* [out,r] */
    IR_HEAD,   /* of the new head: head.weight, head.bias */
    IR_MODULE  /* of the model, trained whole beside adapters (modules_to_save) */
} ir_prole;

struct ir_param {
    ir_value *value; /* name and type */
    ir_pclass cls;
    ir_prole role;
    int unit; /* the unit whose flat buffer holds it; a tied one is in the root unit, 0 */
    ir_init init;
    const char *path;     /* IR_INIT_FILE */
    uint64_t at;          /*   byte offset */
    ir_dtype file_dtype;  /*   element type in the file; converted on reading */
    const double *values; /* IR_INIT_VALUES: one a element */
    const char *onnx;     /* initializer it comes from; NULL: not in the file */
    /* Other initializers that are copies of it (ties): the first character is '=' for the
     * same layout, 'T' for the transposed one. */
    EF_VEC(const char *) also;
    const char *hf;  /* parameter name in PyTorch, "a.b.weight"; NULL: unknown */
    bool transposed; /* PyTorch's layout is the transpose of this one */
    int shift; /* this is PyTorch's parameter + shift: a norm of Gemma's scales by 1 + w */
    const char *module; /* adapters: PyTorch module they sit on */
    const char *part;   /* adapters on row ranges: "q" or "v"; else NULL */
    int64_t part_start, part_len, part_of; /* rows [start, start+len) of part_of */
    /* or part_len rows in blocks of part_block, part_stride apart; 0: they are together */
    int64_t part_block, part_stride;
    ir_param *of;    /* IR_GRAD, IR_STATE, IR_IMAGE */
    int64_t offset;  /* plan: bytes into the unit's buffer of its class; -1: none */
    const char *loc; /* where the initializer stands; the same use as ir_op.loc */
};

typedef struct ir_meta {
    const char *key, *value;
} ir_meta;

struct ir_module {
    ef_ctx *ctx;
    ef_arena *arena;
    EF_VEC(const char *) passes; /* names of the passes that have run, in order */
    EF_VEC(const char *) units;  /* names: "embeddings", "layer.0", .., "head" */
    EF_VEC(ir_meta) meta; /* facts that are not code, see below; printed in order */
    EF_VEC(ir_param *) params;
    ir_func *step, *eval;   /* NULL: not made yet */
    unsigned facts;         /* set of pass_fact that holds */
    ef_map names, suffixes; /* private to names.c, of the params, as in ir_func */
    ef_map lines;           /* private to parse.c and verify.c: what -> "line:col" */
};
/* Keys of meta that passes and codegen read (all optional):
 *   model      path of the ONNX file             task       causal-lm, seq-cls, ...
 *   batch seq  sizes of one micro-batch          vocab      token ids are below it
 *   labels     number of classes or values       pad        the graph's own pad id
 *   family     gpt2, bert, ...                   exporter   for the report
 *   input.X    role of argument X: ids mask types positions labels
 *              values scale keys key row offsets position sup pooled
 *   precision  fp32, bf16 or fp16                sizes.rows sizes.sup  of that named
 *              dimension, ascending, by blanks; the last is the most
 *   unpad.pin  position whose row is always computed; absent: none
 *   dropout.places  of the family, see families.def
 *   outputs    the graph's output names, in the order of the import's ret, by commas
 *   pool pool.mask head.input   of a new head, see fe_write_template()
 *   lora.r lora.alpha lora.scale                 (written by pass lora)
 *   option.X   option --X as it was given to a pass, see late.c
 *   arena_bytes bound_bytes                      (written by pass plan)           */
const char *ir_meta_get(const ir_module *, const char *key); /* NULL: absent */
void ir_meta_set(ir_module *, const char *key, const char *value);
int64_t ir_meta_int(const ir_module *, const char *key, int64_t absent);

/* ---- tables ---- */
enum {
    IR_PURE = 1,
    IR_EFFECT = 2,
    IR_EW = 4,
    IR_VIEW = 8,
    IR_ACC = 16,
    IR_TYPED = 32,
    IR_INPLACE = 64,
    IR_SHARDWISE = 128,
    IR_LAST_INF = 256,
    IR_ROWWISE = 512
};
typedef enum ir_cast { IR_CAST_LOW, IR_CAST_FULL, IR_CAST_WIDE, IR_CAST_KEEP } ir_cast;

typedef struct ir_opinfo { /* one row of ops.def */
    const char *name, *doc;
    int narg, narg_max, nres, nres_max; /* -1: any number */
    unsigned flags;                     /* IR_PURE .. IR_ROWWISE */
    ir_cast cast;
    uint64_t attrs; /* set of 1 << ir_attr_key */
    /* Result types of op from its operands and attributes into out[]; op->res[i]->type
     * holds the given type where the row has T. NULL, or what is wrong (static or ctx). */
    const char *(*shape)(ef_ctx *, const ir_op *, const ir_type **out);
} ir_opinfo;
extern const ir_opinfo ir_ops[IR_NOPS];
ir_opcode ir_op_by_name(const char *); /* IR_NOPS: none */

typedef struct ir_attrinfo {
    const char *name, *doc;
    char kind; /* i f s l */
    bool need; /* an op that accepts it must have it */
} ir_attrinfo;
extern const ir_attrinfo ir_attrs[IR_NATTRS];

typedef struct ir_dtypeinfo {
    const char *name;
    int bits;
    bool is_float;
} ir_dtypeinfo;
extern const ir_dtypeinfo ir_dtypes[IR_NDTYPES];

/* ---- types ---- */
const ir_type *ir_type_get(ef_ctx *, ir_dtype, int rank, const int64_t *dim);
/* Are rank and dims within what the IR represents (rank <= IR_MAX_RANK, dims >= 0, at most
 * 2^40 elements)? Check sizes from files with it before making a type of them. */
bool ir_dims_ok(int rank, const int64_t *dim);
const ir_type *ir_type_intern(ef_ctx *, const ir_type *); /* with named dims, /dp */
const ir_type *ir_type_with(ef_ctx *, const ir_type *, ir_dtype); /* other dtype */
int64_t ir_type_count(const ir_type *); /* elements at the maximum of named dims */
int64_t ir_type_bytes(const ir_type *); /* i4: two a byte, rounded up */
const char *ir_type_text(ef_ctx *, const ir_type *); /* "f32[2,16,64]", interned */
/* Row-major strides of a dense t where it is broadcast to `rank` dimensions: 0 where it has
 * one element. */
void ir_strides(const ir_type *t, int rank, int64_t *stride);
/* Fewest dimensions that step n operands through the same elements; the strides of operand k
 * are stride[k]. Returns their number. */
int ir_collapse(int rank, int64_t *dim, int n, int64_t (*stride)[IR_MAX_RANK]);
/* Shape of a and b broadcast as in numpy; NULL: they do not fit. dtype of a. */
const ir_type *ir_type_broadcast(ef_ctx *, const ir_type *a, const ir_type *b);

/* ---- building and rewriting ---- */
ir_module *ir_module_new(ef_ctx *); /* own arena */
void ir_module_free(ir_module *);
/* "step" or "eval"; sets the module's field. */
ir_func *ir_func_new(ir_module *, const char *name);
ir_value *ir_arg_new(ir_func *, const char *name, const ir_type *);
int ir_unit_new(ir_module *, const char *name);
ir_block *ir_block_new(ir_func *, const char *name, ir_phase, int unit); /* appended */
/* Name made unique in the module and reduced to [A-Za-z0-9_./-]. */
ir_param *ir_param_new(ir_module *, const char *name, const ir_type *, ir_pclass,
                       int unit);
ir_param *ir_param_by_name(const ir_module *, const char *name); /* NULL: none */
/* PyTorch module that it belongs to: `module`, else its name up to the last dot; interned. */
const char *ir_param_module(ef_ctx *, const ir_param *);
void ir_param_unlink(ir_module *, ir_param *); /* must have no uses, nor be owner */
/* NULL: none. */
ir_param *ir_grad_of(const ir_module *, const ir_param *);  /* its IR_GRAD */
ir_param *ir_image_of(const ir_module *, const ir_param *); /* its IR_IMAGE */
ir_param *ir_scaler(const ir_module *);                     /* the IR_SCALER */
/* A new argument of step in which the host puts its data of that role (meta input.NAME). */
ir_value *ir_input_new(ir_module *, const char *name, const char *role,
                       const ir_type *);

typedef struct ir_builder { /* where new ops go, and their location */
    ir_module *m;
    ir_func *f;
    ir_block *block;
    ir_op *before;   /* insert before this op; NULL: at the end of block */
    const char *loc; /* copied into new ops */
} ir_builder;
ir_builder ir_at(ir_op *);    /* before op, with its loc */
ir_builder ir_after(ir_op *); /* behind op, with its loc */
ir_builder ir_end(ir_block *, const char *loc);

/* Inserts an op where the builder points, and returns it. attr: its attributes in any
 * order, lists are copied. Result types follow from the shape rule; for ops with flag T,
 * `given` is the type of the result. Results are named `name` (NULL: the op's), made unique
 * by .1, .2; nres < 0: as many as the row has at least. A violated shape rule is a bug of
 * ours (exit 70): check what comes from a file with ir_check() first. */
ir_op *ir_insert(ir_builder *, ir_opcode, const char *name, int narg,
                 ir_value *const *arg, int nattr, const ir_attr *attr,
                 const ir_type *given, int nres);
/* The same for ops with one result. */
ir_value *ir_emit(ir_builder *, ir_opcode, const char *name, int narg,
                  ir_value *const *arg, int nattr, const ir_attr *attr,
                  const ir_type *given);
/* What the shape rule says of such an op without building it; NULL: fine. */
const char *ir_check(ir_module *, ir_opcode, int narg, ir_value *const *arg, int nattr,
                     const ir_attr *attr, const ir_type *given);
ir_value *ir_ew1(ir_builder *, ir_opcode, const char *name, ir_value *a);
ir_value *ir_ew2(ir_builder *, ir_opcode, const char *name, ir_value *a, ir_value *b);
ir_value *ir_const(ir_builder *, const char *name, const ir_type *, double value);
static inline ir_attr
ir_attr_i(ir_attr_key k, int64_t i)
{
    return (ir_attr){k, 0, {.i = i}};
}
static inline ir_attr
ir_attr_f(ir_attr_key k, double f)
{
    return (ir_attr){k, 0, {.f = f}};
}
static inline ir_attr
ir_attr_s(ir_attr_key k, const char *s) /* interned */
{
    return (ir_attr){k, 0, {.s = s}};
}
static inline ir_attr
ir_attr_l(ir_attr_key k, int n, const int64_t *l)
{
    return (ir_attr){k, n, {.l = l}};
}

/* Attributes of an op; absent ones give `absent`. Setting adds or replaces. */
const ir_attr *ir_attr_get(const ir_op *, ir_attr_key);
int64_t ir_attr_int(const ir_op *, ir_attr_key, int64_t absent);
double ir_attr_num(const ir_op *, ir_attr_key, double absent);
void ir_attr_set(ir_module *, ir_op *, ir_attr); /* lists are copied */
void ir_attr_remove(ir_op *, ir_attr_key);

void ir_set_arg(ir_op *, int i, ir_value *);
/* Gives the value (an op's result or an argument of f) the name, made unique. To pass a
 * name on from a replaced value, remove that one first. */
void ir_rename(ir_func *f, ir_value *, const char *name);
void ir_add_arg(ir_module *, ir_op *, ir_value *);
void ir_cut_args(ir_op *, int n); /* only the first n stay */
void ir_replace_uses(ir_func *, ir_value *old, ir_value *with); /* in this function */
/* As above, only in ops behind `after` in the order of the function. */
void ir_replace_uses_after(ir_op *after, ir_value *old, ir_value *with);
void ir_move_before(ir_op *, ir_op *where);
void ir_remove(ir_op *); /* results must have no uses; drops its uses of operands */
bool ir_is_dead(const ir_op *);   /* pure and no result is used */
ir_op *ir_next_op(const ir_op *); /* crosses block edges; NULL at the end */
ir_op *ir_first_op(const ir_func *);
bool ir_op_before(const ir_op *a, const ir_op *b); /* a runs before b; linear search */
/* Users of every value, in order: built once by a pass that needs it (scratch arena). */
typedef struct ir_uses {
    ef_map of; /* ir_value* -> ir_uselist* */
} ir_uses;
typedef struct ir_uselist {
    EF_VEC(ir_op *) op; /* an op that uses the value twice is in it twice */
} ir_uselist;
ir_uses *ir_uses_of(const ir_func *, ef_arena *scratch);
const ir_uselist *ir_users(const ir_uses *, const ir_value *); /* never NULL */
/* Is it one element, of a const op or of a param with literal values? */
bool ir_is_const_scalar(const ir_value *, double *value);
/* Deep copy of the fwd blocks of `from` as a new function; values map through *map
 * (ir_value* -> ir_value*), params are shared. */
ir_func *ir_clone_fwd(ir_func *from, const char *name, ef_map *map);

#define IR_FOREACH_BLOCK(b, f) for (ir_block *b = (f)->first; b; b = b->next)
/* The op may be removed in the body. */
#define IR_FOREACH_OP(o, b) \
    for (ir_op *o = (b)->first, *o##_next; o && (o##_next = o->next, 1); o = o##_next)

/* n blocks of `width` columns, `stride` >= width apart, from `first` on. */
typedef struct ir_columns {
    int64_t first, n, width, stride;
} ir_columns;
/* What an adapter's op covers of operand 0: len columns in all. */
ir_columns ir_adapted_columns(const ir_op *, int64_t len);
/* May the two have a column in common? False is certain. */
bool ir_columns_meet(const ir_columns *, const ir_columns *);
/* Are q, k and v of an attention (operands at, at+1, at+2) one value, of which each has
 * columns of its own? Then the gradient may be one value, too. */
bool ir_attention_packed(const ir_op *, int at);

/* ---- drop.c: what dropout is keyed by; see there ---- */
/* The argument of step of role key, made if there is none; likewise that of role keys,
 * [batch,seq]; NULL: there is one, of another shape, or a size is not known. */
ir_value *ir_drop_key(ir_module *);
ir_value *ir_drop_keys(ir_module *, int64_t batch, int64_t seq);
/* Keys for the rows of a value of type x, from those of all tokens. NULL: they do not fit, x
 * has no dimensions by which its rows could be told apart. */
bool ir_drop_keys_fit(const ir_value *keys, const ir_type *x);
ir_value *ir_drop_keys_of(ir_builder *, ir_value *keys, const ir_type *x);
/* One more than the largest site that is taken. */
int64_t ir_drop_sites(const ir_module *);

/* ---- text ---- */
/* Canonical text of the module. */
void ir_print(const ir_module *, ef_buf *);
/* The same but for where the model's file lies: what a hash of the program is made of. */
void ir_print_unplaced(const ir_module *, ef_buf *);
void ir_print_op(const ir_op *, ef_buf *); /* one line, without newline */
/* NULL: said why, with line and column. `file` is for diagnostics. */
ir_module *ir_parse(ef_ctx *, const char *file, const char *text);
/* One HTML page with a column per pass. ir[i] is the text after pass name[i]; a click on a
 * value marks it in every column; equal neighbours are merged. */
void ir_html(FILE *, const char *title, int n, const char *const *name,
             const char *const *ir);
/* docs/ir.md, the tables part, generated from the .def files. */
void ir_print_docs(FILE *);

/* ---- verifier ---- */
/* Number of errors reported; invariants V1.. are listed in verify.c. */
int ir_verify(const ir_module *);

/* ---- data of params ---- */
/* Elements [first, first+n) of a param with data (FILE, VALUES, ZERO; KAIMING and NORMAL by
 * counter-based generator keyed by seed and the param's name), converted to float. false:
 * said why. Reads with pread: no more memory than the caller's. */
bool ir_read_f32(ir_module *, const ir_param *, uint64_t seed, int64_t first, int64_t n,
                 float *out);
bool ir_read_f64(ir_module *, const ir_param *, uint64_t seed, int64_t first, int64_t n,
                 double *out); /* integers exact below 2^53 */

/* ---- interpreter: the oracle ---- */
typedef struct ir_tensor {
    const ir_type *type; /* dims at their actual size (named dims may be smaller) */
    double *data;        /* row-major, each value rounded to the dtype */
} ir_tensor;
typedef struct ir_hyper { /* what the trainer's options give the update ops */
    double lr, weight_decay, beta1, beta2, eps, max_norm;
    double momentum; /* of SGD */
    int64_t step;    /* of AdamW's bias correction, counts from 1 */
    bool sgd;        /* else AdamW */
    bool nesterov;
    bool decay_all; /* else matrices and embeddings only (rank >= 2) */
} ir_hyper;
typedef struct ir_env {
    ef_arena *arena;
    /* ir_value* -> ir_tensor*: arguments in, params (lazily read), results out */
    ef_map of;
    ir_hyper hyper;
    uint64_t seed;
    bool exact; /* floats are not rounded: for checks of gradients by differences */
} ir_env;
/* Runs blocks of the phases in `phases` (1 << ir_phase), in order, in double, each result
 * rounded to its dtype. Params are read into env at first use and then changed in place by
 * accum and optim. false: said why. */
bool ir_interp(const ir_func *, unsigned phases, ir_env *);
/* One op of a function in the same way, on what env holds. */
bool ir_interp_op(const ir_op *, ir_env *);
ir_tensor *ir_env_get(const ir_env *, const ir_value *); /* NULL: not there */
ir_tensor *ir_env_new(ir_env *, const ir_value *); /* zeroed, of the value's type */
/* What a trainer does before a step. */
void ir_env_zero_grads(const ir_module *, ir_env *);
/* Evaluates one pure op: used by constant folding and by mask probing. */
bool ir_eval_op(ef_ctx *, const ir_op *, const ir_tensor *const *arg, ir_tensor *res,
                ef_arena *);
double ir_from_half(uint16_t bits);   /* IEEE 754 binary16 */
double ir_from_bfloat(uint16_t bits); /* the upper half of a binary32 */
/* Is it a type of 16 bits that stands in for f32? */
static inline bool
ir_is_low(ir_dtype d)
{
    return d == IR_F16 || d == IR_BF16;
}
double ir_round(ir_dtype, double); /* to the dtype, nearest even; integers truncate */

#endif
