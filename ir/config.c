/* config.c -- the defaults of options.def. */
#include "config.h"

const ef_config ef_config_default = {
#define OPT(field, name, kind, def, arg, group, help) .field = def,
#include "options.def"
#undef OPT
};
