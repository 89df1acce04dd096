/* pass_int.h -- what the files of passes/ share. */
#ifndef EFFICC_PASS_INT_H
#define EFFICC_PASS_INT_H

#include "pass.h"

/* ---- pass.c ---- */
typedef struct pass_row { /* one row of passes.def */
    const char *name;
    pass_fn *run;
    unsigned needs, gives, breaks; /* sets of pass_fact */
    bool lora;                     /* only where the options ask for LoRA */
    const char *summary;
} pass_row;
extern const pass_row pass_table[];
extern const int pass_count;
extern const char *const pass_fact_name[]; /* by bit of pass_fact */

/* Is name an element of the comma list (NULL: empty)? */
bool pass_in_list(const char *list, const char *name);

/* ---- cse.c ---- */
bool pass_same_attr(const ir_attr *, const ir_attr *);

#endif
