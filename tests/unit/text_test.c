/* text_test.c -- print and parse are inverse, and the parser survives any bytes. */
#include "test.h"

#include "golden.h"
#include "ir/ir.h"
#include "said.h"

/* Text of the module that `text` is; NULL: it is none. */
static char *
again(ef_ctx *ctx, const char *text, ef_arena *arena)
{
    ir_module *m = ir_parse(ctx, "t.ir", text);
    if (!m)
        return NULL;
    ef_buf b = {.arena = arena};
    ir_print(m, &b);
    ir_module_free(m);
    return b.s;
}

TEST(canonical_text_prints_back_as_it_is)
{
    golden g;
    int n = 0;
    ef_arena *arena = ef_arena_new();
    golden_open(&g, "roundtrip/*.ir");
    for (; golden_next(&g, arena); n++) {
        said s;
        said_open(&s);
        char *text = again(s.ctx, g.text, arena);
        bool same = text && !strcmp(text, g.text);
        if (!same)
            printf("  %s:\n%s%s", g.path, said_text(&s), text ? text : "");
        CHECK(same);
        said_close(&s);
    }
    CHECK(n >= 4);
    golden_close(&g);
    ef_arena_free(arena);
}

TEST(printing_is_a_fixed_point)
{
    static const char *const pattern[] = {"*/*.ir", "*/*.want"};
    ef_arena *arena = ef_arena_new();
    int n = 0;
    for (size_t i = 0; i < EF_COUNT(pattern); i++) {
        golden g;
        golden_open(&g, pattern[i]);
        while (golden_next(&g, arena)) {
            said s;
            said_open(&s);
            char *once = again(s.ctx, g.text, arena);
            if (once) {
                char *twice = again(s.ctx, once, arena);
                CHECK(twice && !strcmp(once, twice));
                n++;
            }
            said_close(&s);
        }
        golden_close(&g);
    }
    CHECK(n >= 10);
    ef_arena_free(arena);
}

TEST(a_pass_can_go_on_from_text)
{
    said s;
    said_open(&s);
    ir_module *m = ir_parse(s.ctx, "t.ir",
                            "efficc-ir 1 canon\nunit 0 \"u\"\n"
                            "func $step(%x : f32[2]) {\n@b: fwd unit=0\n"
                            "  %a = exp %x : f32[2]\n  %a.1 = exp %a : f32[2]\n"
                            "  ret %a.1\n}\n");
    NEED(m != NULL);
    CHECK(m->passes.n == 1 && !strcmp(m->passes.at[0], "canon"));
    CHECK(ir_verify(m) == 0);
    ir_op *end = m->step->last->last;
    ir_builder b = ir_at(end);
    ir_value *v = ir_ew1(&b, IR_OP_neg, "a", end->arg[0]);
    CHECK_STR(v->name, "a.2");
    CHECK(ir_verify(m) == 0);
    ir_module_free(m);
    said_close(&s);
}

TEST(a_fault_shows_its_line)
{
    said s;
    said_open(&s);
    CHECK(!ir_parse(s.ctx, "t.ir", "efficc-ir 1\nunit 0 \"u\"  oops ; c\n"));
    CHECK_STR(said_text(&s), "t.ir:2:13: error: expected the end of the line [E0101]\n"
                             "  unit 0 \"u\"  oops ; c\n"
                             "              ^\n");
    CHECK(s.ctx->nerror == 1 && !s.ctx->file);
    said_clear(&s);
    char longer[1000];
    memset(longer, 'x', sizeof longer);
    memcpy(longer, "efficc-ir 1 ", 12);
    memcpy(longer + 900, " \x01?", 4);
    CHECK(!ir_parse(s.ctx, "t.ir", longer));
    CHECK(said_has(&s, "t.ir:1:902: error: expected the name of a pass"));
    CHECK(said_has(&s, "\n  xxxx") && strlen(said_text(&s)) < 300);
    said_close(&s);
}

TEST(texts_that_are_no_module)
{
    static const struct {
        const char *text, *why;
    } row[] = {
        {"", "1:1: error: expected efficc-ir"},
        {"\n\n; nothing\n", "expected efficc-ir"},
        {"hello 1\n", "1:1: error: expected 'efficc-ir'"},
        {"efficc-ir\n", "1:10: error: expected an integer"},
        {"efficc-ir 0\n", "expected an integer from 1"},
        {"efficc-ir 2\n", "format version 2 is newer than 1"},
        {"efficc-ir 99999999999999999999\n", "expected an integer from 1"},
        {"efficc-ir 1\nfoo\n", "2:1: error: expected meta, unit, param or func"},
        {"efficc-ir 1\n}\n", "2:1: error: expected meta, unit, param or func"},
        {"efficc-ir 1\nfunc $main() {\n}\n", "2:6: error: expected $step or $eval"},
        {"efficc-ir 1\nfunc $step() {\n", "function $step is not closed"},
        {"efficc-ir 1\nfunc $step() {\n}\nfunc $step() {\n}\n", "$step exists already"},
        {"efficc-ir 1\nfunc $step(%a : f32[], %a : f32[]) {\n}\n", "%a exists already"},
        {"efficc-ir 1\nfunc $step() {\n ret\n}\n", "3:2: error: expected a block"},
        {"efficc-ir 1\nunit 0 \"u\"\nfunc $step() {\n@b: fwd unit=0\n@b: fwd "
         "unit=0\n}\n",
         "5:1: error: block @b exists already"},
        {"efficc-ir 1\nunit 0 \"u\"\nfunc $step(%x : f32[2]) {\n@b: fwd unit=0\n"
         " %a = softmax %x {axis=0, axis=0} : f32[2]\n}\n",
         "5:27: error: attribute 'axis' stands there twice"},
        {"efficc-ir 1\nunit 0 \"u\"\nfunc $step(%x : f32[2]) {\n@b: fwd unit=0\n"
         " %a, %b, %c, %d, %e = softmax %x : f32[2]\n}\n",
         "5:18: error: expected at most 4 results"},
        {"efficc-ir 1\nunit 0 \"u\"\nfunc $step() {\n@b: sideways unit=0\n}\n",
         "expected fwd, bwd or update, found 'sideways'"},
        {"efficc-ir 1\nmeta k \"\\q\"\n", "2:9: error: expected \\\\"},
        {"efficc-ir 1\nmeta k \"\\x00\"\n", "not 00"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1,1,1,1,1,1,1,1,1] train unit=0\n",
         "3:32: error: expected at most 8 dimensions"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1099511627777] train unit=0\n",
         "3:12: error: expected a tensor of at most 2^40 elements"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[-1] train unit=0\n", "from 0 to"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[col:1] train unit=0\n",
         "expected rows or sup, found 'col'"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[99999999999] const unit=0 = 0\n",
         "expected at most 67108864 literal values"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[2] const unit=0 = 0*3\n",
         "expected 2 values, found more"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1] const unit=0 = 0x10\n",
         "expected a number"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1] const unit=0 = 1e\n",
         "expected a number"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1] const unit=0 = "
         "1111111111111111111111111"
         "1111111111111111111111111111111111111111111111111111111111111111111111111111"
         "\n",
         "3:34: error: expected a number"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1] grad unit=0 of=$w\n",
         "parameter $w is not known before this line"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1] train unit=0 role=boss\n",
         "expected a role, found 'boss'"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1] train unit=0 foo=1\n",
         "a parameter has no field 'foo'"},
        {"efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[1] train unit=0 file f32 \"p\" "
         "-1\n",
         "expected an integer from 0"},
    };
    for (size_t i = 0; i < EF_COUNT(row); i++) {
        said s;
        said_open(&s);
        ir_module *m = ir_parse(s.ctx, "t.ir", row[i].text);
        CHECK(!m && said_has(&s, row[i].why));
        ir_module_free(m);
        said_close(&s);
    }
}

TEST(reading_stops_after_20_faults)
{
    said s;
    said_open(&s);
    ef_buf b = {.arena = s.ctx->arena};
    ef_puts(&b, "efficc-ir 1\n");
    for (int i = 0; i < 100; i++)
        ef_puts(&b, "bad\n");
    CHECK(!ir_parse(s.ctx, "t.ir", b.s));
    CHECK(s.ctx->nerror == 20 && said_has(&s, "reading stops after 20 faults"));
    said_close(&s);
}

TEST(a_lost_value_is_reported_once)
{
    said s;
    said_open(&s);
    CHECK(!ir_parse(s.ctx, "t.ir",
                    "efficc-ir 1\nunit 0 \"u\"\nparam $w : f32[2] tran unit=0\n"
                    "param $w.grad : f32[2] grad unit=0 of=$w\n"
                    "func $step(%x : f32[2]) {\n@b: fwd unit=0\n"
                    "  %a = add %x, $w : f32[2]\n  %b = exp %a : f32[2]\n  ret %b\n}\n"
                    "func $eval(%x : f32) {\n@b: fwd unit=0\n  ret %x\n}\n"));
    CHECK(s.ctx->nerror == 2);
    CHECK(said_has(&s, "found 'tran'") &&
          said_has(&s, "t.ir:11:20: error: expected '['"));
    said_close(&s);
}

/* ---- any bytes ---- */

static uint64_t seed = 20;

static uint32_t
rnd(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* Writes `with` over s[at .. at+old) of a text of n bytes; the new length. */
static size_t
splice(char *s, size_t n, size_t at, size_t old, const char *with, size_t len)
{
    memmove(s + at + len, s + at + old, n - at - old + 1);
    memcpy(s + at, with, len);
    return n - old + len;
}

enum { ROOM = 1 << 16 };

static void
mutate(char *s, size_t n)
{
    static const char *const word[] = {"-1",
                                       "99999999999999999999",
                                       "1099511627776",
                                       "0",
                                       "$w",
                                       "%x",
                                       "rows:4",
                                       "/dp",
                                       "fut",
                                       "{axis=9}",
                                       "[]",
                                       "]",
                                       "\"",
                                       "\\x",
                                       "\n",
                                       ";",
                                       "}",
                                       "@b: bwd unit=0\n",
                                       "perm=[1,0]",
                                       "nan",
                                       "*",
                                       "=",
                                       "part=",
                                       "i4"};
    char copy[64];
    for (uint32_t times = 1 + rnd(4); times && n > 0; times--) {
        size_t at = rnd((uint32_t)n), len = 1 + rnd(40);
        len = len > n - at ? n - at : len;
        switch (rnd(5)) {
        case 0: /* another byte */
            s[at] = (char)(1 + rnd(255));
            break;
        case 1: /* a piece goes */
            n = splice(s, n, at, len, "", 0);
            break;
        case 2: { /* a word comes */
            const char *w = word[rnd(EF_COUNT(word))];
            n = splice(s, n, at, 0, w, strlen(w));
            break;
        }
        case 3: /* a piece is copied elsewhere */
            memcpy(copy, s + at, len);
            n = splice(s, n, rnd((uint32_t)n), 0, copy, len);
            break;
        default: /* the end goes */
            if (!rnd(10))
                s[n = at] = '\0';
        }
    }
}

/* Whatever is accepted is printed, read and printed the same again; the verifier may find
 * faults in it, but comes back. */
static bool
survives(const char *text, FILE *null)
{
    ef_ctx *ctx = ef_ctx_new();
    ctx->diag = null;
    ctx->report = NULL;
    ir_module *m = ir_parse(ctx, "fuzz.ir", text);
    bool ok = true;
    if (m) {
        ir_verify(m);
        ef_buf b = {.arena = m->arena};
        ir_print(m, &b);
        char *twice = again(ctx, b.s, m->arena);
        ok = twice && !strcmp(twice, b.s);
        ir_module_free(m);
    }
    ef_ctx_free(ctx);
    return ok;
}

TEST(the_parser_survives_any_bytes)
{
    int runs = getenv("EFFICC_FUZZ_RUNS") ? atoi(getenv("EFFICC_FUZZ_RUNS")) : 40;
    ef_arena *arena = ef_arena_new();
    FILE *null = fopen("/dev/null", "w");
    golden g;
    golden_open(&g, "*/*.ir");
    char *text = malloc(ROOM + 1024);
    NEED(text && null);
    while (golden_next(&g, arena))
        for (int i = 0; i < runs; i++) {
            snprintf(text, ROOM, "%s", g.text);
            mutate(text, strlen(text));
            if (!survives(text, null)) {
                printf("  from %s:\n%s\n", g.path, text);
                CHECK(false);
            }
        }
    free(text);
    fclose(null);
    golden_close(&g);
    ef_arena_free(arena);
}

/* ---- HTML and the manual ---- */

TEST(html_has_a_column_per_pass_that_changed_something)
{
    static const char *const name[] = {"import", "canon", "dce"};
    static const char *const text[] = {"efficc-ir 1\n<a> %x & \"%loc\"\n",
                                       "efficc-ir 1 canon\n<a> %x & \"%loc\"\n",
                                       "efficc-ir 1 canon dce\n%y = exp $w\n"};
    char *page = NULL;
    size_t n;
    FILE *f = open_memstream(&page, &n);
    ir_html(f, "a<b", 3, name, text);
    fclose(f);
    CHECK(strstr(page, "<h1>a&lt;b</h1>") != NULL);
    CHECK(strstr(page, "<h2>import, canon</h2>") && strstr(page, "<h2>dce</h2>"));
    CHECK(strstr(page, "&lt;a&gt; <a>%x</a> &amp; <span class=loc>&quot;%loc&quot;") !=
          NULL);
    CHECK(strstr(page, "<span class=new><a>%y</a> = exp <a>$w</a></span>") != NULL);
    /* two columns fit on a screen, and a click scrolls the others to the value */
    CHECK(strstr(page, "max-width:46vw") && strstr(page, "s.scrollTo("));
    free(page);
}

/* docs/ir.md ends with the tables of the .def files. */
TEST(the_manual_is_up_to_date)
{
    ef_arena *arena = ef_arena_new();
    size_t n;
    char *manual = ef_read_file(arena, SRC_DIR "/docs/ir.md", 1 << 20, &n);
    NEED(manual != NULL);
    char *tables = NULL;
    FILE *f = open_memstream(&tables, &n);
    ir_print_docs(f);
    fclose(f);
    const char *at = strstr(manual, "\n## Element types\n");
    bool same = at && !strcmp(at + 1, tables);
    if (!same) {
        FILE *new = fopen(BIN_DIR "/ir-tables.md", "w");
        if (new) {
            fputs(tables, new);
            fclose(new);
        }
        printf("  docs/ir.md is behind: put %s/ir-tables.md in place of its end\n",
               BIN_DIR);
    }
    CHECK(same);
    free(tables);
    ef_arena_free(arena);
}
