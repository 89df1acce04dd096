/* onnx_report.c -- tells the user what the import decided: one fact a line, names in the
 * first column.
 */
#include "import_int.h"

#include <string.h>

enum { NAMES_SHOWN = 4 }; /* of a list, the rest is counted */

static void
line(fe_imp *im, const char **head, const char *text)
{
    ef_report(im->ctx, "%-11s %s", *head, text);
    *head = "";
}

static const char *
grouped(fe_imp *im, int64_t n)
{
    char digits[32];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)n);
    ef_buf b = {.arena = im->arena};
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            ef_puts(&b, ",");
        ef_putn(&b, digits + i, 1);
    }
    return b.s;
}

static void
report_model(fe_imp *im)
{
    const char *family = ir_meta_get(im->m, "family");
    int ops = 0;
    for (ir_op *op = ir_first_op(im->m->step); op; op = ir_next_op(op))
        ops++;
    ef_report(im->ctx, "%-11s %s: %s, by %s", "model", im->f->path,
              family ? family : "family unknown", ir_meta_get(im->m, "exporter"));
    ef_report(im->ctx, "%-11s %d of %zu node%s reach an output; folded to %d op%s",
              "graph", im->main->order.n, im->main->p->n_node,
              im->main->p->n_node == 1 ? "" : "s", ops, ops == 1 ? "" : "s");
}

static void
report_dims(fe_imp *im)
{
    ef_buf b = {.arena = im->arena};
    for (int i = 0; i < im->dims.n; i++)
        ef_putf(&b, "%s%s = %lld (%s)", i ? ", " : "", im->dims.at[i].name,
                (long long)im->dims.at[i].size, im->dims.at[i].from);
    ef_report(im->ctx, "%-11s %s", "dims", b.n ? b.s : "all fixed in the file");
}

static void
report_inputs(fe_imp *im)
{
    static const struct {
        const char *role, *text;
    } rows[] = {
        {"ids", "token ids"},
        {"mask", "attention mask; 1 for every token where the data have none"},
        {"types", "token types; 0 where the data have none"},
        {"positions", "positions; counted from the mask where the data have none"}};
    const char *head = "inputs";
    for (int i = 0; i < im->m->step->args.n; i++) {
        const ir_value *a = im->m->step->args.at[i];
        const char *role = ir_meta_get(im->m, ef_internf(im->ctx, "input.%s", a->name));
        const char *what = NULL; /* of dropout: no input of the model's */
        for (size_t r = 0; r < EF_COUNT(rows); r++)
            what = !strcmp(role, rows[r].role) ? rows[r].text : what;
        if (!what)
            continue;
        line(im, &head,
             ef_printf(im->arena, "%s %s: %s%s", a->name,
                       ir_type_text(im->ctx, a->type), what,
                       a->nuse ? "" : " (not read)"));
    }
}

static void
report_outputs(fe_imp *im)
{
    const ir_op *ret = im->m->step->last->last;
    const char *name = ir_meta_get(im->m, "outputs");
    ef_buf b = {.arena = im->arena};
    for (int i = 0; i < ret->narg; i++) {
        size_t n = strcspn(name, ",");
        ef_putf(&b, "%s%.*s %s", i ? ", " : "", (int)n, name,
                ir_type_text(im->ctx, ret->arg[i]->type));
        name += n + (name[n] == ',');
    }
    for (int i = 0; i < im->dropped.n && i < NAMES_SHOWN; i++)
        ef_putf(&b, "%s%s", i ? ", " : "; left out: ", im->dropped.at[i]);
    if (im->dropped.n > NAMES_SHOWN)
        ef_putf(&b, " and %d more", im->dropped.n - NAMES_SHOWN);
    ef_report(im->ctx, "%-11s %s", "outputs", b.s);
}

static void
report_units(fe_imp *im)
{
    int n = im->layers.n;
    if (!n) {
        ef_report(im->ctx, "%-11s one: no layers were found by name", "units");
        return;
    }
    ef_report(im->ctx, "%-11s embeddings, %d layer%s (%s%s%s), head", "units", n,
              n == 1 ? "" : "s", im->layers.at[0], n > 1 ? " .. " : "",
              n > 1 ? im->layers.at[n - 1] : "");
}

static void
report_params(fe_imp *im)
{
    int64_t n = 0, numbers = 0, named = 0, half = 0;
    for (int i = 0; i < im->m->params.n; i++) {
        const ir_param *p = im->m->params.at[i];
        if (p->cls != IR_TRAIN)
            continue;
        n++;
        numbers += ir_type_count(p->value->type);
        named += p->hf != NULL;
        half += p->init == IR_INIT_FILE && p->file_dtype != IR_F32;
    }
    ef_report(im->ctx, "%-11s %lld weights, %s numbers; %s have PyTorch names",
              "weights", (long long)n, grouped(im, numbers),
              n == named ? "all" : ef_printf(im->arena, "%lld", (long long)named));
    if (half)
        ef_report(im->ctx, "%-11s %lld weights of 16 bits, whose masters are fp32", "",
                  (long long)half);
}

/* Weights without PyTorch's name, and those that are not quite PyTorch's. */
static void
report_names(fe_imp *im)
{
    ef_buf b = {.arena = im->arena};
    int nameless = 0, shifted = 0;
    for (int i = 0; i < im->m->params.n; i++) {
        const ir_param *p = im->m->params.at[i];
        shifted += p->shift != 0;
        if (p->cls == IR_TRAIN && !p->hf && nameless++ < NAMES_SHOWN)
            ef_putf(&b, "%s%s", b.n ? ", " : "", p->value->name);
    }
    if (nameless)
        ef_report(im->ctx, "%-11s no PyTorch name: %s%s%s", "", b.s,
                  nameless > NAMES_SHOWN ? ", .." : "",
                  im->config ? "" : "; --hf-config config.json may tell");
    if (shifted)
        ef_report(im->ctx,
                  "%-11s %d norms hold 1 + weight, as Gemma's; the weight decays, and "
                  "is what model.safetensors gets",
                  "", shifted);
    for (int i = 0; i < im->params.n; i++) {
        const fe_param *p = im->params.at[i];
        if (p->some_rows && p->ir)
            ef_report(im->ctx,
                      "%-11s %s holds %lld rows of %s: set max_position_embeddings to "
                      "that in config.json",
                      "", p->onnx, (long long)p->t->dim[p->lead], p->hf);
        if (p->looked_up && p->ir && p->ir->cls == IR_CONST)
            ef_report(im->ctx,
                      "%-11s %s holds rows of an embedding that the export looked up: "
                      "it is not trained",
                      "", p->onnx);
    }
}

static void
report_ties(fe_imp *im)
{
    const char *head = "ties";
    for (int i = 0; i < im->params.n; i++) {
        const fe_param *p = im->params.at[i];
        if (p->ir && p->ir->cls == IR_TRAIN && p->table && p->product)
            line(im, &head,
                 ef_printf(im->arena, "%s is looked up and multiplied by: one weight",
                           p->ir->value->name));
        else if (p->ir && p->ir->cls == IR_TRAIN && p->other && p->t->rank > 1)
            line(
                im, &head,
                ef_printf(im->arena,
                          "%s is read in %s and %s: one weight (or equal ones, as of a "
                          "layer's untrained copies, which exporters merge)",
                          p->ir->value->name, p->reader, p->other));
        if (p->tie && p->tie->ir)
            line(im, &head,
                 ef_printf(im->arena, "%s holds %s%s; trained as one", p->onnx,
                           p->tie->ir->value->name,
                           p->tie_transposed ? " transposed" : ""));
    }
}

/* One line for each initializer that several modules share. */
static void
report_unshared(fe_imp *im)
{
    const char *head = "un-shared";
    for (int i = 0; i < im->weights.n; i++) {
        const char *name = im->weights.at[i]->name, *first = NULL;
        int copies = 0;
        for (int k = 0; k < im->params.n; k++)
            if (im->params.at[k]->onnx == name && im->params.at[k]->ir &&
                !im->params.at[k]->owner) {
                copies++;
                first = first ? first : im->params.at[k]->ir->value->name;
            }
        if (copies)
            line(im, &head,
                 ef_printf(im->arena,
                           "%s also holds %d equal vector%s, trained "
                           "apart: %s%s",
                           name, copies, copies > 1 ? "s" : "", first,
                           copies > 1 ? ", .." : ""));
    }
}

void
fe_report_import(fe_imp *im)
{
    report_model(im);
    report_dims(im);
    report_inputs(im);
    report_outputs(im);
    report_units(im);
    report_params(im);
    report_names(im);
    report_ties(im);
    report_unshared(im);
    if (im->ndropped)
        ef_report(im->ctx,
                  "%-11s %d places, as exported in training mode; --dropout 0: none",
                  "dropout", im->ndropped);
    if (im->nundropped)
        ef_report(im->ctx, "%-11s %d places left out: not of rows of tokens", "dropout",
                  im->nundropped);
}
