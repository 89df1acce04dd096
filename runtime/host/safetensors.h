/* safetensors.h -- files of named tensors.
 *
 * Layout: 8 bytes header length, a JSON object {name: {dtype, shape, data_offsets}}, data.
 * Reading trusts nothing of the header: every range is checked before it is used. Writing
 * streams tensors that lie in memory, transposing on the way where asked.
 */
#ifndef EFFICC_SAFETENSORS_H
#define EFFICC_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rt_st_tensor {
    char *name;
    char dtype[8]; /* "F32", .. */
    int rank;
    int64_t dim[8];
    int64_t count;      /* elements */
    uint64_t at, bytes; /* in the file */
} rt_st_tensor;

typedef struct rt_st { /* an open file */
    char *path;
    int fd;
    char *meta; /* __metadata__, a JSON object; NULL: none */
    bool torch; /* it says {"format": "pt"} */
    int n;
    rt_st_tensor *tensor; /* in the order of the header */
    rt_st_tensor **by_name;
} rt_st;

/* Exit code; 0: open. Close it in any case. */
int rt_st_open(rt_st *, const char *path);
void rt_st_close(rt_st *);
const rt_st_tensor *rt_st_find(const rt_st *, const char *name); /* NULL: absent */
/* Bytes as they are, at most t->bytes from byte `from` of the tensor. */
int rt_st_read(const rt_st *, const rt_st_tensor *, uint64_t from, void *out,
               uint64_t n);
/* Can it be read as float? It can from F32, F16, BF16 and F64; else says so. */
int rt_st_check_f32(const rt_st *, const rt_st_tensor *);
/* All elements as float. */
int rt_st_read_f32(const rt_st *, const rt_st_tensor *, float *out);

struct rt_run;
typedef struct rt_st_out { /* a tensor to write, F32 */
    const char *name;
    int rank;
    int64_t dim[8]; /* as in the file */
    const float *data;
    bool transposed;         /* data is [dim[1], dim[0]] */
    const struct rt_run *of; /* data lies in its device memory; NULL: it does not */
} rt_st_out;
/* Sorts t by name; metadata {"format":"pt"} under torch. The file appears whole or not. */
int rt_st_write(const char *path, rt_st_out *t, int n, bool torch);
int rt_st_write_meta(const char *path, rt_st_out *t, int n, const char *meta);

typedef struct rt_st_made { /* a tensor that is made while it is written */
    const char *name, *dtype;
    int rank;
    int64_t dim[8];
    const void *of; /* the caller's */
} rt_st_made;
struct rt_file; /* host_int.h */
/* The same; put() writes the elements of a tensor, of its dtype. */
int rt_st_write_made(const char *path, rt_st_made *t, int n, const char *meta,
                     void (*put)(struct rt_file *, const rt_st_made *, void *arg),
                     void *arg);

#endif
