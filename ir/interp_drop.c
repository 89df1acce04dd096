/* interp_drop.c -- the interpreter's dropout.
 *
 * What is dropped is a function of where an element stands: of the step, the sample, its
 * position and column, and the place in the model. The bits are those of Philox4x32-10
 * (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, 2011).
 */
#include "interp_int.h"

static void
philox(uint32_t c[4], const uint32_t key[2])
{
    uint32_t k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)c[0] * 0xd2511f53, q = (uint64_t)c[2] * 0xcd9e8d57;
        uint32_t c0 = (uint32_t)(q >> 32) ^ c[1] ^ k[0];
        c[2] = (uint32_t)(p >> 32) ^ c[3] ^ k[1];
        c[0] = c0;
        c[1] = (uint32_t)q;
        c[3] = (uint32_t)p;
        k[0] += 0x9e3779b9;
        k[1] += 0xbb67ae85;
    }
}

/* p counts as f32, as in the kernels. */
ir_drop
ir_drop_of(const ir_op *op, const ir_tensor *key)
{
    double p = (float)ir_attr_num(op, IR_ATTR_p, 0);
    uint64_t k = (uint64_t)(int64_t)key->data[0];
    return (ir_drop){.scale = 1 / (1 - p),
                     .below = (uint32_t)(p * 0x1p32),
                     .key = {(uint32_t)k, (uint32_t)(k >> 32)},
                     .site = (uint32_t)ir_attr_int(op, IR_ATTR_site, 0)};
}

double
ir_drop_factor(const ir_drop *d, double keys, int64_t column, int64_t head)
{
    uint64_t row = (uint64_t)(int64_t)keys;
    uint32_t group = (uint32_t)(column / 4) | (uint32_t)head << 20;
    uint32_t c[4] = {(uint32_t)row, (uint32_t)(row >> 32), group, d->site};
    philox(c, d->key);
    return c[column % 4] < d->below ? 0 : d->scale;
}

bool
ir_ev_dropout(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    ir_drop d = ir_drop_of(e->op, e->arg[2]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            double by = ir_drop_factor(&d, e->arg[1]->data[r], i, 0);
            double x = e->arg[0]->data[r * n + i];
            e->res[0]->data[r * n + i] = by > 0 ? x * by : 0;
        }
    return true;
}
