/* cudnn_load.c -- finding cuDNN while a program runs. */
#include "cudnn_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* POSIX lets a pointer to data hold one to a function. */
static bool
find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

bool
rtc_dnn_load(rtc_dnn_api *api, char *error, size_t n)
{
    bool whole = true;
    *error = 0;
    memset(api, 0, sizeof *api);
    api->library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!api->library)
        return false;
#define FN(result, name, parameters) \
    whole = find(api->library, "cudnn" #name, (void *)&api->name) && whole;
    DNN_FUNCTIONS(FN)
#undef FN
    if (!whole)
        snprintf(error, n, "libcudnn.so.9 lacks functions of the backend API");
    else if (api->GetVersion() < RTC_DNN_OLDEST || api->GetVersion() >= RTC_DNN_NEXT)
        snprintf(error, n, "libcudnn.so.9 has version %zu, and %d up to %d is wanted",
                 api->GetVersion(), (int)RTC_DNN_OLDEST, (int)RTC_DNN_NEXT - 1);
    if (*error)
        rtc_dnn_unload(api);
    return !*error;
}

void
rtc_dnn_unload(rtc_dnn_api *api)
{
    if (api->library)
        dlclose(api->library);
    api->library = NULL;
}
