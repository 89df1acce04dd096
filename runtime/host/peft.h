/* peft.h -- a LoRA adapter as PEFT saves it, read without a program.
 *
 * A folder with adapter_config.json and adapter_model.safetensors becomes a list of adapted
 * modules, each with rank and scale, and of tensors saved whole (modules_to_save). All that
 * asks for something else than W + scale B A is refused, so whoever reads an rt_peft need
 * not look at the configuration.
 */
#ifndef EFFICC_PEFT_H
#define EFFICC_PEFT_H

#include "safetensors.h"

/* ---- peft_config.c: adapter_config.json ---- */
typedef struct rt_peft_config {
    char *path;
    struct cJSON *json;
    bool fan_in_fan_out, tied; /* fan_in_fan_out, ensure_weight_tying */
} rt_peft_config;
/* Exit code. Refuses whatever changes the meaning of an adapter and is not computed. Close it
 * in any case. */
int rt_peft_config_open(rt_peft_config *, const char *dir);
void rt_peft_config_close(rt_peft_config *);
/* Rank and scale of a module: r, lora_alpha, use_rslora, rank_pattern and alpha_pattern. */
int rt_peft_scale(const rt_peft_config *, const char *module, int64_t *rank,
                  double *scale);

/* ---- peft.c: the tensors ---- */
typedef struct rt_peft_pair {
    const char *module;        /* PyTorch's path of the adapted module */
    const rt_st_tensor *a, *b; /* [rank, in], [out, rank] */
    int64_t rank;
    double scale;
    /* lora_embedding_*: the weight [in, out] of a table gets scale (B A)^T */
    bool embedding;
} rt_peft_pair;

typedef struct rt_peft_whole {
    const char *name; /* PyTorch's of the parameter */
    const rt_st_tensor *t;
} rt_peft_whole;

typedef struct rt_peft {
    rt_peft_config config;
    rt_st st;
    int n, nwhole;
    rt_peft_pair *pair; /* sorted by module */
    rt_peft_whole *whole;
    char *base; /* hash of the weights below it, see rt_base_hash; NULL: not recorded */
} rt_peft;
/* Exit code. Reads and checks both files; every tensor is in a pair or whole. Close it in any
 * case. */
int rt_peft_open(rt_peft *, const char *dir);
void rt_peft_close(rt_peft *);
const rt_peft_pair *rt_peft_find(const rt_peft *, const char *module); /* NULL: none */

/* ---- the base of an adapter ----
 * XXH3 over the adapted modules in order of their names: the name with its NUL, then the
 * weight's elements as float in PyTorch's layout. The same for every export of a model. */
typedef struct rt_base_hash {
    struct XXH3_state_s *state;
} rt_base_hash;
void rt_base_hash_begin(rt_base_hash *);
/* w [rows,cols]; transposed: PyTorch's layout is [cols,rows]. */
void rt_base_hash_add(rt_base_hash *, const char *module, const float *w, int64_t rows,
                      int64_t cols, bool transposed);
void rt_base_hash_end(rt_base_hash *, char hex[17]);

#endif
