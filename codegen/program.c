/* program.c -- what the trainer must know beside the calls: tables of params and units in
 * plan.h, and rt_program with main() at the end of step.c.
 */
#include "cg_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- params ---- */

static void
field(ef_buf *b, const char *name, const char *value)
{
    ef_putf(b, ", .%s = %s", name, value);
}

static const char *
ends_list(cg *c, const char *name, int n, const char *const *item)
{
    ef_buf b = {.arena = c->arena};
    ef_putf(&b, "static const char *const %s[] = {", name);
    for (int i = 0; i < n; i++)
        ef_putf(&b, "%s, ", cg_string(c->arena, item[i]));
    ef_puts(&b, "NULL};");
    return b.s;
}

/* Has the param a row of the table? Buffers of others have not. */
static bool
has_row(const ir_param *p)
{
    return p->cls <= IR_CONST;
}

static void
put_param(cg *c, int number, const ir_param *p, ef_buf *out)
{
    static const char *const cls[] = {
        [IR_TRAIN] = "RT_TRAIN", [IR_FROZEN] = "RT_FROZEN", [IR_CONST] = "RT_CONST"};
    static const char *const role[] = {[IR_LORA_A] = "RT_LORA_A",
                                       [IR_LORA_B] = "RT_LORA_B",
                                       [IR_HEAD] = "RT_HEAD",
                                       [IR_MODULE] = "RT_MODULE"};
    static const char *const init[] = {
        [IR_INIT_NONE] = "RT_INIT_ZERO",       [IR_INIT_FILE] = "RT_INIT_FILE",
        [IR_INIT_VALUES] = "RT_INIT_FILE",     [IR_INIT_ZERO] = "RT_INIT_ZERO",
        [IR_INIT_KAIMING] = "RT_INIT_KAIMING", [IR_INIT_NORMAL] = "RT_INIT_NORMAL"};
    const ir_type *t = p->value->type;
    ef_arena *a = c->arena;
    ef_buf b = {.arena = a};
    ef_putf(&b, "{.name = %s", cg_string(a, p->value->name));
    if (p->onnx)
        field(&b, "onnx", cg_string(a, p->onnx));
    field(&b, "also", p->also.n ? ef_printf(a, "also_%d", number) : "nothing");
    if (p->hf)
        field(&b, "hf", cg_string(a, p->hf));
    if (p->transposed)
        field(&b, "transposed", "true");
    if (p->shift)
        ef_putf(&b, ", .shift = %d", p->shift);
    field(&b, "cls", cls[p->cls]);
    if (p->role != IR_BASE)
        field(&b, "role", role[p->role]);
    if (t->dtype != IR_F32)
        field(&b, "dtype", cg_dtype(p->value));
    field(&b, "init", init[p->init]);
    ef_putf(&b, ", .unit = %d, .offset = %" PRId64 ", .n = %" PRId64, p->unit,
            p->offset, ir_type_count(t));
    const ir_param *image = ir_image_of(c->m, p);
    ef_putf(&b, ", .image = %" PRId64, image ? image->offset : -1);
    if (image)
        field(&b, "image_dtype", cg_dtype(image->value));
    ef_putf(&b, ", .rank = %d", t->rank);
    if (t->rank)
        ef_putf(&b, ", .dim = {%s}", cg_ints(a, t->rank, t->dim));
    if (p->module)
        field(&b, "module", cg_string(a, p->module));
    if (p->part)
        ef_putf(&b,
                ", .part = %s, .part_start = %" PRId64 ", .part_len = %" PRId64
                ", .part_of = %" PRId64,
                cg_string(a, p->part), p->part_start, p->part_len, p->part_of);
    if (p->part && p->part_block)
        ef_putf(&b, ", .part_block = %" PRId64 ", .part_stride = %" PRId64,
                p->part_block, p->part_stride);
    ef_puts(&b, "},");
    cg_code(out, 4, b.s);
}

void
cg_param_table(cg *c, ef_buf *b)
{
    const ir_module *m = c->m;
    ef_puts(b, "\n/* Parameters, in the order of the IR. */\n"
               "static const char *const nothing[] = {NULL};\n");
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        if (has_row(p) && p->also.n)
            cg_code(
                b, 0,
                ends_list(c, ef_printf(c->arena, "also_%d", i), p->also.n, p->also.at));
    }
    ef_puts(b, "static const rt_param params[] = {\n");
    int n = 0;
    for (int i = 0; i < m->params.n; i++) {
        if (!has_row(m->params.at[i]))
            continue;
        put_param(c, i, m->params.at[i], b);
        n++;
    }
    ef_puts(b, n ? "};\n" : "    {.name = \"\"}, /* none */\n};\n");
    ef_putf(b, "enum { NPARAM = %d };\n", n);
}

int64_t
cg_unit_bytes(const ir_module *m, int unit, rt_class cls)
{
    static const ir_pclass of[RT_NCLASSES] = {
        [RT_TRAIN] = IR_TRAIN,   [RT_GRAD] = IR_TRAIN,    [RT_STATE_M] = IR_TRAIN,
        [RT_STATE_V] = IR_TRAIN, [RT_FROZEN] = IR_FROZEN, [RT_CONST] = IR_CONST,
        [RT_IMAGE] = IR_IMAGE,   [RT_SCALER] = IR_SCALER};
    int64_t end = 0;
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        int at = p->of ? p->of->unit : p->unit;
        if (at != unit || p->cls != of[cls])
            continue;
        int64_t e = p->offset + ir_type_bytes(p->value->type);
        end = e > end ? e : end;
    }
    int64_t to = cg_align(m->ctx);
    return (end + to - 1) / to * to;
}

void
cg_unit_table(cg *c, ef_buf *b)
{
    ef_puts(
        b,
        "\n/* Units, and the bytes of their buffers: trained parameters, gradients,\n"
        " * optimizer state m and v, frozen parameters, constants, images, loss "
        "scaler. */\n");
    cg_code(b, 0, ends_list(c, "units", c->m->units.n, c->m->units.at));
    ef_puts(b, "static const int64_t unit_bytes[][RT_NCLASSES] = {\n");
    for (int u = 0; u < c->m->units.n; u++) {
        int64_t bytes[RT_NCLASSES];
        for (int k = 0; k < RT_NCLASSES; k++)
            bytes[k] = cg_unit_bytes(c->m, u, (rt_class)k);
        ef_putf(b, "    {%s},\n", cg_ints(c->arena, RT_NCLASSES, bytes));
    }
    ef_puts(b, "};\n");
    ef_puts(b, "\nstatic const char *const cpu_features[] = {RT_CPU_FEATURES NULL};\n");
}

/* ---- LoRA ---- */

static bool
add_once(cg *c, const char ***list, int *n, const char *s)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp((*list)[i], s))
            return false;
    if (!*list)
        *list = EF_NEWN(c->arena, const char *, c->m->params.n + 1);
    (*list)[(*n)++] = s;
    return true;
}

static const char *
last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static bool
is_adapter(const ir_param *p)
{
    return p->role == IR_LORA_A || p->role == IR_LORA_B;
}

int
cg_lora_targets(cg *c, const char ***list)
{
    const char **whole = NULL, **part = NULL;
    int nwhole = 0, npart = 0;
    bool enough = true;
    for (int i = 0; i < c->m->params.n; i++) {
        const ir_param *p = c->m->params.at[i];
        if (!is_adapter(p) || p->of)
            continue;
        add_once(c, &whole, &nwhole, ir_param_module(c->ctx, p));
        add_once(c, &part, &npart, last_part(ir_param_module(c->ctx, p)));
    }
    for (int i = 0; i < c->m->params.n && enough; i++) {
        const ir_param *p = c->m->params.at[i];
        const char *module = ir_param_module(c->ctx, p);
        bool named = false, adapted = false;
        if (is_adapter(p) || p->of || p->value->type->rank < 2)
            continue;
        for (int k = 0; k < npart; k++)
            named |= !strcmp(part[k], last_part(module));
        for (int k = 0; k < nwhole; k++)
            adapted |= !strcmp(whole[k], module);
        enough = !named || adapted;
    }
    *list = enough ? part : whole;
    return enough ? npart : nwhole;
}

int
cg_saved_modules(cg *c, const char ***list)
{
    int n = 0;
    *list = NULL;
    for (int i = 0; i < c->m->params.n; i++) {
        const ir_param *p = c->m->params.at[i];
        if (p->role == IR_MODULE && !p->of)
            add_once(c, list, &n, ir_param_module(c->ctx, p));
    }
    return n;
}

/* Is the weight of an adapted module [in,out] in PyTorch (a Conv1D)? A linear reads it as
 * it lies in the IR. */
static bool
fan_in_fan_out(cg *c)
{
    const char **module;
    int n = 0;
    for (int i = 0; i < c->m->params.n && !n; i++)
        if (is_adapter(c->m->params.at[i])) {
            module = EF_NEWN(c->arena, const char *, 1);
            module[n++] = ir_param_module(c->ctx, c->m->params.at[i]);
        }
    for (const ir_op *op = n ? ir_first_op(c->m->step) : NULL; op;
         op = ir_next_op(op)) {
        int at = op->code == IR_OP_linear ? 1 : op->code == IR_OP_linear_add ? 2 : 0;
        const ir_param *w = at ? op->arg[at]->param : NULL;
        if (w && !is_adapter(w) && !strcmp(ir_param_module(c->ctx, w), module[0]))
            return (ir_attr_int(op, IR_ATTR_tb, 0) != 0) == w->transposed;
    }
    return false;
}

double
cg_number(const ir_module *m, const char *key)
{
    const char *s = ir_meta_get(m, key);
    double x = s ? strtod(s, NULL) : 0;
    return isfinite(x) ? x : 0;
}

static void
put_lora(cg *c, ef_buf *b)
{
    bool rows = false;
    for (int i = 0; i < c->m->params.n; i++)
        rows |= is_adapter(c->m->params.at[i]) && c->m->params.at[i]->part;
    ef_putf(b, "    .lora_r = %" PRId64 ",\n", ir_meta_int(c->m, "lora.r", 0));
    ef_putf(b, "    .lora_alpha = %s,\n    .lora_scale = %s,\n",
            ef_ftoa(cg_number(c->m, "lora.alpha")),
            ef_ftoa(cg_number(c->m, "lora.scale")));
    ef_putf(b, "    .lora_rows = %s,\n    .lora_fan_in_fan_out = %s,\n",
            rows ? "true" : "false", fan_in_fan_out(c) ? "true" : "false");
    ef_puts(b, "    .lora_targets = lora_targets,\n"
               "    .modules_to_save = modules_to_save,\n");
}

/* ---- the program ---- */

const char *
cg_hash(const ir_module *m, ef_arena *a)
{
    ef_buf text = {.arena = a};
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    ir_print_unplaced(m, &text);
    for (size_t i = 0; i < text.n; i++)
        h = (h ^ (unsigned char)text.s[i]) * 0x100000001b3u;
    return ef_printf(a, "%016" PRIx64, h);
}

/* Offset of result i of f; -1: it has none. */
static int64_t
result_at(const ir_func *f, int i)
{
    const ir_op *ret = f && f->last ? f->last->last : NULL;
    if (i < 0 || !ret || ret->code != IR_OP_ret || i >= ret->narg)
        return -1;
    return cg_offset(ret->arg[i]);
}

/* Results as pass eval orders them: of a loss with classes, and of a regression. */
static void
put_results(cg *c, ef_buf *b)
{
    const ir_func *eval = c->m->eval;
    const ir_op *ret = eval && eval->last ? eval->last->last : NULL;
    const ir_op *loss = ret && ret->narg ? ret->arg[0]->def : NULL;
    bool values = loss && loss->code == IR_OP_mse;
    bool words = loss && loss->code == IR_OP_head_ce;
    const struct {
        const char *name;
        int result;
    } row[] = {{"eval_loss_at", 0},
               {"eval_right_at", values ? -1 : 1},
               {"eval_prob_at", values || words ? -1 : 2},
               {"eval_pred_at", words ? 2 : -1},
               {"eval_value_at", values ? 2 : -1},
               {"eval_row_loss_at", values ? 1 : 3}};
    ef_putf(b, "    .loss_at = %" PRId64 ",\n", result_at(c->m->step, 0));
    ef_putf(b, "    .norm2_at = %" PRId64 ",\n", result_at(c->m->step, 1));
    for (int i = 0; i < (int)EF_COUNT(row); i++)
        ef_putf(b, "    .%s = %" PRId64 ",\n", row[i].name,
                result_at(eval, row[i].result));
}

static void
put_facts(cg *c, ef_buf *b)
{
    static const char *const text[] = {"model", "task", "family", "pool"};
    static const char *const number[] = {"batch", "seq", "vocab", "labels", "pad"};
    for (int i = 0; i < (int)EF_COUNT(text); i++) {
        const char *s = ir_meta_get(c->m, text[i]);
        ef_putf(b, "    .%s = %s,\n", text[i], cg_string(c->arena, s ? s : ""));
    }
    for (int i = 0; i < (int)EF_COUNT(number); i++)
        ef_putf(b, "    .%s = %" PRId64 ",\n", number[i],
                ir_meta_int(c->m, number[i], 0));
}

/* Sizes of each named dimension, from meta sizes.NAME. */
static void
put_sizes(cg *c, ef_buf *b)
{
    int64_t size[RT_SIZES];
    for (int sym = IR_ROWS; sym <= IR_SUP; sym++) {
        int n = cg_named_sizes(c->m, (ir_sym)sym, size);
        const char *name = sym == IR_ROWS ? "RT_ROWS" : "RT_SUP";
        if (n > 0)
            ef_putf(b, "    .nsize[%s] = %d,\n    .size[%s] = {%s},\n", name, n, name,
                    cg_ints(c->arena, n, size));
    }
}

static void
put_precision(cg *c, ef_buf *b)
{
    const char *s = ir_meta_get(c->m, "precision");
    ef_putf(b, "    .compute = %s,\n    .scaled = %s,\n",
            s && !strcmp(s, "bf16")   ? "RT_BF16"
            : s && !strcmp(s, "fp16") ? "RT_F16"
                                      : "RT_F32",
            ir_scaler(c->m) ? "true" : "false");
}

void
cg_program(cg *c, ef_buf *b)
{
    const char **targets, **saved;
    int ntargets = cg_lora_targets(c, &targets), nsaved = cg_saved_modules(c, &saved);
    ef_puts(b, "\n/* ---- what the trainer must know ---- */\n\n");
    cg_code(b, 0, ends_list(c, "lora_targets", ntargets, targets));
    cg_code(b, 0, ends_list(c, "modules_to_save", nsaved, saved));
    ef_puts(b, "\nstatic void micro(rt_run *);\nstatic void update(rt_run *);\n"
               "static void eval(rt_run *);\n"
               "\nstatic const rt_program program = {\n    .abi = RT_ABI,\n");
    ef_putf(b, "    .efficc = %s,\n", cg_string(c->arena, EFFICC_VERSION));
    put_facts(c, b);
    put_precision(c, b);
    put_sizes(c, b);
    ef_putf(b, "    .pin = %" PRId64 ",\n", ir_meta_int(c->m, "unpad.pin", -1));
    ef_putf(b, "    .hash = \"%s\",\n", cg_hash(c->m, c->arena));
    ef_putf(b, "    .align = %" PRId64 ",\n", cg_align(c->ctx));
    ef_putf(b, "    .threads = %d,\n    .cpu_features = cpu_features,\n", c->threads);
    ef_putf(b, "    .nunit = %d,\n    .unit = units,\n    .unit_bytes = unit_bytes,\n",
            c->m->units.n);
    ef_puts(b, "    .nparam = NPARAM,\n    .param = params,\n");
    ef_putf(b, "    .ninput = %d,\n    .input = inputs,\n", c->m->step->args.n);
    ef_putf(b, "    .nop = %d,\n    .op = calls,\n    .tensor = tensors,\n", c->call.n);
    ef_putf(b, "    .ngemm = %d,\n    .gemm = gemms,\n", c->gemm.n);
    ef_putf(b, "    .arena_bytes = %" PRId64 ",\n    .bound_bytes = %" PRId64 ",\n",
            ir_meta_int(c->m, "arena_bytes", 0), ir_meta_int(c->m, "bound_bytes", 0));
    put_results(c, b);
    put_lora(c, b);
    ef_puts(b, "    .micro = micro,\n    .update = update,\n    .eval = eval,\n};\n");
}
