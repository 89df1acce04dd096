/* docs_test.c -- the table of docs/onnx-support.md is what fe_print_docs() writes. */
#include "frontend/frontend.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define PAGE    SRC_DIR "/docs/onnx-support.md"
#define HEADING "## Operators\n"

/* The page up to the table, which is to be written anew. */
static void
bless(const char *page, const char *at, const char *table)
{
    FILE *f = fopen(PAGE, "w");
    NEED(f != NULL);
    fprintf(f, "%.*s%s", (int)(at - page), page, table);
    fclose(f);
}

TEST(operators)
{
    ef_arena *a = ef_arena_new();
    size_t n;
    char *table = NULL, *page = ef_read_file(a, PAGE, 1 << 20, &n);
    FILE *f = open_memstream(&table, &n);
    fe_print_docs(f);
    fclose(f);
    NEED(page != NULL && strstr(page, HEADING) != NULL);
    const char *at = strstr(strstr(page, HEADING), "\n|");
    at = at ? at + 1 : page + strlen(page);
    if (getenv("EFFICC_BLESS")) {
        bless(page, at, table);
        page = ef_read_file(a, PAGE, 1 << 20, &n);
        at = strstr(strstr(page, HEADING), "\n|") + 1;
    }
    CHECK_STR(at, table);
    free(table);
    ef_arena_free(a);
}
