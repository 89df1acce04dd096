// cudnn.cpp -- libcudnn.so.9 of the virtual GPU: as much of the backend API as attention needs.
//
// A plan is its graph, and running it is doing one operation after the other in doubles, with the
// whole matrix of scores, rounded where a tensor has a low type. So a graph that says something
// else than attention, wrong strides, offsets or pointers give wrong numbers. VGPU_CUDNN=old: the
// library says that it is an old version; refuse: it has no engine; wrong: results are too large; add:
// sums of dq are added to what was there. A pointer is as aligned as its tensor says, or refused.
#include "runtime/cuda/cudnn_api.h"
#include "../rig/vgpu_types.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

enum { GOOD = 0, BAD = 2000, NOT_SUPPORTED = 3000, VERSION = 91900 };

struct Descriptor {
    int type;
    bool final = false;
    std::map<int, std::vector<char>> set;
    const Descriptor *config = nullptr; // of a configuration: the graph

    template <class T> T get(int attribute, T otherwise = T()) const
    {
        auto at = set.find(attribute);
        T x = otherwise;
        if (at != set.end())
            memcpy(&x, at->second.data(), sizeof x);
        return x;
    }
    const Descriptor *part(int attribute) const
    {
        return get<const Descriptor *>(attribute, nullptr);
    }
    template <class T> std::vector<T> list(int attribute) const
    {
        auto at = set.find(attribute);
        std::vector<T> x(at == set.end() ? 0 : at->second.size() / sizeof(T));
        if (!x.empty())
            memcpy(x.data(), at->second.data(), x.size() * sizeof(T));
        return x;
    }
};

bool
behaves(const char *how)
{
    const char *x = getenv("VGPU_CUDNN");
    return x && !strcmp(x, how);
}

size_t
size_of(int type)
{
    switch (type) {
    case DNN_TYPE_BOOLEAN:
    case DNN_TYPE_CHAR: return 1;
    case DNN_TYPE_DATA_TYPE:
    case DNN_TYPE_HEUR_MODE:
    case DNN_TYPE_POINTWISE_MODE:
    case DNN_TYPE_REDUCTION_OPERATOR_TYPE: return 4;
    default: return 8;
    }
}

// ---- elements ----

double
low_value(uint16_t x, int type)
{
    if (type == DNN_DATA_BFLOAT16) {
        uint32_t w = (uint32_t)x << 16;
        float f;
        memcpy(&f, &w, sizeof f);
        return (double)f;
    }
    int e = x >> 10 & 31, m = x & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return x >> 15 ? -v : v;
}

// The nearest number of the type.
double
rounded(double x, int type)
{
    if (type == DNN_DATA_FLOAT)
        return (double)(float)x;
    if ((type != DNN_DATA_BFLOAT16 && type != DNN_DATA_HALF) || x == 0 || !std::isfinite(x))
        return x;
    int e, digits = type == DNN_DATA_BFLOAT16 ? 8 : 11, least = type == DNN_DATA_BFLOAT16 ? -133 : -24;
    frexp(x, &e);
    double unit = ldexp(1, e - digits < least ? least : e - digits);
    return nearbyint(x / unit) * unit;
}

uint16_t
low_bits(double x, int type)
{
    x = rounded(x, type);
    if (type == DNN_DATA_BFLOAT16) {
        float f = (float)x;
        uint32_t w;
        memcpy(&w, &f, sizeof w);
        return (uint16_t)(w >> 16);
    }
    uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (!(a <= 65504))
        return sign | (std::isnan(x) ? 0x7e00 : 0x7c00);
    for (uint32_t bits = 0, step = 1u << 14;; step >>= 1) { // the largest that is not above
        if (low_value((uint16_t)(bits | step), type) <= a)
            bits |= step;
        if (step == 1)
            return (uint16_t)(sign | bits);
    }
}

// ---- a run ----

typedef std::vector<double> Values;

struct Run {
    std::map<int64_t, void *> at; // by uid
    std::map<int64_t, Values> inner;
    std::map<int64_t, double> scalar; // by-value tensors, as they were when it was enqueued
    const Descriptor *graph;
};

struct Tensor {
    int64_t uid, n[4], step[4];
    int type;
    bool inner, value;
    const Descriptor *ragged;

    explicit Tensor(const Descriptor *d)
    {
        uid = d->get<int64_t>(DNN_ATTR_TENSOR_UNIQUE_ID);
        type = d->get<int>(DNN_ATTR_TENSOR_DATA_TYPE);
        inner = d->get<bool>(DNN_ATTR_TENSOR_IS_VIRTUAL);
        value = d->get<bool>(DNN_ATTR_TENSOR_IS_BY_VALUE, false);
        ragged = d->part(DNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
        auto dims = d->list<int64_t>(DNN_ATTR_TENSOR_DIMENSIONS);
        auto steps = d->list<int64_t>(DNN_ATTR_TENSOR_STRIDES);
        for (int i = 0; i < 4; i++)
            n[i] = dims[i], step[i] = steps[i];
    }
    int64_t count() const
    {
        return n[0] * n[1] * n[2] * n[3];
    }
    // Element of flat index i, in order of dims; -1: behind the end of its sample.
    int64_t place(const Run &r, int64_t i) const
    {
        int64_t c[4] = {i / (n[1] * n[2] * n[3]), i / (n[2] * n[3]) % n[1], i / n[3] % n[2],
                        i % n[3]};
        int64_t at = c[1] * step[1] + c[2] * step[2] + c[3] * step[3];
        if (!ragged)
            return at + c[0] * step[0];
        int axis = step[3] != 1 && step[2] == 1 ? 3 : 2;
        const int64_t *begin =
            (const int64_t *)r.at.at(ragged->get<int64_t>(DNN_ATTR_TENSOR_UNIQUE_ID));
        if (c[axis] >= (begin[c[0] + 1] - begin[c[0]]) / step[axis])
            return -1;
        return begin[c[0]] + at;
    }
};

Values
read(const Run &r, const Descriptor *d)
{
    Tensor t(d);
    if (t.inner)
        return r.inner.at(t.uid);
    if (t.value)
        return Values(1, r.scalar.at(t.uid));
    const char *p = (const char *)r.at.at(t.uid);
    Values x((size_t)t.count());
    for (int64_t i = 0; i < t.count(); i++) {
        int64_t k = t.place(r, i);
        if (k < 0)
            x[i] = 0;
        else if (t.type == DNN_DATA_FLOAT)
            x[i] = (double)((const float *)p)[k];
        else if (t.type == DNN_DATA_INT32)
            x[i] = ((const int32_t *)p)[k];
        else
            x[i] = low_value(((const uint16_t *)p)[k], t.type);
    }
    return x;
}

void
write(Run &r, const Descriptor *d, const Values &x)
{
    Tensor t(d);
    if (t.inner) {
        Values &y = r.inner[t.uid] = x;
        for (double &v : y)
            v = rounded(v, t.type);
        return;
    }
    double by = behaves("wrong") ? 1.1 : 1;
    char *p = (char *)r.at.at(t.uid);
    for (int64_t i = 0; i < t.count(); i++) {
        int64_t k = t.place(r, i);
        if (k >= 0 && t.uid == DNN_SUM_DQ && behaves("add"))
            ((float *)p)[k] += (float)x[i];
        else if (k >= 0 && t.type == DNN_DATA_FLOAT)
            ((float *)p)[k] = (float)x[i];
        else if (k >= 0)
            ((uint16_t *)p)[k] = low_bits(x[i] * by, t.type);
    }
}

// x at the place of element i of y, where x may have sides of 1.
double
spread(const Values &x, const Tensor &from, const Tensor &to, int64_t i)
{
    int64_t k = 0, c[4] = {i / (to.n[1] * to.n[2] * to.n[3]), i / (to.n[2] * to.n[3]) % to.n[1],
                           i / to.n[3] % to.n[2], i % to.n[3]};
    for (int a = 0; a < 4; a++)
        k = k * from.n[a] + (from.n[a] == 1 ? 0 : c[a]);
    return x[k];
}

double
apply(int mode, double x, double b, double t)
{
    switch (mode) {
    case DNN_POINTWISE_ADD: return x + b;
    case DNN_POINTWISE_MUL: return x * b;
    case DNN_POINTWISE_DIV: return x / b;
    case DNN_POINTWISE_SUB: return x - b;
    case DNN_POINTWISE_EXP: return exp(x);
    case DNN_POINTWISE_LOG: return log(x);
    case DNN_POINTWISE_IDENTITY: return x;
    case DNN_POINTWISE_CMP_GE: return x >= b;
    case DNN_POINTWISE_CMP_LT: return x < b;
    case DNN_POINTWISE_LOGICAL_AND: return x != 0 && b != 0;
    case DNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: abort();
    }
}

void
pointwise(Run &r, const Descriptor *op)
{
    const Descriptor *how = op->part(DNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const Descriptor *in[] = {op->part(DNN_ATTR_OPERATION_POINTWISE_XDESC),
                              op->part(DNN_ATTR_OPERATION_POINTWISE_BDESC),
                              op->part(DNN_ATTR_OPERATION_POINTWISE_TDESC)};
    const Descriptor *out = op->part(DNN_ATTR_OPERATION_POINTWISE_YDESC);
    int mode = how->get<int>(DNN_ATTR_POINTWISE_MODE);
    Tensor y(out);
    Values z((size_t)y.count());
    if (mode == DNN_POINTWISE_GEN_INDEX) {
        int64_t axis = how->get<int64_t>(DNN_ATTR_POINTWISE_AXIS);
        for (int64_t i = 0; i < y.count(); i++)
            z[i] = (double)(axis == 2 ? i / y.n[3] % y.n[2] : i % y.n[3]);
        return write(r, out, z);
    }
    std::vector<Values> x;
    std::vector<Tensor> t;
    for (const Descriptor *d : in)
        if (d)
            x.push_back(read(r, d)), t.push_back(Tensor(d));
    for (int64_t i = 0; i < y.count(); i++) {
        double v[3] = {};
        for (size_t k = 0; k < x.size(); k++)
            v[k] = spread(x[k], t[k], y, i);
        z[i] = apply(mode, v[0], v[1], v[2]);
    }
    write(r, out, z);
}

void
product(Run &r, const Descriptor *op)
{
    const Descriptor *da = op->part(DNN_ATTR_OPERATION_MATMUL_ADESC);
    const Descriptor *db = op->part(DNN_ATTR_OPERATION_MATMUL_BDESC);
    const Descriptor *dc = op->part(DNN_ATTR_OPERATION_MATMUL_CDESC);
    Tensor a(da), b(db), c(dc);
    Values x = read(r, da), y = read(r, db), z((size_t)c.count());
    int64_t m = c.n[2], n = c.n[3], k = a.n[3];
    for (int64_t i = 0; i < c.count(); i++) {
        int64_t s = i / (c.n[1] * m * n), h = i / (m * n) % c.n[1];
        const double *row = &x[((s * a.n[1] + h / (c.n[1] / a.n[1])) * m + i / n % m) * k];
        const double *col = &y[(s * b.n[1] + h / (c.n[1] / b.n[1])) * k * n + i % n];
        for (int64_t j = 0; j < k; j++)
            z[i] += row[j] * col[j * n];
    }
    write(r, dc, z);
}

// Over the last side, or over heads of a group.
void
reduce(Run &r, const Descriptor *op)
{
    const Descriptor *dx = op->part(DNN_ATTR_OPERATION_REDUCTION_XDESC);
    const Descriptor *dy = op->part(DNN_ATTR_OPERATION_REDUCTION_YDESC);
    const Descriptor *how = op->part(DNN_ATTR_OPERATION_REDUCTION_DESC);
    bool max = how->get<int>(DNN_ATTR_REDUCTION_OPERATOR) == DNN_REDUCE_TENSOR_MAX;
    Tensor x(dx), y(dy);
    Values v = read(r, dx), z((size_t)y.count(), max ? -INFINITY : 0);
    for (int64_t i = 0; i < x.count(); i++) {
        int64_t s = i / (x.n[1] * x.n[2] * x.n[3]), h = i / (x.n[2] * x.n[3]) % x.n[1];
        int64_t row = i / x.n[3] % x.n[2], col = i % x.n[3];
        int64_t k = ((s * y.n[1] + h / (x.n[1] / y.n[1])) * y.n[2] + row) * y.n[3] +
                    (y.n[3] == 1 ? 0 : col);
        z[k] = max ? fmax(z[k], v[i]) : z[k] + v[i];
    }
    write(r, dy, z);
}

// The last two sides are exchanged.
void
turn(Run &r, const Descriptor *op)
{
    const Descriptor *dx = op->part(DNN_ATTR_OPERATION_RESHAPE_XDESC);
    const Descriptor *dy = op->part(DNN_ATTR_OPERATION_RESHAPE_YDESC);
    Tensor x(dx);
    Values v = read(r, dx), z(v.size());
    int64_t m = x.n[2], n = x.n[3];
    for (int64_t i = 0; i < x.count(); i++)
        z[i / (m * n) * (m * n) + i % n * m + i / n % m] = v[i];
    write(r, dy, z);
}

void
execute(void *data)
{
    Run r = *(const Run *)data; // a graph may be launched again
    for (const Descriptor *op :
         r.graph->list<const Descriptor *>(DNN_ATTR_OPERATIONGRAPH_OPS)) {
        if (op->type == DNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            pointwise(r, op);
        else if (op->type == DNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            product(r, op);
        else if (op->type == DNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            reduce(r, op);
        else
            turn(r, op);
    }
}

std::map<int64_t, int64_t> alignment; // of pointers, by uid, as tensors say it
cudaStream_t current;
std::vector<std::unique_ptr<Run>> runs;

} // namespace

extern "C" {

size_t
cudnnGetVersion(void)
{
    return behaves("old") ? 90500 : VERSION;
}

const char *
cudnnGetErrorString(int status)
{
    return status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}

int
cudnnCreate(void **handle)
{
    static int one;
    *handle = &one;
    return GOOD;
}

int
cudnnDestroy(void *)
{
    return GOOD;
}

int
cudnnSetStream(void *, void *stream)
{
    current = (cudaStream_t)stream;
    return GOOD;
}

int
cudnnBackendCreateDescriptor(int type, void **d)
{
    *d = new Descriptor{type, false, {}, nullptr};
    return GOOD;
}

int
cudnnBackendDestroyDescriptor(void *d)
{
    delete (Descriptor *)d;
    return GOOD;
}

int
cudnnBackendFinalize(void *d)
{
    Descriptor *x = (Descriptor *)d;
    if (x->type == DNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
        !x->part(DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG))
        return BAD;
    if (x->type == DNN_BACKEND_TENSOR_DESCRIPTOR)
        alignment[x->get<int64_t>(DNN_ATTR_TENSOR_UNIQUE_ID)] =
            x->get<int64_t>(DNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
    x->final = true;
    return GOOD;
}

int
cudnnBackendSetAttribute(void *d, int attribute, int type, int64_t n, const void *x)
{
    Descriptor *to = (Descriptor *)d;
    if (to->final || !x)
        return BAD;
    if (type == DNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < n; i++)
            if (!((Descriptor *const *)x)[i]->final)
                return BAD;
    to->set[attribute].assign((const char *)x, (const char *)x + (size_t)n * size_of(type));
    return GOOD;
}

int
cudnnBackendGetAttribute(void *d, int attribute, int, int64_t, int64_t *n, void *x)
{
    const Descriptor *from = (const Descriptor *)d;
    if (attribute == DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *n = 1;
        *(int64_t *)x = 256;
        return GOOD;
    }
    if (attribute != DNN_ATTR_ENGINEHEUR_RESULTS)
        return BAD;
    *n = behaves("refuse") ? 0 : 1;
    Descriptor *config = *(Descriptor **)x;
    config->config = from->part(DNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    config->final = true;
    return GOOD;
}

int
cudnnBackendExecute(void *, void *plan, void *pack)
{
    const Descriptor *config =
        ((Descriptor *)plan)->part(DNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    auto uid = ((Descriptor *)pack)->list<int64_t>(DNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    auto at = ((Descriptor *)pack)->list<void *>(DNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    std::unique_ptr<Run> r(new Run);
    r->graph = config->config;
    for (size_t i = 0; i < uid.size(); i++) {
        if ((uintptr_t)at[i] % (uintptr_t)alignment.at(uid[i]))
            return BAD;
        r->at[uid[i]] = at[i];
        if (uid[i] >= DNN_SCALE && uid[i] <= DNN_ONE)
            r->scalar[uid[i]] = (double)*(const float *)at[i];
    }
    runs.push_back(std::move(r));
    return cudaLaunchHostFunc(current, execute, runs.back().get()) == cudaSuccess ? GOOD : BAD;
}

} // extern "C"
