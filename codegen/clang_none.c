/* clang_none.c -- clang_check.h of an efficc that was built without libclang. */
#include "clang_check.h"

bool
cg_check_sources(ef_ctx *ctx, const char *src)
{
    (void)ctx, (void)src;
    return true;
}

bool
cg_check_file(ef_ctx *ctx, const char *path, const cg_headers *headers)
{
    (void)ctx, (void)path, (void)headers;
    return true;
}

bool
cg_checks(void)
{
    return false;
}

const char *
cg_check_about(void)
{
    return "emitted sources are not checked before they are compiled: built without "
           "libclang";
}
