/* toolkit.c -- finding the driver, nvcc, and the toolkit's libraries.
 *
 * Libraries lie in lib64, lib, or targets/NAME/lib of the folder that holds nvcc's bin. A
 * toolkit made from NVIDIA's packages for Python has them with their versions only
 * (libcublasLt.so.13), so they are linked by file name where there is no plain one.
 */
#include "toolkit.h"
#include "cuda_limits.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int
cg_cuda_devices(void)
{
    static int found = -1;
    void *driver = found < 0 ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (found < 0)
        found = 0;
    if (!driver)
        return found;
    int (*init)(unsigned), (*count)(int *), n = 0;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&count = dlsym(driver, "cuDeviceGetCount");
    if (init && count && !init(0) && !count(&n) && n > 0)
        found = n;
    return found;
}

/* ---- nvcc ---- */

static bool
runs(const char *path)
{
    struct stat st;
    return path && *path && !stat(path, &st) && S_ISREG(st.st_mode) &&
           !access(path, X_OK);
}

static const char *
on_path(ef_arena *a, const char *name)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        const char *file = ef_printf(a, "%.*s/%s", (int)n, path, name);
        if (n && runs(file))
            return file;
        path += n + (path[n] == ':');
    }
    return NULL;
}

/* --nvcc as a path, or as it was given if there is none of that name. */
static const char *
named(ef_ctx *ctx)
{
    const char *name = ctx->cfg->nvcc;
    const char *file = strchr(name, '/') ? NULL : on_path(ctx->arena, name);
    return file ? file : name;
}

static const char *
of_home(ef_arena *a)
{
    const char *home = getenv("CUDA_HOME");
    return home && *home ? ef_printf(a, "%s/bin/nvcc", home) : NULL;
}

const char *
cg_nvcc(ef_ctx *ctx)
{
    const char *const place[] = {of_home(ctx->arena), EFFICC_NVCC,
                                 "/usr/local/cuda/bin/nvcc"};
    if (ctx->cfg->nvcc)
        return named(ctx);
    for (int i = 0; i < (int)EF_COUNT(place); i++)
        if (runs(place[i]))
            return place[i];
    return on_path(ctx->arena, "nvcc");
}

const char *
cg_wrong_nvcc(ef_ctx *ctx)
{
    const char *nvcc = ctx->cfg->nvcc ? named(ctx) : NULL;
    return nvcc && !runs(nvcc) ? nvcc : NULL;
}

const char *
cg_wrong_home(ef_ctx *ctx)
{
    const char *nvcc = ctx->cfg->nvcc ? NULL : of_home(ctx->arena);
    return !nvcc || runs(nvcc)
               ? ""
               : ef_printf(ctx->arena, "; CUDA_HOME is %s, where there is no bin/nvcc",
                           getenv("CUDA_HOME"));
}

bool
cg_has_cuda_runtime(void)
{
    return !access(EFFICC_RT_CUDA_LIB, R_OK);
}

const char *
cg_arch(const ef_ctx *ctx)
{
    return ctx->cfg->cuda_arch ? ctx->cfg->cuda_arch : CG_ARCH_DEFAULT;
}

const char *
cg_arch_flags(ef_ctx *ctx)
{
    const char *n = cg_arch(ctx) + strlen("sm_");
    return ef_printf(ctx->arena,
                     "-gencode arch=compute_%s,code=sm_%s "
                     "-gencode arch=compute_%s,code=compute_%s",
                     n, n, n, n);
}

/* ---- libraries ---- */

typedef struct folders { /* that may hold libraries */
    const char *at[3];
} folders;

static folders
folders_of(ef_ctx *ctx, const char *nvcc)
{
    static const char *const name[] = {"lib64", "lib", "targets/x86_64-linux/lib"};
    folders f = {{NULL}};
    char real[PATH_MAX];
    const char *file = strchr(nvcc, '/') ? nvcc : on_path(ctx->arena, nvcc);
    if (!file || !realpath(file, real))
        return f;
    for (int i = 0; i < 2; i++) { /* the folder above bin */
        char *slash = strrchr(real, '/');
        if (slash)
            *slash = 0;
    }
    for (int i = 0; i < (int)EF_COUNT(name); i++)
        f.at[i] = ef_printf(ctx->arena, "%s/%s", real, name[i]);
    return f;
}

/* The first file of that pattern in the folder. NULL: none. */
static const char *
match(ef_arena *a, const char *folder, const char *pattern)
{
    glob_t g;
    const char *found = NULL;
    if (!folder || glob(ef_printf(a, "%s/%s", folder, pattern), 0, NULL, &g))
        return NULL;
    found = ef_strdup(a, g.gl_pathv[0]);
    globfree(&g);
    return found;
}

static void
add(ef_arena *a, cg_words *w, const char *word)
{
    ef_push(a, *w, ef_strdup(a, word));
}

/* The folder is looked into, by the linker and when the program starts. */
static void
add_folder(ef_arena *a, cg_words *w, const char *folder)
{
    for (int i = 0; i < w->n; i++)
        if (!strcmp(w->at[i], folder))
            return;
    add(a, w, "-L");
    add(a, w, folder);
    add(a, w, "-Xlinker");
    add(a, w, "-rpath");
    add(a, w, "-Xlinker");
    add(a, w, folder);
}

/* A shared library of the toolkit. false: it is in none of the folders. */
static bool
add_shared(ef_ctx *ctx, const folders *f, const char *name, cg_words *w)
{
    ef_arena *a = ctx->arena;
    for (int i = 0; i < (int)EF_COUNT(f->at); i++) {
        bool plain = match(a, f->at[i], ef_printf(a, "lib%s.so", name));
        const char *file =
            plain ? NULL : match(a, f->at[i], ef_printf(a, "lib%s.so.*", name));
        if (!plain && !file)
            continue;
        add_folder(a, w, f->at[i]);
        add(a, w,
            plain ? ef_printf(a, "-l%s", name)
                  : ef_printf(a, "-l:%s", strrchr(file, '/') + 1));
        return true;
    }
    return false;
}

void
cg_link_toolkit(ef_ctx *ctx, const char *nvcc, cg_words *w)
{
    static const char *const name[] = {"cublasLt", "nccl"};
    ef_arena *a = ctx->arena;
    folders f = folders_of(ctx, nvcc);
    bool fixed = false; /* nvcc links the static runtime by itself */
    for (int i = 0; i < (int)EF_COUNT(f.at); i++)
        fixed |= match(a, f.at[i], "libcudart_static.a") != NULL;
    if (!fixed && add_shared(ctx, &f, "cudart", w)) {
        add(a, w, "-cudart");
        add(a, w, "none");
    }
    add(a, w, "-Xlinker");
    add(a, w, "--as-needed"); /* one rank needs no NCCL */
    for (int i = 0; i < (int)EF_COUNT(name); i++)
        if (!add_shared(ctx, &f, name[i], w))
            add(a, w, ef_printf(a, "-l%s", name[i]));
}
