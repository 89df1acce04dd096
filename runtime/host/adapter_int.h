/* adapter_int.h -- what the files that read and write adapters share. */
#ifndef EFFICC_ADAPTER_INT_H
#define EFFICC_ADAPTER_INT_H

#include "host_int.h"

enum { RT_PARTS = 8 };

typedef struct rt_adapted { /* a module with adapters */
    const char *name;
    int n; /* parts: the A of each in the order of the table, B by the part's name */
    const rt_param *a[RT_PARTS], *b[RT_PARTS];
} rt_adapted;

typedef struct rt_modules {
    int n, parts;   /* most parts of any */
    rt_adapted *at; /* free it */
} rt_modules;
rt_modules rt_modules_of(const rt_program *);

/* The output feature that row o of a part's B makes. */
static inline int64_t
rt_part_row(const rt_param *b, int64_t o)
{
    if (!b->part)
        return o;
    return b->part_start +
           (b->part_block ? o / b->part_block * b->part_stride + o % b->part_block : o);
}
/* Output features of its module. */
static inline int64_t
rt_module_rows(const rt_param *b)
{
    return b->part ? b->part_of : b->dim[0];
}

/* Hash of the weights under the adapters as the model file has them, see rt_base_hash; sorts
 * the modules. false: they are trained, too, or not known. */
bool rt_adapter_base(const rt_run *, const char *program_dir, rt_modules *,
                     char hex[17]);
int rt_adapter_config_save(const rt_program *, const char *dir, int64_t rank,
                           const char *const *extra_modules);

#endif
