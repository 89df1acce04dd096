/* test.h -- CUnit with less typing.
 *
 *     TEST(arena_is_zeroed) { char *p = ef_alloc(a, 9); CHECK(p[8] == 0); }
 *
 * A TEST registers itself; test_main.c runs all of a program's tests in the order of the
 * file and ends with the line "N passed, N failed, N skipped". An argument of the program
 * is a substring that a test's name must contain to run.
 */
#ifndef EFFICC_TEST_H
#define EFFICC_TEST_H

#include <CUnit/CUnit.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
} test_case;
void test_register(test_case *);

#define TEST(name)                                            \
    static void test_##name(void);                            \
    static test_case case_##name = {#name, test_##name, 0};   \
    __attribute__((constructor)) static void reg_##name(void) \
    {                                                         \
        test_register(&case_##name);                          \
    }                                                         \
    static void test_##name(void)

#define CHECK(c) CU_ASSERT(c)
/* Leaves the test at once when it fails. */
#define NEED(c)         CU_ASSERT_FATAL(c)
#define CHECK_STR(a, b) CU_ASSERT_STRING_EQUAL(a, b)
/* |a - b| <= tol, and neither is NaN; prints both when it is not so. */
#define CHECK_NEAR(a, b, tol) test_near(#a, a, b, tol, __FILE__, __LINE__)
void test_near(const char *what, double a, double b, double tol, const char *file,
               int line);
/* Counts the running test as skipped and prints why. */
#define SKIP(why)       \
    do {                \
        test_skip(why); \
        return;         \
    } while (0)
void test_skip(const char *why);

#ifdef __cplusplus
}
#endif
#endif
