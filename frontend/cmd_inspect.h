/* cmd_inspect.h -- what the files of `efficc inspect` share.
 *
 * All that is known goes into one JSON object (cmd_inspect.c and cmd_inspect_model.c), which
 * --json prints and cmd_inspect_text.c turns into a screen of text.
 */
#ifndef EFFICC_CMD_INSPECT_H
#define EFFICC_CMD_INSPECT_H

#include "cmd.h"
#include "onnx_int.h"

#include <cjson/cJSON.h>

/* Each adds its facts to the object. Of the file: */
void inspect_file(cJSON *, const fe_model *);
/* operators without a rule. */
void inspect_operators(cJSON *, ef_ctx *, const fe_model *);
/* Of the imported module: inputs, units, weights, ties, */
void inspect_inputs(cJSON *, const fe_model *, const ir_module *);
void inspect_weights(cJSON *, const fe_model *, const ir_module *);
/* attention (after pass recognise), what is trained (after pass task or lora). */
void inspect_attention(cJSON *, const ir_module *);
void inspect_trained(cJSON *, const ir_module *);

void inspect_text(FILE *, const cJSON *);

#endif
