/* loop_int.h -- what step.c and loop.c share. */
#ifndef EFFICC_LOOP_INT_H
#define EFFICC_LOOP_INT_H

#include "host_int.h"

typedef struct rt_begun { /* a step that the device has been given */
    int64_t number;       /* from 0 */
    rt_step rows;
    double lr;
    int64_t supervised, tokens;
    int64_t mark; /* behind which its tally is there */
} rt_begun;

enum { RT_BEGUN = 2 }; /* at most so many at once */

typedef struct rt_loop {
    const rt_job *job;
    rt_run *run;
    rt_train_state *state;
    rt_schedule schedule;
    rt_order order;
    rt_progress progress;
    rt_state shown; /* what the progress line says */
    int64_t *row;   /* of a micro-batch */
    int64_t saved;  /* step of the newest checkpoint; 0: none */
    /* step number % RT_BEGUN; the first that is not ended is state->step */
    rt_begun begun[RT_BEGUN];
    rt_tally *tally[RT_BEGUN]; /* what each left; staging memory */
    int ahead;                 /* steps that are begun and not ended */
    rt_begun *now;             /* the step that is worked on */
    double clock;              /* up to here time is in the state */
    rt_record *record;
    bool outlier_told;
    int overflows_told;
    const char *end; /* the log's word for why the run ended; NULL: it failed */
} rt_loop;

/* ---- step.c ---- */
/* Gives the device the step behind those that are begun. An exit code: it is begun only under
 * RT_OK. */
int rt_step_begin(rt_loop *);
/* Waits for the oldest that is begun and takes what it left into the state. Where that is not
 * finite, those begun behind it are as if they had not been. */
int rt_step_end(rt_loop *);

#endif
