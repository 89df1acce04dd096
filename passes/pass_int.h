/* pass_int.h -- what the files of passes/ share. */
#ifndef EFFICC_PASS_INT_H
#define EFFICC_PASS_INT_H

#include "pass.h"

/* ---- pass.c ---- */
typedef enum pass_when {
    ALWAYS,
    LORA,
    DROPOUT,
    UNPAD,
    LOW,
    FP16
} pass_when; /* see passes.def */

typedef struct pass_row { /* one row of passes.def */
    const char *name;
    pass_fn *run;
    unsigned needs, gives, breaks; /* sets of pass_fact */
    pass_when when;
    const char *summary;
} pass_row;
extern const pass_row pass_table[];
extern const int pass_count;
enum { /* index of a row */
#define PASS(name, needs, gives, breaks, when, summary) PASS_AT_##name,
#define ORDER(a, b, why)
#include "passes.def"
#undef PASS
#undef ORDER
};
extern const char *const pass_fact_name[]; /* by bit of pass_fact */

/* Is name an element of the comma list (NULL: empty)? */
bool pass_in_list(const char *list, const char *name);

/* ---- late.c ---- */
/* Writes down in m's meta what the options said to that row of pass_table. */
void pass_note_options(ir_module *m, int pass);
/* Does no option contradict what the import and the first `next` rows have done? false:
 * said why. */
bool pass_options_fit(const ir_module *m, int next);

/* ---- lora.c: defaults ---- */
#define PASS_LORA_TARGETS "q,v"
#define PASS_LORA_SCALE   "alpha/r"

/* ---- dropout.c ---- */
void pass_undrop(ir_func *); /* takes all dropout out */

/* ---- cse.c ---- */
bool pass_same_attr(const ir_attr *, const ir_attr *);

#endif
