/* cmd_plan.h -- what the files of `efficc plan` share. */
#ifndef EFFICC_CMD_PLAN_H
#define EFFICC_CMD_PLAN_H

#include "../codegen/cost.h"
#include "cmd.h"

#include <cjson/cJSON.h>

/* "4.9 GB", as the report of pass plan says it. */
const char *plan_size(ef_arena *, double bytes);

/* A step on a card: `micro` micro-batches, then the update. Adds "roofline" to json, or
 * prints where that is NULL. false: said why. */
bool plan_roofline(ef_ctx *, const ir_module *, const cg_card *, int64_t micro,
                   double memory, cJSON *json);

#endif
