// vgpu_warp.cpp -- what tensor cores and asynchronous copies do, as the PTX manual has it.
//
// mma.m16n8k16: lane l holds, with g = l / 4 and t = 2 (l % 4), of A the pairs (g, t), (g + 8, t),
// (g, t + 8), (g + 8, t + 8); of B, column g, the pairs t, t + 8; of C and D the pairs (g, t) and
// (g + 8, t). Copies of cp.async take place when their group is waited for, not earlier: what is
// read without a wait is NaN.
#include "vgpu_fiber.h"
#include "vgpu_int.h"
#include "vgpu_low.h"

namespace vgpu {

// ---- matrices ----

struct Mma {
    float *d;
    const uint32_t *a, *b;
};

template <float (*F)(uint16_t)>
static void
pair(float *low, float *high, uint32_t x)
{
    *low = F((uint16_t)x);
    *high = F((uint16_t)(x >> 16));
}

template <float (*F)(uint16_t)>
static void
complete_mma(void **brought, unsigned mask)
{
    if (mask != 0xffffffffu)
        die("mma needs all lanes of a warp");
    float a[16][16], b[16][8], c[16][8];
    for (int l = 0; l < 32; l++) {
        const Mma *m = (const Mma *)brought[l];
        int g = l / 4, t = l % 4 * 2;
        for (int i = 0; i < 4; i++) {
            float *row = &a[g + i % 2 * 8][t + i / 2 * 8];
            pair<F>(row, row + 1, m->a[i]);
        }
        pair<F>(&b[t][g], &b[t + 1][g], m->b[0]);
        pair<F>(&b[t + 8][g], &b[t + 9][g], m->b[1]);
        for (int i = 0; i < 4; i++)
            c[g + i / 2 * 8][t + i % 2] = m->d[i];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                c[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            ((const Mma *)brought[l])->d[i] = c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    stats.mma++;
}

void
mma_16x8x16(WarpOp type, float *d, const uint32_t *a, const uint32_t *b, int line)
{
    Mma m{d, a, b};
    warp_meet(0xffffffffu, type, &m,
              type == W_MMA_F16 ? complete_mma<f16_to_float>
                                : complete_mma<bf16_to_float>,
              line);
}

struct Ldmatrix {
    uint32_t *r;
    const uint16_t *row;
    bool transposed;
};

static void
complete_ldmatrix(void **brought, unsigned mask)
{
    if (mask != 0xffffffffu)
        die("ldmatrix needs all lanes of a warp");
    auto lane = [=](int l) { return (const Ldmatrix *)brought[l]; };
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 32; l++) {
            int from = i * 8, row = l / 4, col = l % 4 * 2;
            uint32_t low, high;
            if (lane(l)->transposed) {
                low = lane(from + col)->row[row];
                high = lane(from + col + 1)->row[row];
            } else {
                low = lane(from + row)->row[col];
                high = lane(from + row)->row[col + 1];
            }
            lane(l)->r[i] = low | high << 16;
        }
}

void
ldmatrix4(uint32_t *r, const void *row, bool transposed, int line)
{
    if ((uintptr_t)row % 16 || !in_shared(row, 16))
        die("line %d: ldmatrix needs rows in shared memory, aligned to 16 bytes", line);
    TSAN_READ(row, 16);
    Ldmatrix m{r, (const uint16_t *)row, transposed};
    warp_meet(0xffffffffu, W_LDMATRIX, &m, complete_ldmatrix, line);
}

// ---- cp.async ----

struct Copy {
    void *to;
    const void *from;
    int bytes;
    bool valid;
};
struct Copies { // of one thread; groups end at copy number end[]
    std::vector<Copy> copy;
    std::vector<size_t> end;
    size_t copied, waited;
};
static Copies copies[1024];

void
copy_async(void *to, const void *from, int bytes, bool valid)
{
    if ((uintptr_t)to % 16 || !in_shared(to, (size_t)bytes))
        die("cp.async: its destination must lie in shared memory, aligned to 16 bytes");
    if (valid && ((uintptr_t)from % 16 || (!is_device(from) && !is_visible(from))))
        die("cp.async: its source must be aligned memory of the GPU");
    copies[current_thread()].copy.push_back({to, from, bytes, valid});
}

void
copy_commit()
{
    Copies &q = copies[current_thread()];
    q.end.push_back(q.copy.size());
}

void
copy_wait(int newest_left)
{
    Copies &q = copies[current_thread()];
    while (q.end.size() - q.waited > (size_t)newest_left) {
        for (; q.copied < q.end[q.waited]; q.copied++) {
            const Copy &c = q.copy[q.copied];
            TSAN_WRITE(c.to, c.bytes);
            if (!c.valid) {
                memset(c.to, 0, (size_t)c.bytes);
                continue;
            }
            TSAN_READ(c.from, c.bytes);
            memcpy(c.to, c.from, (size_t)c.bytes);
        }
        q.waited++;
    }
}

void
drop_copies(int thread)
{
    Copies &q = copies[thread];
    if (q.copy.empty() && q.end.empty())
        return;
    q.copy.clear();
    q.end.clear();
    q.copied = q.waited = 0;
}

} // namespace vgpu
