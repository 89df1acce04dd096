/* base_int.h -- what the context keeps for base.c and type.c. */
#ifndef EFFICC_BASE_INT_H
#define EFFICC_BASE_INT_H

#include "base.h"

struct ir_type;

/* Two open-addressing sets; sizes are powers of two, NULL slots are free. */
typedef struct ef_interns {
    const char **str;
    size_t nstr, str_cap;
    const struct ir_type **type;
    size_t ntype, type_cap;
} ef_interns;

uint64_t ef_hash(const void *, size_t n);

#endif
