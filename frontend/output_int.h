/* output_int.h -- the output folder, for main.c. */
#ifndef EFFICC_OUTPUT_INT_H
#define EFFICC_OUTPUT_INT_H

#include "frontend.h"

typedef struct fe_output fe_output;
/* Decides the folder from the configuration and whether it may be written: it does not
 * exist, is empty, holds our plan.json, or --force was given. Changes nothing yet. NULL:
 * said why. */
fe_output *fe_output_open(ef_ctx *);
/* Makes the temporary folder beside it. false: said why. */
bool fe_output_begin(fe_output *);
const char *fe_output_dir(const fe_output *); /* the temporary folder */
/* Puts the temporary folder in its place and says where the trainer lies. false: said
 * why. */
bool fe_output_commit(fe_output *);
/* After a build that failed: where a compiler said something, or the fault is our own, lets the
 * sources and plan.json stay where they are, and says so; weights do not. */
void fe_output_keep(fe_output *);
/* Removes what a failure left; NULL is fine. The same happens at exit(). */
void fe_output_close(fe_output *);

#endif
