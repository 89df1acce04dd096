/* efficc_rt.h -- everything that a generated program may call or fill in.
 *
 * One ABI for all targets. A generated step.c holds straight-line calls of the kernels
 * below; plan.h holds the tables of rt_program; rt_main() does the rest. Nothing here
 * allocates in a step: buffers come from the plan, library objects are made at start.
 *
 * Conventions: the first argument is the stream; then results, then operands, then sizes.
 * Tensors are dense and row-major, shapes stand in comments as [rows, cols]. `float *` is
 * float; `void *` holds elements of the rt_dtype that the call's description says: float, or
 * a low type, which is 16 bits in memory and float in all arithmetic, rounded to nearest even
 * when it is stored. Token data is int64_t. No kernel depends on the thread count:
 * reductions use a fixed number of blocks. A pointer may not overlap another, except where
 * it says "may be".
 */
#ifndef EFFICC_RT_H
#define EFFICC_RT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RT_ABI = 6, RT_ALIGN = 64, RT_IGNORE = -100, RT_MAX_RANK = 8, RT_SIZES = 8 };

/* rt_stream: order of execution; CPU: the caller's own order. rt_future: a collective in
 * flight; none exists on one rank. */
typedef struct rt_stream rt_stream;
typedef struct rt_future rt_future;

/* ---- what the generated program tells the runtime ---- */

/* Classes of the flat buffers: each unit has one buffer of each class. */
typedef enum rt_class {
    RT_TRAIN,
    RT_GRAD,
    RT_STATE_M,
    RT_STATE_V,
    RT_FROZEN,
    RT_CONST,
    RT_IMAGE,  /* trained or frozen params in the compute type, beside the float ones */
    RT_SCALER, /* of unit 0: float[4], see rt_rescale() */
    RT_NCLASSES,
    RT_ARENA = RT_NCLASSES /* of an rt_tensor: in no class, in the arena */
} rt_class;

typedef enum rt_role {
    RT_BASE,   /* a tensor of the model file */
    RT_LORA_A, /* [r, in] */
    RT_LORA_B, /* [out, r] */
    RT_HEAD,   /* head.weight, head.bias of a head that efficc added */
    RT_MODULE  /* of the model, trained whole beside adapters (modules_to_save) */
} rt_role;

/* Elements in memory: float, int64_t, uint8_t that is 0 or 1 (IR bool), or a low type in
 * uint16_t. base.safetensors calls them F32, I64, BOOL, F16 and BF16. Trained params are
 * RT_F32. */
typedef enum rt_dtype { RT_F32, RT_I64, RT_BOOL, RT_F16, RT_BF16 } rt_dtype;
typedef uint16_t rt_f16, rt_bf16; /* see efficc_low.h */
/* Sizes that vary from one micro-batch to the next: computed rows, supervised rows. Each
 * takes one of at most RT_SIZES values of the plan; buffers have room for the largest. */
typedef enum rt_sym { RT_FIXED, RT_ROWS, RT_SUP, RT_NSYMS } rt_sym;
/* Key of its __metadata__: XXH3 (64 bits, 16 hexadecimal digits) of all bytes behind its header. */
#define RT_BASE_HASH "xxh3"
/* And where adapted weights are of a low type: rt_base_hash() (peft.h) of the values that the
 * model file has, by which adapters know their base. */
#define RT_SOURCE_HASH "efficc.base"

typedef enum rt_init {
    RT_INIT_FILE,
    RT_INIT_ZERO,
    RT_INIT_KAIMING,
    RT_INIT_NORMAL
} rt_init;

typedef struct rt_param {    /* a tensor of class RT_TRAIN, RT_FROZEN or RT_CONST */
    const char *name;        /* in base.safetensors (RT_INIT_FILE), IR and template */
    const char *onnx;        /* initializer it comes from; NULL: none */
    const char *const *also; /* NULL-terminated: initializers that are copies of it; the
                                first character is '=' or 'T' (transposed copy) */
    const char *hf;          /* PyTorch's parameter name; NULL: unknown */
    bool transposed;         /* PyTorch's layout is the transpose of ours */
    float shift; /* ours is PyTorch's parameter + shift, on which weight decay acts */
    rt_class cls;
    rt_role role;
    rt_dtype dtype;
    rt_init init;
    int unit;
    int64_t offset, n; /* bytes into the unit's buffer of cls; elements */
    int64_t image;     /* bytes into its buffer of RT_IMAGE; -1: it has none */
    rt_dtype image_dtype;
    int rank;
    int64_t dim[RT_MAX_RANK];
    const char *module; /* adapters: PyTorch module they sit on */
    const char *part;   /* adapters on row ranges: "q", "v"; else NULL */
    /* output features [part_start, part_start+part_len) of part_of */
    int64_t part_start, part_len, part_of;
    /* or part_len of them in blocks of part_block, part_stride apart; 0: together */
    int64_t part_block, part_stride;
} rt_param;

typedef enum rt_input_role {
    RT_IDS,
    RT_MASK,
    RT_TYPES,
    RT_POSITIONS,
    RT_TARGETS,
    RT_VALUES, /* regression: float targets [B, labels]; NaN: not supervised */
    RT_SCALE,
    /* of a program that computes no padding; s is a position of sample b */
    RT_ROW, /* [rows] b * S + s of each computed row, ascending; 0 behind the last */
    RT_OFFSETS,  /* [B + 1] the first row of each sample, and how many rows there are */
    RT_POSITION, /* [rows] s of each row; 0 behind the last */
    RT_SUPERVISED, /* [sup] number of each supervised row among the rows; RT_TARGETS is
                      [sup] then, too, RT_IGNORE behind the last */
    RT_POOLED,     /* [B] number of the row at position rt_program.pin of each sample */
    /* of dropout */
    RT_DROP_KEYS, /* [B,S] number of the row within the step's batch << 24 | s */
    RT_DROP_KEY   /* [1] of the seed and the step */
} rt_input_role;

typedef struct rt_input { /* an argument of step and eval */
    const char *name;
    rt_input_role role;
    int rank;
    int64_t dim[RT_MAX_RANK]; /* int64_t elements; RT_VALUES, RT_SCALE: float */
    bool used; /* false: the graph takes it but the loss does not need it */
    /* values must be below it: rows of the smallest table that they index; 0: none */
    int64_t limit;
    rt_sym vary; /* dim[0] is the most of it */
} rt_input;

/* What else a product gives; cuBLASLt does it before C goes to memory. batch and alpha are 1. With
 * RT_GELU and RT_DGELU C is not added to, and H and C are dense and of one type; the GELU may be
 * that of H as it was rounded, and the product rounded before the derivative multiplies it. */
typedef enum rt_epilogue {
    RT_NO_EPILOGUE,
    RT_GELU, /* H [M,N] = the product and the bias; C = gelu_tanh(H), see elementwise.def */
    RT_DGELU, /* C = the product times the derivative of gelu_tanh at H [M,N] */
    RT_SUM_A, /* also float [M]: sums over k of op(A), which is transposed; C may be added to */
    RT_SUM_B /* also float [N]: sums over k of op(B), which is not; C may be added to */
} rt_epilogue;

/* C[M,N] = alpha op(A) op(B) + bias[N] (+ C). op(A) [M,K] is A, or with ta the transpose of
 * A [K,M]; likewise tb for B. ld*: elements from one row in memory to the next. batch > 1:
 * that many independent products, s* elements apart (0: the same operand each time).
 * scratch: bytes of library scratch space that the plan gives. vary_m, vary_k: m or k is the
 * largest of these sizes. A, B and C have the dtypes a, b, c; of a and b both or none is
 * RT_F32. */
typedef struct rt_gemm_desc {
    int64_t m, n, k;
    rt_sym vary_m, vary_k;
    rt_dtype a, b, c;
    bool ta, tb, bias, add; /* add: C += instead of C = */
    rt_epilogue epilogue;
    bool add_sum; /* RT_SUM_*: += */
    float alpha;
    int64_t lda, ldb, ldc;
    int64_t batch, sa, sb, sc;
    int64_t scratch;
} rt_gemm_desc;

/* Heads of an attention. Query head h of row (b,t) is q[(b*S+t)*ldq + qo + h*qs ..+d]; it
 * uses key head h / (heads/kv_heads). y is [B,S,heads*d], lse [B,heads,S]. All but lse have
 * dtype `type`. p: weights are dropped with this probability, as rt_dropout() does it, and
 * the others divided by 1 - p: of query and key with keys k and positions i, j in head h by
 * word j % 4 of counter (low k, high k, j / 4 | h << 20, site). */
typedef struct rt_attn {
    int64_t batch, seq, heads, kv_heads, d;
    rt_dtype type;
    float p;
    int64_t site;
    int64_t ldq, ldk, ldv, qo, ko, vo, qs, ks, vs;
    int64_t window;       /* query t sees keys > t - window only; 0: no such limit */
    float scale, softcap; /* scores s become c tanh(s / c); 0: they stay */
    bool causal;
} rt_attn;

/* What an attention works on beside q, k and v. With offsets it is of rows: q, k, v
 * [rows,*], y [rows,heads*d], lse [rows,heads]; sample b is rows offsets[b] .. offsets[b+1],
 * in their original order, for causal; rows behind the last sample give 0. */
typedef struct rt_attn_at {
    const int64_t *mask; /* [B,S], or [rows]: nonzero = may be attended to; NULL: all */
    const int64_t *offsets;    /* [batch + 1]; NULL: [B,S,*] */
    const int64_t *position;   /* [rows] original ones, for the window and for p */
    const int64_t *keys, *key; /* of rt_dropout() */
    int64_t rows;              /* of this micro-batch */
} rt_attn_at;

/* A head over a vocabulary. x, dx and w have dtype `type`. */
typedef struct rt_head {
    int64_t rows, h, v, chunk;
    bool tb;
    rt_dtype type;
} rt_head;

/* Floats, or elements of a low type, that a call in micro() reads or writes. */
typedef struct rt_tensor {
    const char *name;     /* of the IR: "%y", "$w" */
    const char *op, *loc; /* that computes it, its ONNX node; NULL: none */
    rt_class cls;
    int unit;
    int64_t offset; /* bytes */
    int rank;
    int64_t dim[RT_MAX_RANK];
    bool infinite; /* may hold infinities by design: of masks, sums over no key */
    rt_dtype dtype;
    rt_sym vary; /* dim[0] is the most of it */
} rt_tensor;

typedef struct rt_op { /* a call in micro(), in their order */
    int unit;
    bool backward;
    const char *also; /* ops of its kernel whose results are never stored; NULL: none */
    int nres, n; /* tensors: results, then operands that the call leaves as they were */
    const int *tensor;
} rt_op;

typedef struct rt_run rt_run;
typedef struct rt_check rt_check;

typedef struct rt_program {
    int abi;
    const char *efficc, *model, *task, *family; /* version; names */
    const char *pool; /* what a head that efficc added reads; "": it added none */
    const char *hash; /* of the schedule */
    int64_t batch, seq, vocab;
    int64_t labels;   /* classes, or values; 0: language model */
    int64_t pad;      /* the token id that fills rows */
    int64_t align;    /* of buffers and what lies in them; bytes */
    int threads;      /* at most; the plan's scratch is for them */
    rt_dtype compute; /* RT_F32, RT_F16 or RT_BF16 */
    bool scaled;      /* with a loss scaler: fp16 */
    /* sizes of each rt_sym, ascending, the last is the most; nsize 0: it is not used */
    int nsize[RT_NSYMS];
    int64_t size[RT_NSYMS][RT_SIZES];
    int64_t pin; /* of every sample the row at this position is computed; -1: none */
    const char *const *cpu_features; /* NULL-terminated, __builtin_cpu_supports */
    int nunit;
    const char *const *unit;                  /* names */
    const int64_t (*unit_bytes)[RT_NCLASSES]; /* of each unit's buffers */
    int nparam;
    const rt_param *param;
    int ninput;
    const rt_input *input;
    int ngemm;
    const rt_gemm_desc *gemm;
    int nop; /* calls in micro(), and what they work on */
    const rt_op *op;
    const rt_tensor *tensor;
    int64_t arena_bytes, bound_bytes;
    /* offsets in the arena of the functions' results; -1: none */
    int64_t loss_at, norm2_at;           /* float, float */
    int64_t eval_loss_at, eval_right_at; /* float, int64_t */
    int64_t eval_prob_at, eval_pred_at;  /* float [.., labels] | int64_t [..] */
    int64_t eval_value_at; /* regression: float [B, labels]; it has no right answers */
    int64_t eval_row_loss_at; /* float, one a target (regression: a row): losses before
                                 scale; 0 where nothing is supervised */
    /* LoRA; r 0: none */
    int64_t lora_r;
    double lora_alpha, lora_scale;
    bool lora_rows;                  /* adapters sit on row ranges of a fused matrix */
    bool lora_fan_in_fan_out;        /* PyTorch's module is a Conv1D */
    const char *const *lora_targets; /* NULL-terminated module names for the config */
    const char *const *modules_to_save; /* NULL-terminated */
    void (*micro)(rt_run *);  /* fwd and bwd of one micro-batch; gradients add up */
    void (*update)(rt_run *); /* norm, clip, optimizer */
    void (*eval)(rt_run *);
} rt_program;

typedef struct rt_hyper {                                 /* of the step that runs */
    double lr, weight_decay, beta1, beta2, eps, max_norm; /* max_norm 0: no clipping */
    double momentum;                                      /* of SGD */
    int64_t step;                                         /* from 1 */
    bool sgd, nesterov, decay_all;                        /* decay_all: vectors too */
} rt_hyper;

struct rt_run { /* the state that step.c addresses */
    const rt_program *program;
    rt_stream *compute;
    char *arena;
    char **base[RT_NCLASSES]; /* base[class][unit] */
    char *device;      /* of the device part: rt_device_bytes(), an rt_tally first */
    void **input;      /* input[i]: int64_t data, or one float */
    void **host_input; /* where the host fills them before they are uploaded */
    rt_hyper hyper;
    int64_t size
        [RT_NSYMS]; /* of the micro-batch: a value of program->size; see rt_set_sizes() */
    rt_check *check;      /* what the checking mode found; NULL: it is off */
    struct rt_host *host; /* of the host part */
    bool direct; /* CUDA, set before rt_prepare(): no graphs, each call is launched */
};

/* Call number op of micro() has run: in the checking mode its results are looked at. */
void rt_check_op(rt_run *, int op);
static inline void
rt_done(rt_run *run, int op)
{
    if (run->check)
        rt_check_op(run, op);
}

/* The trainer's main(): options, data, loop, results. Returns the exit code. */
int rt_main(int argc, char **argv, const rt_program *);
/* Exit codes of the trainer. */
enum { RT_OK = 0, RT_USER = 1, RT_BUG = 70, RT_STOPPED = 75 };
/* "trainer: error: ..." where errors go, in a line of its own whatever stood in the terminal; a
 * "\n" in the text begins a line of advice. Returns code. For the device part, too. */
int rt_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line of the report, its subject in the first column; the device part's notes, too. */
void rt_say(const char *subject, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- device part (runtime/cpu, runtime/cuda): called by the host part ----
 * Units, arena and inputs lie in the device's memory. On the CPU that is memory like any other;
 * the host part may not assume it and goes through the copies below. */
/* Does the host address the device's memory? Then rt_run.input and rt_run.host_input are the
 * same, and what one would copy to look at may be looked at. */
extern const bool rt_unified;
/* Is this machine able to run the program at all (driver, features)? Makes the stream and
 * what needs no memory of the program. false: *error says why, and what to do. */
bool rt_device_open(const rt_program *, rt_stream **compute, char *error, size_t n);
void rt_device_close(rt_stream *); /* waits; frees what the device part made */
/* Which device it is and what was prepared, for the report; "": there is nothing to say. */
void rt_device_text(const rt_stream *, char *text, size_t n);
/* Bytes of device memory that its own part needs for the program, a multiple of RT_ALIGN;
 * rt_run.device points to them. */
int64_t rt_device_bytes(const rt_program *);
/* When memory, weights and inputs are there, before the first step: makes everything that
 * rt_execute() of each size needs (CUDA: measured algorithms, graphs). Contents of gradients and
 * arena are lost. false: *error says why. */
bool rt_prepare(rt_run *, char *error, size_t n);
/* What steps leave for the host, at rt_run.device: zero before the first step. The host zeroes
 * `loss` before the first micro-batch of a step and fetches the whole behind its update. */
typedef struct rt_tally {
    double loss;     /* sum of what the micro-batches since then have at loss_at */
    float norm2;     /* of the gradients of the last update, as at norm2_at */
    int32_t halted;  /* set by an update whose loss or norm2 was not finite, but for an
                       overflow that the loss scaler has yet an answer to (scale > 1): it
                       changed nothing, and so will all that follow until the host clears it */
    float scaler[4]; /* RT_SCALER_FLOATS, behind the last update */
} rt_tally;
/* Runs program->micro, update or eval with run->hyper and the sizes of rt_set_sizes() as
 * they are now; in stream order, complete behind rt_await() of a later rt_mark(). With
 * run->check or run->direct the calls are made one by one, as what it looks at wants. */
typedef enum rt_part { RT_MICRO, RT_UPDATE, RT_EVAL } rt_part;
void rt_execute(rt_run *, rt_part);
/* The micro-batch that comes has these sizes: at[s] is an index into program->size[s]. Sets
 * run->size. Before the first call they are the largest. */
void rt_set_sizes(rt_run *, const int at[RT_NSYMS]);
/* Does this machine multiply in the type at its full speed? False for low types that are
 * emulated. Called by efficc, too. */
bool rt_computes(rt_dtype);
/* y [n] = x [n] in the other type. */
void rt_convert(rt_stream *, void *y, rt_dtype to, const void *x, rt_dtype from,
                int64_t n);
/* Zeroed device memory, on the CPU in huge pages touched by all threads. NULL: there is not
 * as much. One is made in a program, and never freed. */
void *rt_alloc(size_t bytes);
/* Bytes of device memory that are free; 0: unknown. */
int64_t rt_free_bytes(void);
/* Host memory that copies read or write while the host goes on; zeroed. NULL: errno. */
void *rt_staging(size_t bytes);
void rt_staging_free(void *); /* what it is a copy of has arrived */
/* In stream order. Staging memory must stay as it is until a later mark is reached; other memory
 * may change once the call returns. */
void rt_upload(rt_stream *, void *device, const void *host, int64_t bytes);
/* In stream order; staging holds the bytes once a later mark is reached. */
void rt_fetch(rt_stream *, void *staging, const void *device, int64_t bytes);
/* Done when it returns; to any host memory. */
void rt_download(rt_stream *, void *host, const void *device, int64_t bytes);
/* A place in the stream's order, ascending from 1. rt_await() returns when all before it is
 * done. A failure of the device ends the process with a message. */
int64_t rt_mark(rt_stream *);
void rt_await(rt_stream *, int64_t mark);

/* Bytes of scratch space that a target's kernels want, asked by efficc while planning: plan and
 * program can't disagree. -1: it can't be done. */
typedef struct rt_scratch {
    int64_t (*gemm)(const rt_gemm_desc *, int threads);
    int64_t (*attention)(const rt_attn *, int threads);
    int64_t (*attention_grad)(const rt_attn *, int threads);
    /* Shared memory of a block of threads. NULL: a target without. */
    int64_t (*attention_shared)(const rt_attn *, bool grad);
    int64_t (*head_ce)(const rt_head *, bool grad,
                       int threads); /* logits of one chunk too */
    int64_t (*embed_grad)(int64_t rows, int64_t h, int64_t v, int threads);
    int64_t (*colsum)(int64_t rows, int64_t cols, int threads);
    int64_t (*layernorm_dwb)(int64_t rows, int64_t cols, int threads);
    int64_t (*rmsnorm_dw)(int64_t rows, int64_t cols, int threads);
} rt_scratch;
extern const rt_scratch rt_cpu_scratch, rt_cuda_scratch;

/* What x [n] holds: how many NaN and infinities, the first of each (-1: none), and the
 * largest finite size. */
typedef struct rt_scan {
    int64_t nans, infs, nan_at, inf_at;
    float largest;
} rt_scan;
/* Waits for it. */
rt_scan rt_scan_floats(rt_stream *, const void *x, rt_dtype, int64_t n);

/* ---- between ranks ----
 * A flat buffer lies in equal parts, one a rank, in rank order. A collective starts on the
 * stream and is complete when rt_wait() on its future returns; until then its buffer may
 * neither be read nor written. On one rank, all that there is yet, a part is the whole
 * buffer, nothing moves, and a future is complete at once. */
struct rt_future {
    bool pending; /* started, and not yet waited for */
    void *event;  /* CUDA, several ranks: when it is complete */
};
/* Every rank has its own part of buf; afterwards all parts. bytes: of the whole buffer. */
void rt_all_gather(rt_stream *, rt_future *, void *buf, int64_t bytes);
/* Afterwards this rank's part of buf holds the sum over ranks of that part, in an order that is
 * the same each time; the other parts hold anything. n: elements of the whole buffer. */
void rt_reduce_scatter(rt_stream *, rt_future *, float *buf, int64_t n);
void rt_wait(rt_stream *,
             rt_future *); /* a future that is not pending: returns at once */

/* ---- kernels; formulas in runtime/cpu, checked against the interpreter ---- */
/* GEMM number g of the program's table. scratch as planned; bias [N] or NULL. */
void rt_gemm(rt_stream *, int g, void *c, const void *a, const void *b,
             const float *bias, void *scratch);
/* The same of a row that says add, C = from + ...: from is C, or dense in C's type. */
void rt_gemm_from(rt_stream *, int g, void *c, const void *from, const void *a,
                  const void *b, const float *bias, void *scratch);
/* The same of a row with an epilogue. with: H, NULL if RT_GELU shall not keep it; or the sums. */
void rt_gemm_with(rt_stream *, int g, void *c, void *with, const void *a, const void *b,
                  const float *bias, void *scratch);
void rt_copy(rt_stream *, void *y, const void *x, int64_t bytes); /* y = x */
void rt_zero(rt_stream *, void *y, int64_t bytes);                /* zero bytes */
void rt_add_to(rt_stream *, float *y, const float *x, int64_t n); /* y += x, both [n] */
/* y = x permuted; elements of `size` bytes; dim: of x. */
void rt_transpose(rt_stream *, void *y, const void *x, int rank, const int64_t *dim,
                  const int *perm, int size);
/* Copies an [outer, n, inner] block of elements of `size` bytes between strided places:
 * y[o*ys + (i*ystep + ystart)*inner ..] = x[o*xs + (i*xstep + xstart)*inner ..]; strides
 * ys, xs in elements. Serves slice, unslice (after rt_zero) and concat. */
typedef struct rt_block_copy {
    int64_t outer, n, inner, ys, ystart, ystep, xs, xstart, xstep;
    int size;
} rt_block_copy;
void rt_move(rt_stream *, void *y, const void *x, const rt_block_copy *);
/* x [outer, n, inner], idx [m]: y [outer, m, inner]; negative indices count from the end. */
void rt_gather(rt_stream *, void *y, const void *x, const int64_t *idx, int64_t outer,
               int64_t n, int64_t inner, int64_t m, int size);
/* dx [outer, n, inner] = 0, then dy [outer, m, inner] added at idx, in order of position. */
void rt_gather_grad(rt_stream *, void *dx, const void *dy, const int64_t *idx,
                    int64_t outer, int64_t n, int64_t inner, int64_t m, rt_dtype);
/* y [rows,cols] = 0 where dropped, else x / (1 - p). Random bits of row r, column c: word c % 4
 * of Philox4x32-10 (Salmon et al., 2011) with key (low, high half of key[0]) and counter (low,
 * high half of keys[r], c / 4, site); dropped where they are below p 2^32. */
typedef struct rt_drop {
    int64_t rows, cols, site;
    float p;
    rt_dtype type;
} rt_drop;
void rt_dropout(rt_stream *, void *y, const void *x /* may be y */, const int64_t *keys,
                const int64_t *key, const rt_drop *);
/* y [rows,h] = table [v,h] at ids [rows]. */
void rt_embed(rt_stream *, void *y, rt_dtype to, const void *table, rt_dtype from,
              const int64_t *ids, int64_t rows, int64_t h);
/* dtable [v,h] (+)= sum of dy rows by id, in order of position. add: +=, else =. */
void rt_embed_grad(rt_stream *, float *dtable, const void *dy, rt_dtype,
                   const int64_t *ids, int64_t rows, int64_t h, int64_t v, bool add,
                   void *scratch);
typedef struct rt_norm { /* x, dx: [rows,cols] of dtype x; y, dy: of dtype y */
    int64_t rows, cols;
    rt_dtype x, y;
    float eps;
} rt_norm;
/* y = (x - mean) rstd w + b over the last dimension; mean, rstd [rows], rstd = 1 /
 * sqrt(variance + eps), variance over cols, not cols - 1; w, b [cols]. */
void rt_layernorm(rt_stream *, void *y, float *mean, float *rstd, const void *x,
                  const float *w, const float *b, const rt_norm *);
/* dx of it; formula in norm.c. */
void rt_layernorm_dx(rt_stream *, void *dx /* may be dy */, const void *dy,
                     const void *x, const float *w, const float *mean,
                     const float *rstd, const rt_norm *);
/* dw [cols], db [cols]; either may be NULL. add_*: += . */
void rt_layernorm_dwb(rt_stream *, float *dw, float *db, const void *dy, const void *x,
                      const float *mean, const float *rstd, const rt_norm *, bool add_w,
                      bool add_b, void *scratch);
/* y = x rstd w over the last dimension, rstd [rows] = 1 / sqrt(mean of squares + eps), w
 * [cols]. */
void rt_rmsnorm(rt_stream *, void *y, float *rstd, const void *x, const float *w,
                const rt_norm *);
void rt_rmsnorm_dx(rt_stream *, void *dx /* may be dy */, const void *dy, const void *x,
                   const float *w, const float *rstd, const rt_norm *);
/* dw [cols]. add: += . */
void rt_rmsnorm_dw(rt_stream *, float *dw, const void *dy, const void *x,
                   const float *rstd, const rt_norm *, bool add, void *scratch);
typedef struct rt_norm_grad_of { /* the norm; type of `low`; add_*: += */
    rt_norm norm;
    rt_dtype low;
    bool add_w, add_b;
} rt_norm_grad_of;
/* The whole gradient of a layer norm, or of an RMS norm (mean NULL): dx = from + d x (from
 * NULL: 0), low = dx in a low type, dw and db as rt_layernorm_dwb() and rt_rmsnorm_dw() give
 * them. low, dw, db: or NULL. scratch: as theirs; NULL without dw. */
void rt_norm_grad(rt_stream *, void *dx, void *low, float *dw, float *db,
                  const void *dy, const void *x, const float *w, const float *mean,
                  const float *rstd, const void *from, const rt_norm_grad_of *,
                  void *scratch);
/* Over cols: y = exp(x - max) / sum; a row of -inf only gives NaN. */
void rt_softmax(rt_stream *, float *y, const float *x, int64_t rows, int64_t cols);
/* dx = y (dy - sum over cols of dy y); 0 in rows whose dy is all 0, though y may be NaN */
void rt_softmax_grad(rt_stream *, float *dx, const float *dy, const float *y,
                     int64_t rows, int64_t cols);
/* y [outer, inner] = reduction of x [outer, n, inner] over n; the sum is multiplied with by
 * (1/n: mean). */
void rt_reduce_sum(rt_stream *, float *y, const float *x, int64_t outer, int64_t n,
                   int64_t inner, float by);
/* The same with the largest element; NaN if one is. */
void rt_reduce_max(rt_stream *, float *y, const float *x, int64_t outer, int64_t n,
                   int64_t inner);
/* y, x [outer, n, inner]: running sums over n, the own element included. */
void rt_cumsum(rt_stream *, int64_t *y, const int64_t *x, int64_t outer, int64_t n,
               int64_t inner);
/* y [cols] (+)= sum over rows of x [rows, cols], rows ld apart. */
void rt_colsum(rt_stream *, float *y, const void *x, rt_dtype, int64_t rows,
               int64_t cols, int64_t ld, bool add, void *scratch);
/* y, x [rows,cols]; cos, sin [table,r], used again from their first row on after the last:
 * y = x but for the first r columns of each head, from start + h*stride on; u, v their halves:
 * u cos - v sin, v cos + u sin, or under `back` the transposed map. */
typedef struct rt_turn {
    int64_t rows, table, cols, heads, start, stride, r;
    bool back;
    rt_dtype type; /* of x and y */
} rt_turn;
void rt_rotary(rt_stream *, void *y, const void *x /* may be y */, const float *cos,
               const float *sin, const rt_turn *);
/* Queries and keys of an attention, by the same tables. */
void rt_rotary2(rt_stream *, void *yq, const void *xq, const rt_turn *, void *yk,
                const void *xk, const rt_turn *, const float *cos, const float *sin);
/* y = softmax(scale q k^T, masked) v per head, lse = log of the sum of exp of the scores.
 * causal: only keys up to the query. A query without a key gives y = 0, lse = -inf. S x S is
 * never stored. */
void rt_attention(rt_stream *, void *y, float *lse, const void *q, const void *k,
                  const void *v, const rt_attn_at *, const rt_attn *, void *scratch);
/* dq, dk, dv have the layouts of q, k, v (ldq, qo, ..), so they may be one packed buffer;
 * columns that no head covers are not written. */
void rt_attention_grad(rt_stream *, void *dq, void *dk, void *dv, const void *dy,
                       const void *q, const void *k, const void *v, const void *y,
                       const float *lse, const rt_attn_at *, const rt_attn *,
                       void *scratch);
/* logits [rows, c], targets [rows] (RT_IGNORE: not supervised): losses [rows] = cross
 * entropies, 0 in rows that are not supervised; loss[1] = scale[0] * their sum; right[1]:
 * supervised rows whose largest logit is the target; prob [rows,c]: softmax. */
void rt_ce(rt_stream *, float *loss, int64_t *right, float *prob, float *losses,
           const float *logits, const int64_t *targets, const float *scale,
           int64_t rows, int64_t c);
/* The loss and its gradient, dlogits [rows,c] = scale[0] (softmax - onehot(target)), 0 in
 * rows that are not supervised. */
void rt_ce_grad(rt_stream *, float *loss, float *dlogits, const float *logits,
                const int64_t *targets, const float *scale, int64_t rows, int64_t c);
/* y, values [rows, c] (values NaN: not supervised): losses [rows] = sums of (y - value)^2;
 * loss[1] = scale[0] * their sum. */
void rt_mse(rt_stream *, float *loss, float *losses, const float *y,
            const float *values, const float *scale, int64_t rows, int64_t c);
/* The loss and its gradient, dy [rows,c] = 2 scale[0] (y - value), 0 where not supervised. */
void rt_mse_grad(rt_stream *, float *loss, float *dy, const float *y,
                 const float *values, const float *scale, int64_t rows, int64_t c);
/* logits = x [rows,h] times w ([h,v], or [v,h] under tb) + bias [v] or none, `chunk` rows at
 * a time; rows that are not supervised are skipped. pred [rows]: largest column, or -1 in
 * rows that were skipped; losses [rows] as rt_ce's. */
void rt_head_ce(rt_stream *, float *loss, int64_t *right, int64_t *pred, float *losses,
                const void *x, const void *w, const int64_t *targets,
                const float *scale, const float *bias, const rt_head *, void *scratch);
/* dw, dbias: NULL, or add to. dx [rows,h] is written whole. */
void rt_head_ce_grad(rt_stream *, float *loss, void *dx, float *dw, float *dbias,
                     const void *x, const void *w, const int64_t *targets,
                     const float *scale, const float *bias, const rt_head *,
                     void *scratch);
/* Sum of squares of all gradient buffers of the program, partials per 1024 elements added
 * in order. */
void rt_norm2(rt_stream *, float *norm2, rt_run *);
/* coef = max_norm > 0 ? min(1, max_norm / (sqrt(norm2) + 1e-6)) : 1; NaN where norm2 or the
 * tally's loss is not finite or the tally is halted, whatever max_norm is: then rt_optim()
 * changes nothing. */
void rt_clip_scale(rt_stream *, float *coef, const float *norm2, const rt_run *);
/* The same where gradients are scaler[0] times too large: of the true ones, and over it. */
void rt_clip_scaled(rt_stream *, float *coef, const float *norm2, const rt_run *,
                    const float *scaler);
/* What the floats of a loss scaler are: good steps are those since its scale changed. */
enum { RT_SCALE_AT, RT_GOOD_AT, RT_SKIPPED_AT, RT_UPDATES_AT, RT_SCALER_FLOATS };
/* A step whose norm2 is
 * not finite is skipped and halves the scale, not below 1; after 2000 good steps in a row it
 * doubles, if it stays finite (torch.amp.GradScaler). */
void rt_rescale(rt_stream *, float *scaler, const float *norm2);
/* Optimizer step of every trained param of the unit, with gradients times coef[0], and of
 * their images; if coef[0] is not finite, nothing is touched. t of AdamW is hyper.step, with a
 * loss scaler the updates that it has counted, and one. AdamW with decoupled decay and one
 * rounding of the parameter, or SGD with momentum in RT_STATE_M; formulas in
 * runtime/cpu/optim.c. Decay: params of rank >= 2, or all under hyper.decay_all. */
void rt_optim(rt_stream *, rt_run *, int unit, const float *coef);

#endif
