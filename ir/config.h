/* config.h -- the options of one run, one field per row of options.def.
 *
 * The table lives in ir/ since passes and codegen read the configuration; only frontend/
 * knows the command line that fills it.
 */
#ifndef EFFICC_CONFIG_H
#define EFFICC_CONFIG_H

#include "base.h"

#define EF_KIND_FLAG  bool
#define EF_KIND_INT   int64_t
#define EF_KIND_NUM   double
#define EF_KIND_SHARE double
#define EF_KIND_STR   const char *
#define EF_KIND_LIST  const char *

typedef struct ef_config {
#define OPT(field, name, kind, def, arg, group, help) EF_KIND_##kind field;
#include "options.def"
#undef OPT
    const char *input;    /* the .onnx or .ir file */
    const char *argv_run; /* the command line, for plan.json and reproducers */
    bool lora_implied;    /* lora_r was not given, but another --lora option */
    bool given_run_pass;  /* --run-pass stood there, even if empty */
    bool any_size;        /* open dimensions may have any size: nothing will run */
    bool glance;          /* read samples of weights only: ties are not quite sure */
} ef_config;

extern const ef_config ef_config_default;

#endif
