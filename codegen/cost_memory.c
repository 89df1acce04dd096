/* cost_memory.c -- bytes of a planned program's buffers; see cost.h. */
#include "cost.h"

#include "cg_int.h"

int64_t
cg_memory_of(const ir_module *m, cg_memory row[CG_MEMORY_ROWS])
{
    static const struct {
        const char *name, *text;
        rt_class cls;
    } from[CG_MEMORY_ROWS] = {{"trained", "trained parameters", RT_TRAIN},
                              {"gradients", "gradients", RT_GRAD},
                              {"state_m", "optimizer state m", RT_STATE_M},
                              {"state_v", "optimizer state v", RT_STATE_V},
                              {"frozen", "frozen parameters", RT_FROZEN},
                              {"constants", "constants", RT_CONST},
                              {"images", "copies in the compute type", RT_IMAGE},
                              {"scaler", "loss scaler", RT_SCALER}};
    int64_t sum = 0;
    for (int i = 0; i < CG_MEMORY_ROWS; i++) {
        row[i] = (cg_memory){from[i].name, from[i].text, 0};
        for (int u = 0; u < m->units.n; u++)
            row[i].bytes += cg_unit_bytes(m, u, from[i].cls);
        sum += row[i].bytes;
    }
    return sum;
}

/* The result in the arena whose bytes v is; NULL: it is no such. */
static const ir_value *
stored(const ir_value *v)
{
    while (v->def && pass_is_view(v->def))
        v = v->def->arg[0];
    return v->def && cg_offset(v) >= 0 ? v : NULL;
}

int64_t
cg_saved_bytes(const ir_module *m, ef_arena *arena)
{
    ef_map seen = {0};
    int64_t sum = 0;
    for (const ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op))
        for (int i = 0; op->block->phase == IR_BWD && i < op->narg; i++) {
            const ir_value *v = stored(op->arg[i]);
            if (!v || v->def->block->phase != IR_FWD || ef_map_has(&seen, v))
                continue;
            ef_map_set(arena, &seen, v, op->arg[i]);
            sum += ir_type_bytes(v->type);
        }
    return sum;
}

int64_t
cg_scratch_bytes(const ir_module *m)
{
    int64_t most = 0;
    for (const ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op)) {
        const ir_attr *ws = ir_attr_get(op, IR_ATTR_ws);
        if (ws && ws->u.l[1] > most)
            most = ws->u.l[1];
    }
    return most;
}
