/* fill.c -- random weights for a model whose file has none: makes the file of its external data.
 *
 *     fill MODEL.onnx
 *
 * Speed is measured with it: zeros would be multiplied with less power, at a higher clock. So
 * matrices are normal numbers, as models begin with: N(0, 0.02^2), from four 16-bit numbers of a
 * hash of the element's place. Of vectors the weights of norms are 1, biases 0.
 */
#include "onnx.pb-c.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 16 };

static bool
fails(const char *what, const char *name)
{
    fprintf(stderr, "fill: %s: %s\n", name, what);
    return false;
}

/* splitmix64 */
static uint64_t
hash(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static float
normal(uint64_t at)
{
    uint64_t h = hash(at);
    int64_t sum =
        (int64_t)((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
    return (float)(sum - 2 * 0xffff) * (0.02f / 37837.2f); /* 65536 / sqrt(3) */
}

static const char *
entry(const Onnx__TensorProto *t, const char *key)
{
    for (size_t i = 0; i < t->n_external_data; i++)
        if (!strcmp(t->external_data[i]->key, key))
            return t->external_data[i]->value;
    return "";
}

static bool
fill(int file, const Onnx__TensorProto *t, uint64_t seed)
{
    static float x[CHUNK];
    long long at = atoll(entry(t, "offset")), bytes = atoll(entry(t, "length"));
    int64_t n = 1;
    for (size_t k = 0; k < t->n_dims; k++)
        n *= t->dims[k];
    if (t->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT || bytes != 4 * n)
        return fails("not an external tensor of floats", t->name);
    bool gain = strstr(t->name, "weight") != NULL;
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        for (int64_t k = 0; k < m; k++)
            x[k] =
                t->n_dims > 1 ? normal((seed << 40) + (uint64_t)(i + k)) : (float)gain;
        size_t size = (size_t)m * sizeof *x;
        if (pwrite(file, x, size, (off_t)(at + 4 * i)) != (ssize_t)size)
            return fails("the data can't be written; is the disk full?", t->name);
    }
    return true;
}

static Onnx__ModelProto *
read_model(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        return NULL;
    size_t n = (size_t)ftell(f);
    uint8_t *bytes = malloc(n + 1);
    rewind(f);
    bool read = bytes && fread(bytes, 1, n, f) == n;
    fclose(f);
    Onnx__ModelProto *m = read ? onnx__model_proto__unpack(NULL, n, bytes) : NULL;
    free(bytes);
    return m;
}

/* All external tensors of the model, in a file `path`.data. */
static bool
fill_all(const Onnx__ModelProto *m, const char *path)
{
    char data[4096];
    if ((size_t)snprintf(data, sizeof data, "%s.data", path) >= sizeof data)
        return fails("the path is too long", path);
    int file = open(data, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0)
        return fails("can't be written", data);
    const char *slash = strrchr(data, '/'), *name = slash ? slash + 1 : data;
    bool ok = true;
    for (size_t i = 0; ok && i < m->graph->n_initializer; i++) {
        const Onnx__TensorProto *t = m->graph->initializer[i];
        if (t->data_location != ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL)
            continue;
        ok = strcmp(entry(t, "location"), name) ? fails("lies in another file", t->name)
                                                : fill(file, t, i);
    }
    if (close(file))
        ok = fails("can't be written", data);
    return ok;
}

int
main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fill MODEL.onnx\n");
        return 1;
    }
    Onnx__ModelProto *m = read_model(argv[1]);
    if (!m || !m->graph)
        return fails("is no ONNX model", argv[1]), 1;
    bool ok = fill_all(m, argv[1]);
    onnx__model_proto__free_unpacked(m, NULL);
    return !ok;
}
