/* clang_lib.c -- libclang, loaded when it is needed. */
#include "clang_lib.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

/* As found when efficc was built. The first is a link, which may since lead to a newer one; it
 * belongs to the package with the headers, which may since be gone. */
static const char *const places[] = {EFFICC_LIBCLANG, EFFICC_LIBCLANG_FILE};

static bool
find(void *library, const char *name, void *function)
{
    void **at = function; /* POSIX: pointers to functions are as wide */
    *at = dlsym(library, name);
    return *at != NULL;
}

const cg_clang *
cg_clang_load(void)
{
    static cg_clang clang;
    static bool tried, found;
    void *library = NULL;
    if (tried)
        return found ? &clang : NULL;
    tried = true;
    for (size_t i = 0; i < sizeof places / sizeof *places && !library; i++)
        library = dlopen(places[i], RTLD_LAZY | RTLD_LOCAL);
    found = library != NULL;
#define CLANG(name) found = found && find(library, "clang_" #name, &clang.name);
#include "clang_lib.def"
#undef CLANG
    return found ? &clang : NULL;
}
