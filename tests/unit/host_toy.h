/* host_toy.h -- a trainer small enough to check by hand, for the tests of runtime/host.
 *
 * One table [8,4] of token vectors; the vectors of a row's real tokens are averaged and a
 * linear layer gives 3 class logits. The model file holds the layer's weight as [4,3], the
 * transpose of PyTorch's. micro() and eval() are plain C, update() is the runtime's.
 */
#ifndef EFFICC_HOST_TOY_H
#define EFFICC_HOST_TOY_H

#include "runtime/host/host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { TOY_B = 2, TOY_S = 4, TOY_V = 8, TOY_H = 4, TOY_C = 3 };
/* offsets in the arena */
enum {
    TOY_LOSS = 0,
    TOY_NORM = 64,
    TOY_COEF = 128,
    TOY_RIGHT = 192,
    TOY_PROB = 256,
    TOY_ARENA = 512
};

static const rt_param toy_param[] = {
    {.name = "emb.weight",
     .onnx = "emb.weight",
     .hf = "emb.weight",
     .cls = RT_TRAIN,
     .unit = 0,
     .n = 32,
     .rank = 2,
     .dim = {TOY_V, TOY_H},
     .image = -1},
    {.name = "fc.weight",
     .onnx = "onnx::MatMul_7",
     .hf = "fc.weight",
     .transposed = true,
     .cls = RT_TRAIN,
     .unit = 1,
     .n = 12,
     .rank = 2,
     .dim = {TOY_H, TOY_C},
     .image = -1},
    {.name = "fc.bias",
     .onnx = "fc.bias",
     .hf = "fc.bias",
     .cls = RT_TRAIN,
     .unit = 1,
     .offset = 64,
     .n = 3,
     .rank = 1,
     .dim = {TOY_C},
     .image = -1},
};
static const rt_input toy_input[] = {
    {"input_ids", RT_IDS, 2, {TOY_B, TOY_S}, true, TOY_V, RT_FIXED},
    {"attention_mask", RT_MASK, 2, {TOY_B, TOY_S}, true, 0, RT_FIXED},
    {"targets", RT_TARGETS, 1, {TOY_B}, true, 0, RT_FIXED},
    {"scale", RT_SCALE, 0, {0}, true, 0, RT_FIXED},
};
static const char *const toy_unit[] = {"embeddings", "head"};
static const int64_t toy_bytes[][RT_NCLASSES] = {{128, 128, 128, 128, 0, 0},
                                                 {128, 128, 128, 128, 0, 0}};

/* micro() is two calls, with their results and operands. */
static const rt_tensor toy_tensor[] = {
    {"%loss",
     "ce_grad",
     "loss",
     RT_ARENA,
     0,
     TOY_LOSS,
     0,
     {0},
     false,
     RT_F32,
     RT_FIXED},
    {"$fc.weight.grad",
     "linear_dw",
     "/fc/MatMul",
     RT_GRAD,
     1,
     0,
     2,
     {TOY_H, TOY_C},
     false,
     RT_F32,
     RT_FIXED},
    {"$fc.bias.grad",
     "reduce_sum",
     "/fc/Add",
     RT_GRAD,
     1,
     64,
     1,
     {TOY_C},
     false,
     RT_F32,
     RT_FIXED},
    {"$emb.weight.grad",
     "embed_grad",
     "/emb/Gather",
     RT_GRAD,
     0,
     0,
     2,
     {TOY_V, TOY_H},
     false,
     RT_F32,
     RT_FIXED},
    {"$emb.weight",
     NULL,
     NULL,
     RT_TRAIN,
     0,
     0,
     2,
     {TOY_V, TOY_H},
     false,
     RT_F32,
     RT_FIXED},
    {"$fc.weight",
     NULL,
     NULL,
     RT_TRAIN,
     1,
     0,
     2,
     {TOY_H, TOY_C},
     false,
     RT_F32,
     RT_FIXED},
    {"$fc.bias", NULL, NULL, RT_TRAIN, 1, 64, 1, {TOY_C}, false, RT_F32, RT_FIXED},
};
static const rt_op toy_op[] = {
    {1, false, "linear (/fc/MatMul)", 1, 4, (const int[]){0, 4, 5, 6}},
    {1, true, NULL, 3, 4, (const int[]){1, 2, 3, 5}},
};

typedef struct toy_row {
    double h[TOY_H], p[TOY_C], n;
} toy_row;

static inline toy_row
toy_forward(const rt_run *r, int b)
{
    const float *emb = rt_param_data(r, &toy_param[0]),
                *w = rt_param_data(r, &toy_param[1]);
    const float *bias = rt_param_data(r, &toy_param[2]);
    const int64_t *ids = r->input[0], *mask = r->input[1];
    toy_row t = {.n = 0};
    for (int s = 0; s < TOY_S; s++)
        t.n += (double)mask[b * TOY_S + s];
    for (int s = 0; s < TOY_S; s++)
        for (int k = 0; k < TOY_H && mask[b * TOY_S + s]; k++)
            t.h[k] += emb[ids[b * TOY_S + s] * TOY_H + k] / t.n;
    double sum = 0;
    for (int c = 0; c < TOY_C; c++) {
        t.p[c] = bias[c];
        for (int k = 0; k < TOY_H; k++)
            t.p[c] += t.h[k] * w[k * TOY_C + c];
        sum += t.p[c] = exp(t.p[c]);
    }
    for (int c = 0; c < TOY_C; c++)
        t.p[c] /= sum;
    return t;
}

static inline void
toy_micro(rt_run *r)
{
    const float *w = rt_param_data(r, &toy_param[1]);
    float *demb = rt_param_grad(r, &toy_param[0]),
          *dw = rt_param_grad(r, &toy_param[1]);
    float *dbias = rt_param_grad(r, &toy_param[2]);
    const int64_t *ids = r->input[0], *mask = r->input[1], *y = r->input[2];
    double scale = *(float *)r->input[3], loss = 0;
    for (int b = 0; b < TOY_B; b++) {
        toy_row t = toy_forward(r, b);
        if (y[b] == RT_IGNORE)
            continue;
        loss -= scale * log(t.p[y[b]]);
        for (int c = 0; c < TOY_C; c++) {
            double d = scale * (t.p[c] - (c == y[b]));
            dbias[c] += (float)d;
            for (int k = 0; k < TOY_H; k++)
                dw[k * TOY_C + c] += (float)(d * t.h[k]);
            for (int s = 0; s < TOY_S; s++)
                for (int k = 0; k < TOY_H && mask[b * TOY_S + s]; k++)
                    demb[ids[b * TOY_S + s] * TOY_H + k] +=
                        (float)(d * w[k * TOY_C + c] / t.n);
        }
    }
    *(float *)(r->arena + TOY_LOSS) = (float)loss;
    rt_done(r, 0);
    rt_done(r, 1);
}

static inline void
toy_update(rt_run *r)
{
    float *norm = (float *)(r->arena + TOY_NORM),
          *coef = (float *)(r->arena + TOY_COEF);
    rt_norm2(r->compute, norm, r);
    rt_clip_scale(r->compute, coef, norm, r);
    for (int u = 0; u < 2; u++)
        rt_optim(r->compute, r, u, coef);
}

static inline void
toy_eval(rt_run *r)
{
    const int64_t *y = r->input[2];
    float *prob = (float *)(r->arena + TOY_PROB);
    int64_t *right = (int64_t *)(r->arena + TOY_RIGHT);
    double loss = 0;
    *right = 0;
    for (int b = 0; b < TOY_B; b++) {
        toy_row t = toy_forward(r, b);
        int best = 0;
        for (int c = 0; c < TOY_C; c++) {
            prob[b * TOY_C + c] = (float)t.p[c];
            best = t.p[c] > t.p[best] ? c : best;
        }
        if (y[b] != RT_IGNORE)
            loss -= *(float *)r->input[3] * log(t.p[y[b]]);
        *right += best == y[b];
    }
    *(float *)(r->arena + TOY_LOSS) = (float)loss;
}

static inline rt_program
toy_program(void)
{
    return (rt_program){.abi = RT_ABI,
                        .efficc = "0",
                        .model = "toy.onnx",
                        .task = "seq-cls",
                        .family = "toy",
                        .hash = "0123456789abcdef",
                        .align = RT_ALIGN,
                        .batch = TOY_B,
                        .seq = TOY_S,
                        .vocab = TOY_V,
                        .labels = TOY_C,
                        .threads = 2,
                        .nunit = 2,
                        .unit = toy_unit,
                        .unit_bytes = toy_bytes,
                        .nparam = 3,
                        .param = toy_param,
                        .ninput = 4,
                        .input = toy_input,
                        .nop = 2,
                        .op = toy_op,
                        .tensor = toy_tensor,
                        .arena_bytes = TOY_ARENA,
                        .bound_bytes = TOY_ARENA,
                        .loss_at = TOY_LOSS,
                        .norm2_at = TOY_NORM,
                        .eval_loss_at = TOY_LOSS,
                        .eval_right_at = TOY_RIGHT,
                        .eval_prob_at = TOY_PROB,
                        .eval_pred_at = -1,
                        .eval_value_at = -1,
                        .eval_row_loss_at = -1,
                        .micro = toy_micro,
                        .update = toy_update,
                        .eval = toy_eval};
}

/* ---- a folder for a test, and what the trainer says ---- */

static char toy_dir[64];

static inline const char *
toy_folder(void) /* made once per program, removed at its end */
{
    if (!*toy_dir) {
        strcpy(toy_dir, "/tmp/efficc-host-XXXXXX");
        if (!mkdtemp(toy_dir))
            abort();
    }
    return toy_dir;
}

__attribute__((destructor)) static void
toy_remove(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", toy_dir);
    if (*toy_dir && system(command))
        abort();
}

/* A path in the test's folder; 64 turns. */
static inline const char *
toy_path(const char *name)
{
    static char path[64][256];
    static int turn;
    char *p = path[turn++ % 64];
    snprintf(p, sizeof path[0], "%s/%s", toy_folder(), name);
    return p;
}

static inline const char *
toy_write(const char *name, const char *text)
{
    const char *path = toy_path(name);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f))
        abort();
    return path;
}

static char
    *toy_said; /* errors, then the report, between toy_listen() and toy_heard() */
static size_t toy_said_n;

static inline void
toy_listen(void)
{
    free(toy_said);
    toy_said = NULL;
    rt_err = rt_out = open_memstream(&toy_said, &toy_said_n);
}

static inline const char *
toy_heard(void)
{
    fclose(rt_err);
    rt_err = rt_out = NULL;
    return toy_said;
}

__attribute__((destructor)) static void
toy_forget(void)
{
    free(toy_said);
}

/* Words of a command line as (how many, the words). */
#define TOY_WORDS(...)                                           \
    sizeof((char *[]){__VA_ARGS__}) / sizeof(char *), (char *[]) \
    {                                                            \
        __VA_ARGS__                                              \
    }

/* A trainer of p with base.safetensors in dir, run with these words; exit code, toy_said. */
static inline int
toy_run(const rt_program *p, const char *dir, int n, char **words)
{
    char *argv[56] = {"trainer"};
    memcpy(argv + 1, words, (size_t)n * sizeof *words);
    toy_listen();
    int code = rt_host_main(n + 1, argv, p, dir);
    toy_heard();
    return code;
}

#define TOY_HEARD(text) CHECK(strstr(toy_said, text) != NULL)

/* base.safetensors of these tensors in the order of their names, with its hash. */
static inline int
toy_base(const char *path, rt_st_out *t, int n)
{
    XXH3_state_t *hash = XXH3_createState();
    char meta[64];
    int code = rt_st_write(path, t, n, false); /* sorts them */
    XXH3_64bits_reset(hash);
    for (int i = 0; i < n; i++)
        XXH3_64bits_update(
            hash, t[i].data,
            sizeof(float) * (size_t)(t[i].dim[0] * (t[i].rank == 2 ? t[i].dim[1] : 1)));
    snprintf(meta, sizeof meta, "{\"" RT_BASE_HASH "\":\"%016llx\"}",
             (unsigned long long)XXH3_64bits_digest(hash));
    XXH3_freeState(hash);
    return code ? code : rt_st_write_meta(path, t, n, meta);
}

#endif
