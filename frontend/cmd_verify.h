/* cmd_verify.h -- what the files of efficc verify share.
 *
 * cmd_verify.c compiles and trains two steps, cmd_verify_data.c writes what is trained on,
 * cmd_verify_record.c reads what the trainer recorded (runtime/host/record.c),
 * cmd_verify_nodes.c holds every result against the interpreter, and cmd_verify_slope.c the
 * interpreter's gradients against differences of its losses; cmd_verify_show.c tells.
 */
#ifndef EFFICC_CMD_VERIFY_H
#define EFFICC_CMD_VERIFY_H

#include "../codegen/cg.h"
#include "cmd.h"

#include <cjson/cJSON.h>

/* ---- cmd_verify_data.c ---- */
/* Rows for two steps of the module's task, as JSONL. false: said why. */
bool verify_write_data(const ir_module *, const char *path);

/* ---- cmd_verify_record.c ---- */
typedef struct record_tensor {
    int rank, word; /* word: of the format's types */
    int64_t dim[IR_MAX_RANK], n;
    const char *raw;            /* in the file */
    struct record_tensor *next; /* what was recorded later under the same name */
} record_tensor;
typedef struct record {
    ef_ctx *ctx;
    ef_arena *arena;
    ef_map of;  /* interned "KIND NAME" -> first record_tensor */
    char *file; /* mapped: elements are read where they are needed */
    size_t size;
} record;
/* false: said why. To be closed in either case. */
bool verify_open_record(record *, const char *path);
void verify_close_record(record *);
/* NULL: not recorded. */
record_tensor *record_get(const record *, const char *kind, const char *name);
/* All n elements as doubles, which hold every type exactly. */
void record_read(const record_tensor *, double *to);
double record_number(const record *, const char *name);

/* An environment as the trainer had it before micro(): arguments and params as recorded, or
 * as the module has them. false: said why. */
bool verify_fill(ir_module *, const record *, ir_env *);

/* ---- cmd_verify_nodes.c ---- */
typedef struct verify_row {
    const ir_op *op;
    const char *name;           /* of the IR: "%h" */
    double ulp, error, allowed; /* error and allowed over the largest element */
    int64_t at;                 /* the worst element */
    double got, want;
} verify_row;
typedef struct verify_rows {
    int n, cap;
    verify_row *at;
    int bad; /* beyond what is allowed */
} verify_rows;
/* Every result that was recorded, and the update's, worst first. false: said why. */
bool verify_nodes(ir_module *, const record *, ir_env *, verify_rows *);

/* Half a unit in the last place of elements near 1. */
double verify_half_ulp(ir_dtype);
/* Sets what the row says of got against want, n elements; size: of which errors are parts. */
void verify_judge(verify_row *, ir_dtype, const double *got, const double *want,
                  int64_t n, double size);
void verify_add(const record *, verify_rows *, const verify_row *);

/* ---- cmd_verify_update.c ---- */
/* The same for the update, behind what verify_nodes() left in env. */
bool verify_update(const ir_module *, const record *, ir_env *, verify_rows *);

/* ---- cmd_verify_slope.c ---- */
typedef struct slope {
    const char *unit; /* NULL: all trained params */
    double gradient, difference, error;
    bool bad;
} slope;
typedef struct slopes {
    int n, left; /* left: units for which there was no time */
    int bad;
    slope *at;
} slopes;
/* Of an fp32 module. false: said why. */
bool verify_slopes(ir_module *, const record *, slopes *);

/* ---- cmd_verify_show.c ---- */
/* What was found in the precision `name`: printed, or with json put into it. Slopes may be
 * none. */
void verify_show(cJSON *json, const char *name, const verify_rows *, const slopes *);
/* What it comes to; json is printed. */
void verify_show_all(cJSON *json, bool agree);

#endif
