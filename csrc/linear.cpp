// y = x Wᵀ + b with weights packed once. One kernel for every number of rows: a row's sum runs over k in the same order
// whether it is alone or in a batch, so a row's result does not depend on its neighbours, bit for bit.
//
// The packed weights stream through once per call in blocks of 64 outputs, which stay in L2 while the rows pass by, six
// at a time: 6 × 4 accumulators fill the register file of AVX-512. The bf16 path multiplies pairs (vdpbf16ps); the
// portable one widens the same layout by a shift and a mask and is left to the compiler to vectorise.
#include "kernels.h"
#include "pool.h"
#include "simd.h"

#include <algorithm>
#include <vector>

namespace tailrace {
namespace {

constexpr int kRows = 6;

struct Call {
    const void *x;
    int64_t m, k, x_stride;
    const void *packed, *bias;
    int64_t n;
    void *y;
};

#if TAILRACE_X86
template <int R>
TAILRACE_BF16 inline void tile_bf16(const bf16 *x, int64_t stride, const bf16 *w, int64_t pairs, const float *bias,
                                    float *out) {
    __m512 acc[R][4];
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) acc[r][j] = _mm512_loadu_ps(bias + 16 * j);
    for (int64_t p = 0; p < pairs; ++p, w += 128) {
        const __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = (__m512bh)_mm512_loadu_si512(w + 32);
        const __m512bh w2 = (__m512bh)_mm512_loadu_si512(w + 64), w3 = (__m512bh)_mm512_loadu_si512(w + 96);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, x + r * stride + 2 * p, 4);
            const __m512bh b = (__m512bh)_mm512_set1_epi32(pair);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, b);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, b);
            acc[r][2] = _mm512_dpbf16_ps(acc[r][2], w2, b);
            acc[r][3] = _mm512_dpbf16_ps(acc[r][3], w3, b);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) _mm512_storeu_ps(out + r * kPack + 16 * j, acc[r][j]);
}

TAILRACE_BF16 void tiles_bf16(int rows, const bf16 *x, int64_t stride, const bf16 *w, int64_t pairs, const float *bias,
                              float *out) {
    switch (rows) {
        case 1: return tile_bf16<1>(x, stride, w, pairs, bias, out);
        case 2: return tile_bf16<2>(x, stride, w, pairs, bias, out);
        case 3: return tile_bf16<3>(x, stride, w, pairs, bias, out);
        case 4: return tile_bf16<4>(x, stride, w, pairs, bias, out);
        case 5: return tile_bf16<5>(x, stride, w, pairs, bias, out);
        default: return tile_bf16<6>(x, stride, w, pairs, bias, out);
    }
}
#endif

TAILRACE_CLONES void tile_portable_bf16(int rows, const bf16 *x, int64_t stride, const bf16 *w, int64_t pairs,
                                        const float *bias, float *out) {
    for (int r = 0; r < rows; ++r) {
        float acc[kPack];
        for (int j = 0; j < kPack; ++j) acc[j] = bias[j];
        for (int64_t p = 0; p < pairs; ++p) {
            const float even = to_float(x[r * stride + 2 * p]), odd = to_float(x[r * stride + 2 * p + 1]);
            uint32_t both[kPack];
            std::memcpy(both, w + p * 2 * kPack, sizeof both);
            for (int j = 0; j < kPack; ++j) {
                const uint32_t low = both[j] << 16, high = both[j] & 0xffff0000u;
                float a, b;
                std::memcpy(&a, &low, 4);
                std::memcpy(&b, &high, 4);
                acc[j] += a * even + b * odd;
            }
        }
        for (int j = 0; j < kPack; ++j) out[r * kPack + j] = acc[j];
    }
}

TAILRACE_CLONES void tile_f32(int rows, const float *x, int64_t stride, const float *w, int64_t k, const float *bias,
                              float *out) {
    for (int r = 0; r < rows; ++r) {
        float acc[kPack];
        for (int j = 0; j < kPack; ++j) acc[j] = bias[j];
        for (int64_t i = 0; i < k; ++i) {
            const float value = x[r * stride + i];
            for (int j = 0; j < kPack; ++j) acc[j] += value * w[i * kPack + j];
        }
        for (int j = 0; j < kPack; ++j) out[r * kPack + j] = acc[j];
    }
}

inline void tiles(int rows, const bf16 *x, int64_t stride, const bf16 *w, int64_t k, const float *bias, float *out) {
#if TAILRACE_X86
    if (has_bf16()) return tiles_bf16(rows, x, stride, w, k / 2, bias, out);
#endif
    tile_portable_bf16(rows, x, stride, w, k / 2, bias, out);
}
inline void tiles(int rows, const float *x, int64_t stride, const float *w, int64_t k, const float *bias, float *out) {
    tile_f32(rows, x, stride, w, k, bias, out);
}

// One block of 64 outputs for rows [from, to).
template <typename T> void block(const Call &c, int64_t b, int64_t from, int64_t to) {
    const T *x = static_cast<const T *>(c.x);
    const T *w = static_cast<const T *>(c.packed) + b * kPack * c.k;
    T *y = static_cast<T *>(c.y);
    const int64_t width = std::min(kPack, c.n - b * kPack);
    float bias[kPack] = {};
    if (c.bias)
        for (int64_t j = 0; j < width; ++j) bias[j] = to_float(static_cast<const T *>(c.bias)[b * kPack + j]);
    alignas(64) float out[kRows * kPack];
    for (int64_t r = from; r < to; r += kRows) {
        const int rows = static_cast<int>(std::min<int64_t>(kRows, to - r));
        tiles(rows, x + r * c.x_stride, c.x_stride, w, c.k, bias, out);
        for (int i = 0; i < rows; ++i) {
            T *target = y + (r + i) * c.n + b * kPack;
            for (int64_t j = 0; j < width; ++j) target[j] = from_float<T>(out[i * kPack + j]);
        }
    }
}

template <typename T> void run(const Call &c) {
    const int64_t blocks = (c.n + kPack - 1) / kPack;
    // A task is a few blocks: at least some 100 kB of weights, so that handing out tasks costs nothing beside them.
    const int64_t per_task = std::max<int64_t>(1, 98304 / (kPack * c.k * static_cast<int64_t>(sizeof(T))));
    const int64_t tasks = (blocks + per_task - 1) / per_task;
    Pool::instance().run(tasks, [&](int64_t t) {
        for (int64_t b = t * per_task; b < std::min(blocks, (t + 1) * per_task); ++b) block<T>(c, b, 0, c.m);
    });
}

}  // namespace

int64_t packed_elements(Type, int64_t n, int64_t k) { return (n + kPack - 1) / kPack * kPack * k; }

void pack_linear(const void *weight, Type type, int64_t n, int64_t k, void *packed) {
    const int64_t blocks = (n + kPack - 1) / kPack;
    Pool::instance().run(blocks, [&](int64_t b) {
        for (int64_t j = 0; j < kPack; ++j) {
            const int64_t row = b * kPack + j;
            for (int64_t i = 0; i < k; ++i) {
                if (type == Type::f32) {
                    static_cast<float *>(packed)[(b * k + i) * kPack + j] =
                        row < n ? static_cast<const float *>(weight)[row * k + i] : 0.0f;
                } else {
                    static_cast<bf16 *>(packed)[b * k * kPack + (i / 2) * 2 * kPack + 2 * j + i % 2] =
                        row < n ? static_cast<const bf16 *>(weight)[row * k + i] : bf16{0};
                }
            }
        }
    });
}

void linear(const void *x, Type type, int64_t m, int64_t k, int64_t x_stride, const void *packed, const void *bias,
            int64_t n, void *y) {
    const Call call{x, m, k, x_stride, packed, bias, n, y};
    type == Type::f32 ? run<float>(call) : run<bf16>(call);
}

}  // namespace tailrace
