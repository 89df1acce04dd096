/* card.c -- the GPU and NVIDIA's libraries as programs would find them, a line each: "card", the
 * number of cards, compute capability, versions of driver, cuBLASLt, cuDNN and NCCL; for
 * tests/gpu/run.sh. Needs no toolkit. Exit code 77 where there is no GPU, and a line that says why.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* A function of a library; `to` is a pointer to a function pointer. */
static int
find(const char *const *file, const char *name, void *to)
{
    void *symbol = NULL;
    for (; *file && !symbol; file++) {
        void *library = dlopen(*file, RTLD_NOW | RTLD_LOCAL);
        symbol = library ? dlsym(library, name) : NULL;
    }
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

static int
none(const char *why)
{
    printf("no device: %s\n", why);
    return 77;
}

static int
driver(void)
{
    static const char *const file[] = {"libcuda.so.1", NULL};
    int (*init)(unsigned), (*count)(int *), (*get)(int *, int), (*version)(int *);
    int (*name)(char *, int, int), (*attribute)(int *, int, int);
    if (!find(file, "cuInit", (void *)&init) ||
        !find(file, "cuDeviceGetCount", (void *)&count) ||
        !find(file, "cuDeviceGet", (void *)&get) ||
        !find(file, "cuDeviceGetName", (void *)&name) ||
        !find(file, "cuDriverGetVersion", (void *)&version) ||
        !find(file, "cuDeviceGetAttribute", (void *)&attribute))
        return none("the driver's libcuda.so.1 is not here");
    int n = 0, v = 0, device = 0, major = 0, minor = 0, mode = 0, rc = init(0);
    char text[256] = "", why[64];
    if (rc || count(&n) || !n) {
        snprintf(why, sizeof why, "the driver has none (error %d)", rc);
        return none(why);
    }
    /* CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, .._COMPUTE_CAPABILITY_.. */
    enum { MODE = 20, MAJOR = 75, MINOR = 76 };
    version(&v);
    if (get(&device, 0) || name(text, (int)sizeof text, device) ||
        attribute(&major, MAJOR, device) || attribute(&minor, MINOR, device) ||
        attribute(&mode, MODE, device))
        return none("the first card can't be asked");
    printf("card %s\ncards %d\ncapability %d.%d\ndriver_cuda %d.%d\ncompute_mode %d\n",
           text, n, major, minor, v / 1000, v % 1000 / 10, mode);
    return 0;
}

int
main(void)
{
    static const char *const blas[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                       "libcublasLt.so", NULL};
    static const char *const dnn[] = {"libcudnn.so.9", NULL}, *const ccl[] = {
                                                                  "libnccl.so.2", NULL};
    size_t (*size)(void);
    int (*nccl)(int *), n;
    if (find(blas, "cublasLtGetVersion", (void *)&size))
        printf("cublaslt %zu\n", size());
    if (find(dnn, "cudnnGetVersion", (void *)&size))
        printf("cudnn %zu\n", size());
    if (find(ccl, "ncclGetVersion", (void *)&nccl) && !nccl(&n))
        printf("nccl %d\n", n);
    return driver();
}
