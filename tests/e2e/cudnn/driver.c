/* driver.c -- as much of libcuda.so.1 as cuDNN asks for while it makes a plan: it must be there,
 * and code that it loads has handles. Nothing runs. cuInit() fails, by which NVRTC compiles
 * without a driver, as it can. */
enum { DONE = 0, NO_DEVICE = 100, REGISTERS = 128, VERSION = 13000 };

static int thing; /* whose address is every handle */

#define NOTHING(name) \
    int name(void);   \
    int name(void)    \
    {                 \
        return DONE;  \
    }

int cuInit(unsigned);
int
cuInit(unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}

int cuDriverGetVersion(int *);
int
cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return DONE;
}

/* The first argument is where a handle goes. */
#define HANDLE(name)         \
    int name(void **handle); \
    int name(void **handle)  \
    {                        \
        *handle = &thing;    \
        return DONE;         \
    }
/* .. and here a number. */
#define NUMBER(name)    \
    int name(int *x);   \
    int name(int *x)    \
    {                   \
        *x = REGISTERS; \
        return DONE;    \
    }

HANDLE(cuLibraryLoadData)
HANDLE(cuLibraryGetKernel)
HANDLE(cuLibraryGetModule)
HANDLE(cuKernelGetFunction)
HANDLE(cuModuleLoadData)
HANDLE(cuModuleLoadDataEx)
HANDLE(cuModuleGetFunction)
NUMBER(cuKernelGetAttribute)
NUMBER(cuFuncGetAttribute)
NOTHING(cuKernelSetAttribute)
NOTHING(cuFuncSetAttribute)
NOTHING(cuLibraryUnload)
NOTHING(cuModuleUnload)
NOTHING(cuCtxGetCurrent)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxPopCurrent)
NOTHING(cuCtxPushCurrent)
NOTHING(cuDeviceGet)
NOTHING(cuDeviceGetCount)
NOTHING(cuGetErrorName)
NOTHING(cuGetErrorString)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLaunchKernel)
NOTHING(cuLaunchKernelEx)
NOTHING(cuLibraryLoadFromFile)
NOTHING(cuLinkAddData)
NOTHING(cuLinkComplete)
NOTHING(cuLinkCreate)
NOTHING(cuLinkDestroy)
NOTHING(cuOccupancyMaxPotentialClusterSize)
NOTHING(cuStreamGetCtx)
