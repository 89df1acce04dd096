/* cudnn_api.h -- attention by cuDNN 9: what of its backend API is used, and graphs of it.
 *
 * Plain C. cuDNN is loaded when a trainer starts, where it is there, and neither its header nor
 * its library is needed before: numbers stand in cudnn.def, functions in the list below, both as
 * of cuDNN 9.19. Descriptors are opaque pointers.
 */
#ifndef EFFICC_CUDNN_API_H
#define EFFICC_CUDNN_API_H

#ifdef __cplusplus
extern "C" {
#endif
#include "../include/efficc_rt.h"

enum {
#define DNN(name, number) DNN_##name = number,
#include "cudnn.def"
#undef DNN
};

/* FN(result, name without cudnn, parameters) */
#define DNN_FUNCTIONS(FN)                                                   \
    FN(size_t, GetVersion, (void))                                          \
    FN(const char *, GetErrorString, (int status))                          \
    FN(int, Create, (void **handle))                                        \
    FN(int, Destroy, (void *handle))                                        \
    FN(int, SetStream, (void *handle, void *stream))                        \
    FN(int, BackendCreateDescriptor, (int type, void **))                   \
    FN(int, BackendDestroyDescriptor, (void *))                             \
    FN(int, BackendFinalize, (void *))                                      \
    FN(int, BackendSetAttribute,                                            \
       (void *, int attribute, int type, int64_t n, const void *))          \
    FN(int, BackendGetAttribute,                                            \
       (void *, int attribute, int type, int64_t room, int64_t *n, void *)) \
    FN(int, BackendExecute, (void *handle, void *plan, void *pack))

typedef struct rtc_dnn_api {
    void *library;
#define FN(result, name, parameters) result(*name) parameters;
    DNN_FUNCTIONS(FN)
#undef FN
} rtc_dnn_api;

/* The first version that clears its sums of dq itself, and the first whose numbers differ. */
enum { RTC_DNN_OLDEST = 90600, RTC_DNN_NEXT = 100000 };

/* Loads the library. False: it isn't there (error is empty), or it can't be used. */
bool rtc_dnn_load(rtc_dnn_api *, char *error, size_t n);
void rtc_dnn_unload(rtc_dnn_api *);

/* All that a plan depends on; compared as bytes. rows: samples are ragged. */
typedef struct rtc_dnn_shape {
    int64_t batch, seq, heads, kv_heads, d;
    int64_t ldq, ldk, ldv, qs, ks, vs;
    int64_t type, causal, rows, mask, grad;
} rtc_dnn_shape;

/* Names of tensors of a plan. Of rows, OFF_* [batch + 1] are where samples begin, in elements. */
typedef enum rtc_dnn_uid {
    DNN_Q = 1,
    DNN_K,
    DNN_V,
    DNN_Y,
    DNN_LSE,
    DNN_DY,
    DNN_DQ,
    DNN_DK,
    DNN_DV,
    DNN_SCALE,  /* float of the host */
    DNN_NONE,   /* minus infinity, of the host */
    DNN_ONE,    /* 1, of the host */
    DNN_DELTA,  /* float [batch, heads, seq], as are those of lse */
    DNN_SUM_DQ, /* float [batch, heads, seq, d] */
    DNN_BIAS,   /* float [batch, seq], added to the scores of keys */
    DNN_LENGTH, /* int32 [batch] */
    DNN_OFF_Q,  /* int64 [batch + 1] */
    DNN_OFF_K,
    DNN_OFF_V,
    DNN_OFF_Y,
    DNN_OFF_LSE,
    DNN_UIDS
} rtc_dnn_uid;

enum { RTC_DNN_PARTS = 128 };
typedef struct rtc_dnn_plan {
    void *plan;
    int64_t workspace;
    void *part[RTC_DNN_PARTS]; /* all descriptors */
    int nparts;
    bool has[DNN_UIDS];
} rtc_dnn_plan;

/* Makes a plan whose workspace has at most so many bytes: where runs: a handle, or a device
 * property, which is a card that need not be there. False: none, and why. */
bool rtc_dnn_make(const rtc_dnn_api *, rtc_dnn_plan *, const rtc_dnn_shape *,
                  void *handle, void *device, int64_t most, char *error, size_t n);
void rtc_dnn_free(const rtc_dnn_api *, rtc_dnn_plan *);
/* Runs it on the handle's stream. at[uid]: where a tensor is. 0, or cuDNN's status. */
int rtc_dnn_run(const rtc_dnn_api *, const rtc_dnn_plan *, void *handle,
                void *const at[DNN_UIDS], void *workspace);

#ifdef __cplusplus
}
#endif
#endif
