/* plans.c -- plans of the attentions of known models, made by cuDNN for a GPU that need not be
 * there: plans FILE, which describes it. A line each: the model, what, bytes of workspace, how
 * many of them a program has, the kernel. Exit code 77: there is no cuDNN. */
#include "runtime/cuda/cudnn_api.h"
#include "runtime/cuda/scratch.h"
#include <stdio.h>
#include <string.h>

enum { NO_CUDNN = 77, JSON = 1 << 20 };

typedef struct model {
    const char *name;
    int64_t batch, seq, heads, kv_heads, d;
    bool causal, packed, masked, f16;
} model;

static const model models[] = {
    {"gpt2", 32, 1024, 12, 12, 64, true, true, false, false},
    {"bert", 32, 512, 12, 12, 64, false, true, true, false},
    {"bert-f16", 32, 512, 12, 12, 64, false, false, true, true},
    {"llama-1b", 4, 2048, 32, 8, 64, true, false, false, false},
    {"llama-8b", 2, 4096, 32, 8, 128, true, false, true, false},
    {"small", 3, 100, 5, 5, 40, true, false, false, false},
};

static rt_attn
attention_of(const model *m)
{
    int64_t q = m->heads * m->d, k = m->kv_heads * m->d;
    return (rt_attn){.batch = m->batch,
                     .seq = m->seq,
                     .heads = m->heads,
                     .kv_heads = m->kv_heads,
                     .d = m->d,
                     .type = m->f16 ? RT_F16 : RT_BF16,
                     .ldq = m->packed ? 3 * q : q,
                     .ldk = m->packed ? 3 * q : k,
                     .ldv = m->packed ? 3 * q : k,
                     .qs = m->d,
                     .ks = m->d,
                     .vs = m->d,
                     .scale = 0.125f,
                     .causal = m->causal};
}

/* Name of the kernel, in the plan's text. */
static void
kernel_of(const rtc_dnn_api *api, void *plan, char *name, size_t n)
{
    static char text[JSON];
    int64_t length = 0;
    memset(text, 0, sizeof text);
    api->BackendGetAttribute(plan, DNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                             DNN_TYPE_CHAR, JSON - 1, &length, text);
    const char *at = strstr(text, "cudnn_generated");
    snprintf(name, n, "%.*s", at ? (int)strcspn(at, "\"") : 1, at ? at : "?");
}

static bool
plan(const rtc_dnn_api *api, void *device, const model *m, bool rows, bool grad)
{
    rt_attn a = attention_of(m);
    rtc_dnn_plan p;
    char error[300] = "cuDNN isn't asked", name[200];
    int64_t most = rtc_dnn_layout(&a, grad).most;
    rtc_dnn_shape s = {a.batch, a.seq,  a.heads,  a.kv_heads, a.d,
                       a.ldq,   a.ldk,  a.ldv,    a.qs,       a.ks,
                       a.vs,    a.type, a.causal, rows,       m->masked && !rows,
                       grad};
    bool ok = rtc_dnn_serves(&a) &&
              rtc_dnn_make(api, &p, &s, NULL, device, most, error, sizeof error);
    printf("%-9s %s %-8s ", m->name, rows ? "rows  " : "padded",
           grad ? "backward" : "forward");
    if (!ok) {
        printf("failed: %s\n", error);
        return false;
    }
    kernel_of(api, p.plan, name, sizeof name);
    printf("%lld of %lld %s\n", (long long)p.workspace, (long long)most, name);
    fflush(stdout);
    rtc_dnn_free(api, &p);
    return true;
}

static void *
device_of(const rtc_dnn_api *api, const char *path)
{
    static char text[4096];
    FILE *f = fopen(path, "r");
    void *d = NULL;
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    if (!n || api->BackendCreateDescriptor(DNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d) ||
        api->BackendSetAttribute(d, DNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                 DNN_TYPE_CHAR, (int64_t)n, text) ||
        api->BackendFinalize(d))
        return NULL;
    return d;
}

int
main(int argc, char **argv)
{
    rtc_dnn_api api;
    char error[200];
    bool ok = true;
    if (argc != 2 || !rtc_dnn_load(&api, error, sizeof error)) {
        printf("no cuDNN%s%s\n", argc == 2 && *error ? ": " : "",
               argc == 2 ? error : "");
        return NO_CUDNN;
    }
    void *device = device_of(&api, argv[1]);
    if (!device) {
        printf("cuDNN doesn't take the device of %s\n", argv[1]);
        return 1;
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int k = 0; k < 4; k++)
            ok = plan(&api, device, &models[i], k / 2, k % 2) && ok;
    return !ok;
}
