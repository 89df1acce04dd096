/* checkpoint_int.h -- what the files of checkpoints share.
 *
 * checkpoint.c writes one, checkpoint_load.c finds, checks and reads one; the manifest's text
 * is checkpoint_manifest.c, what a run must have in common with it checkpoint_same.c, names
 * and folders checkpoint_folder.c.
 */
#ifndef EFFICC_CHECKPOINT_INT_H
#define EFFICC_CHECKPOINT_INT_H

#include "host_int.h"

/* ---- checkpoint_manifest.c ---- */
enum { RT_FORMAT = 2, RT_PIECES = 8 };
#define RT_MANIFEST  "manifest.json"
#define RT_WEIGHTS   "weights.safetensors"
#define RT_OPTIMIZER "optimizer.safetensors"
typedef struct rt_piece { /* a file of the checkpoint */
    char name[64];
    int64_t bytes;
    uint64_t hash;
} rt_piece;
typedef enum rt_same { /* what must be the same in the run that goes on */
#define SAME(key, whose, text, advice) RT_SAME_##key,
#include "checkpoint.def"
#undef SAME
                       RT_NSAME
} rt_same;
struct rt_manifest {
    char *efficc, *program; /* version, hash of the schedule */
    char *same[RT_NSAME];
    char *options; /* a JSON object */
    rt_train_state state;
    int npiece;
    rt_piece piece[RT_PIECES];
};

/* ---- checkpoint_same.c ---- */
/* Of this run: all but state and pieces. */
rt_manifest *rt_manifest_of(const rt_job *);
/* Do the rows of checkpoint.def agree? whose: only those; false: `why` says which does not.
 */
typedef enum rt_whose { RT_OF_PROGRAM, RT_OF_RUN } rt_whose;
bool rt_same_check(const rt_manifest *saved, const rt_manifest *own, rt_whose,
                   char why[RT_WHY]);
/* A line for each option that differs although it may. */
void rt_options_note(const rt_manifest *saved, const rt_manifest *own);

/* ---- checkpoint_folder.c ---- */
char *rt_checkpoint_path(const char *dir, int64_t step); /* free it */
/* Steps of the checkpoint-<step> in dir, newest first; free it. */
int64_t *rt_checkpoint_list(const char *dir, int *n);
/* Warns of names in dir that look like a checkpoint's and are not. */
void rt_checkpoint_strangers(const char *dir);
/* Removes a flat folder; one that holds folders stays. false: errno. */
bool rt_folder_remove(const char *path);
/* Flushes the folder's names to the disk. false: errno. */
bool rt_folder_sync(const char *path);
/* tmp becomes dir; what was there is removed. false: errno. */
bool rt_folder_replace(const char *tmp, const char *dir);
/* Ends what a crash left: *.tmp are removed, a replaced folder comes back. */
void rt_folder_tidy(const char *dir);
/* Removes older checkpoints of this run beyond --save-total-limit. */
void rt_checkpoint_rotate(const rt_job *, const rt_train_state *);

/* ---- checkpoint_load.c ---- */
/* The manifest of dir alone; NULL: `why`. */
rt_manifest *rt_manifest_read(const char *dir, char why[RT_WHY]);

#endif
