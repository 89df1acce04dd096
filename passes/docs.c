/* docs.c -- the pass table for people: --passes and docs/passes.md.
 *
 * Both come from passes.def and recognise.def; a test keeps the page equal to them.
 */
#include <string.h>

#include "pass_int.h"

static void
put_facts(FILE *f, unsigned facts)
{
    if (!facts)
        fputc('-', f);
    for (int bit = 0; facts; bit++, facts >>= 1)
        if (facts & 1)
            fprintf(f, "%s%s", pass_fact_name[bit], facts >> 1 ? " " : "");
}

/* Under which options the pass runs; NULL: always. */
static const char *
option_of(const pass_row *row)
{
    static const char *const option[] = {[LORA] = "with --lora-r",
                                         [DROPOUT] = "with --dropout",
                                         [UNPAD] = "without --no-unpad",
                                         [LOW] = "with --bf16 or --fp16",
                                         [FP16] = "with --fp16"};
    return row->when == ALWAYS ? NULL : option[row->when];
}

void
pass_list(FILE *f)
{
    for (int i = 0; i < pass_count; i++) {
        const char *option = option_of(&pass_table[i]);
        fprintf(f, option ? "  %-10s %s (%s)\n" : "  %-10s %s\n", pass_table[i].name,
                pass_table[i].summary, option);
    }
}

static void
put_passes(FILE *f)
{
    fputs("| pass | needs | gives | breaks | runs | does |\n"
          "| --- | --- | --- | --- | --- | --- |\n",
          f);
    for (int i = 0; i < pass_count; i++) {
        const pass_row *row = &pass_table[i];
        const unsigned sets[] = {row->needs, row->gives, row->breaks};
        fprintf(f, "| %s |", row->name);
        for (size_t k = 0; k < EF_COUNT(sets); k++) {
            fputc(' ', f);
            put_facts(f, sets[k]);
            fputs(" |", f);
        }
        fprintf(f, " %s | %s |\n", option_of(row) ? option_of(row) : "always",
                row->summary);
    }
}

static void
put_order(FILE *f)
{
    static const struct {
        const char *a, *b, *why;
    } rows[] = {
#define PASS(name, needs, gives, breaks, when, summary)
#define ORDER(a, b, why) {#a, #b, why},
#include "passes.def"
#undef PASS
#undef ORDER
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++)
        fprintf(f, "* %s before %s: %s\n", rows[i].a, rows[i].b, rows[i].why);
}

static void
put_recognisers(FILE *f)
{
    static const struct {
        const char *name, *pattern, *doc;
    } rows[] = {
#define RECOGNISE(name, pattern, build, doc) {#name, pattern, doc},
#include "recognise.def"
#undef RECOGNISE
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++)
        fprintf(f, "* **%s**: %s  \n  `%s`\n", rows[i].name, rows[i].doc,
                rows[i].pattern);
}

void
pass_print_docs(FILE *f)
{
    fputs(
        "# Passes\n\n"
        "Written by `pass_print_docs()` from `passes/passes.def` and "
        "`passes/recognise.def`; `tests/unit/pass_test.c` compares.\n"
        "Each pass has its contract, with an example of IR before and after, above its "
        "function; tests/golden/PASS has one file a case.\n\n"
        "The order of rows is the pipeline. Facts: what must hold before a pass "
        "(needs), "
        "what holds after it (gives), what no longer does (breaks).\n\n",
        f);
    put_passes(f);
    fputs("\n## Why this order\n\nEach line is a static assertion over the table.\n\n",
          f);
    put_order(f);
    fputs(
        "\n## Looking at passes\n\n"
        "* `--print-after=P,..`, `--print-after-all`: the IR after passes, to stderr\n"
        "* `--stop-after=P`: the IR after P to stdout; `efficc FILE.ir` goes on from "
        "it\n"
        "* `--run-pass=P,.. FILE.ir`: only these passes, then print; empty: parse, "
        "verify, "
        "print\n"
        "* `--dump=DIR`: `NN-pass.ir` after every pass and `ir.html`, one column a "
        "pass\n"
        "* `--time`: milliseconds and bytes of each pass\n"
        "* a pass that leaves broken IR ends efficc with code 70 and leaves "
        "`crash-P.ir`, whose first line has the options that repeat it\n\n"
        "## Recognisers\n\n"
        "Rows of `passes/recognise.def`, tried in this order; `--no-recognise=NAME,..` "
        "switches some off, `--no-recognise=all` all. In patterns `?x` is any value, "
        "`$w` "
        "a weight, `#c` a constant; the grammar is in `passes/match.h`.\n\n",
        f);
    put_recognisers(f);
}
