/* test_main.c -- runs the tests that registered themselves; see test.h.
 *
 *     NAME_test [PART | =NAME | --list]      all, those with PART in their name, one, or their names
 */
#include "test.h"

#include <CUnit/Basic.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static test_case *first, **last = &first;
static int nskipped;

void
test_register(test_case *t)
{
    *last = t;
    last = &t->next;
}

void
test_near(const char *what, double a, double b, double tol, const char *file, int line)
{
    bool ok = fabs(a - b) <= tol;
    if (!ok)
        printf("  %s:%d: %s is %.9g, not %.9g (off by %.2g, allowed %.2g)\n", file,
               line, what, a, b, fabs(a - b), tol);
    CU_assertImplementation(ok, (unsigned)line, what, file, "", CU_FALSE);
}

void
test_skip(const char *why)
{
    printf("  skipped: %s\n", why);
    nskipped++;
}

/* Is the test asked for? By a part of its name, or =NAME. */
static bool
is_chosen(const test_case *t, const char *which)
{
    return *which == '=' ? !strcmp(t->name, which + 1) : strstr(t->name, which) != NULL;
}

int
main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--list")) {
        for (test_case *t = first; t; t = t->next)
            puts(t->name);
        return 0;
    }
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 2;
    CU_pSuite suite = CU_add_suite("efficc", NULL, NULL);
    for (test_case *t = first; t; t = t->next)
        if (argc < 2 || is_chosen(t, argv[1]))
            CU_add_test(suite, t->name, t->run);
    CU_basic_set_mode(CU_BRM_NORMAL);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_tests_failed();
    unsigned run = CU_get_number_of_tests_run();
    CU_cleanup_registry();
    printf("%u passed, %u failed, %d skipped\n", run - failed - (unsigned)nskipped,
           failed, nskipped);
    return failed || !run;
}
