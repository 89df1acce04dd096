/* checkpoint.h -- folders checkpoint-<step>/ from which a run goes on.
 *
 * A checkpoint holds logical tensors, not the program's buffers: weights.safetensors (what is
 * trained) and optimizer.safetensors under the names of the params, and manifest.json with the
 * state of the run and size and XXH3 hash of each file. It is written as checkpoint-<step>.tmp,
 * every file flushed to the disk, the manifest last, and then renamed; a folder without a
 * manifest that fits its files is not a checkpoint. Layout: docs/checkpoints.md.
 */
#ifndef EFFICC_CHECKPOINT_H
#define EFFICC_CHECKPOINT_H

#include "efficc_rt.h"

enum { RT_NORMS = 64 };

/* All that a run needs between two steps beside tensors and options. Rows of state.def; numbers
 * stand in the manifest so that they come back bit by bit. */
typedef struct rt_train_state {
#define STATE(field, type, text) type field;
#include "state.def"
#undef STATE
    /* gradient norms of the last steps, a ring; nnorm were seen */
    double norm[RT_NORMS];
} rt_train_state;

struct rt_job;
/* Writes output_dir/checkpoint-<state->step>, then removes what --save-total-limit does not
 * keep; never the best one. RT_STOPPED where space ran out: older ones are as they were. */
int rt_checkpoint_save(const struct rt_job *, const rt_train_state *);
/* The start of any run that trains in output_dir; the folder is locked. Removes what a crash
 * left half-made. With --resume-from-checkpoint: finds the checkpoint (auto: the newest good
 * one of the run that saved last; says which it passed over and why), checks that it belongs
 * to this program, data and options, loads tensors and state, and says what it did.
 * state->step 0: from the start, which the caller says. auto where only another program's
 * were found: refused. */
int rt_checkpoint_resume(const struct rt_job *, rt_train_state *);
/* Loads the weights of checkpoint-<best_step>. */
int rt_checkpoint_load_best(const struct rt_job *, const rt_train_state *);
/* Is there a checkpoint-<step> in dir, of this run? Looks at its manifest only. */
bool rt_checkpoint_is_of(const char *dir, int64_t step, int64_t run);
/* Bytes of one checkpoint of this program under these options. */
int64_t rt_checkpoint_bytes(const struct rt_job *);
/* Hash of the weights that training does not change; rt_job.frozen. */
uint64_t rt_frozen_hash(const rt_run *);

/* ---- without a program, for whoever wants to look at a checkpoint ---- */
enum { RT_WHY = 512 };
typedef struct rt_manifest rt_manifest;
/* Reads the n bytes of a manifest.json, trusting nothing. NULL: `why` says what is wrong. */
rt_manifest *rt_manifest_parse(const char *text, size_t n, char why[RT_WHY]);
/* The text it is read from; free it. */
char *rt_manifest_text(const rt_manifest *);
void rt_manifest_free(rt_manifest *);
/* Manifest of the folder, all of whose files have their size and hash; NULL: see above. */
rt_manifest *rt_checkpoint_check(const char *dir, char why[RT_WHY]);

/* ---- lock.c ---- */
/* One trainer a folder: takes dir/.lock, or says which process has it. The lock goes with the
 * process, however it ends. */
int rt_folder_lock(const char *dir, int *fd);
void rt_folder_unlock(int fd);
/* Which run saved a checkpoint in dir last; 0: not known. Setting it needs the lock. */
int64_t rt_folder_run(const char *dir);
void rt_folder_set_run(const char *dir, int64_t run);

#endif
