// y = x Wᵀ + b with weights packed once. One kernel for every number of rows: a row's sum runs over k in the same order
// whether it is alone or in a batch, so a row's result does not depend on its neighbours, bit for bit.
//
// The packed weights stream through once per call in blocks of 64 outputs, which stay in L2 while the rows pass by, six
// at a time: 6 × 4 accumulators fill the register file of AVX-512. While they pass, the thread's next block is
// prefetched, so that reading the weights and multiplying overlap. The bf16 path multiplies pairs (vdpbf16ps); the
// portable one widens the same layout by a shift and a mask and is left to the compiler to vectorise.
#include "base/pool.h"
#include "base/simd.h"
#include "model/linear.h"

#include <algorithm>
#include <stdexcept>

namespace tailrace {
namespace {

constexpr int kRows = 6;

#if TAILRACE_X86
// Lines: cache lines of the next block, at `ahead`, that are prefetched per pair of inputs (a pair is 4 lines).
template <int R, int Lines>
TAILRACE_BF16 inline void tile_bf16(const bf16 *x, int64_t stride, const bf16 *w, int64_t pairs, const float *bias,
                                    float *out, const char *ahead) {
    __m512 acc[R][4];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) acc[r][j] = _mm512_loadu_ps(bias + 16 * j);
    for (int64_t p = 0; p < pairs; ++p, w += 128) {
        if constexpr (Lines > 0) _mm_prefetch(ahead + p * Lines * 64, _MM_HINT_T1);
        if constexpr (Lines > 1) _mm_prefetch(ahead + p * Lines * 64 + 64, _MM_HINT_T1);
        if constexpr (Lines > 2) _mm_prefetch(ahead + p * Lines * 64 + 128, _MM_HINT_T1);
        if constexpr (Lines > 3) _mm_prefetch(ahead + p * Lines * 64 + 192, _MM_HINT_T1);
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
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) _mm512_storeu_ps(out + r * kPack + 16 * j, acc[r][j]);
}

template <int Lines>
TAILRACE_BF16 void tiles_bf16(int rows, const bf16 *x, int64_t stride, const bf16 *w, int64_t pairs, const float *bias,
                              float *out, const char *ahead) {
    switch (rows) {
        case 1: return tile_bf16<1, Lines>(x, stride, w, pairs, bias, out, ahead);
        case 2: return tile_bf16<2, Lines>(x, stride, w, pairs, bias, out, ahead);
        case 3: return tile_bf16<3, Lines>(x, stride, w, pairs, bias, out, ahead);
        case 4: return tile_bf16<4, Lines>(x, stride, w, pairs, bias, out, ahead);
        case 5: return tile_bf16<5, Lines>(x, stride, w, pairs, bias, out, ahead);
        default: return tile_bf16<6, Lines>(x, stride, w, pairs, bias, out, ahead);
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

// What to prefetch while a pass over one block runs: `lines` cache lines per pair of inputs, from `at` on; at most 4.
struct Ahead {
    const char *at;
    int lines;
};

inline void tiles(int rows, const bf16 *x, int64_t stride, const bf16 *w, int64_t k, const float *bias, float *out,
                  Ahead ahead) {
#if TAILRACE_X86
    if (has_bf16()) switch (ahead.lines) {
            case 0: return tiles_bf16<0>(rows, x, stride, w, k / 2, bias, out, ahead.at);
            case 1: return tiles_bf16<1>(rows, x, stride, w, k / 2, bias, out, ahead.at);
            case 2: return tiles_bf16<2>(rows, x, stride, w, k / 2, bias, out, ahead.at);
            default: return tiles_bf16<4>(rows, x, stride, w, k / 2, bias, out, ahead.at);
        }
#endif
    (void)ahead;
    tile_portable_bf16(rows, x, stride, w, k / 2, bias, out);
}
inline void tiles(int rows, const float *x, int64_t stride, const float *w, int64_t k, const float *bias, float *out,
                  Ahead) {
    tile_f32(rows, x, stride, w, k, bias, out);
}

// One block of 64 outputs for all rows; `ahead`: the weights that this thread will read next, or null.
template <typename T> void block(const LinearCall &c, int64_t b, const char *ahead) {
    const T *x = static_cast<const T *>(c.x);
    const T *weights = static_cast<const T *>(c.packed);
    const T *w = weights + b * kPack * c.k;
    T *y = static_cast<T *>(c.y);
    const int64_t width = std::min(kPack, c.n - b * kPack);
    float bias[kPack] = {};
    if (c.bias)
        for (int64_t j = 0; j < width; ++j) bias[j] = to_float(static_cast<const T *>(c.bias)[b * kPack + j]);
    const int64_t passes = (c.m + kRows - 1) / kRows;
    const int64_t lines = !ahead ? 0 : passes > 3 ? 1 : passes > 1 ? 2 : 4;
    alignas(64) float out[kRows * kPack];
    for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t r = pass * kRows;
        const int rows = static_cast<int>(std::min<int64_t>(kRows, c.m - r));
        const int fetch = pass * lines < 4 ? static_cast<int>(lines) : 0;
        tiles(rows, x + r * c.x_stride, c.x_stride, w, c.k, bias, out, {ahead + pass * lines * 64 * (c.k / 2), fetch});
        for (int i = 0; i < rows; ++i) {
            T *target = y + (r + i) * c.n + b * kPack;
            if constexpr (sizeof(T) == 4) std::copy_n(out + i * kPack, width, target);
            else round_row(out + i * kPack, width, target);
        }
    }
}

// Calls with one k and one n. Their blocks are one list of work, because a few rows per call are little work.
template <typename T> void run(const std::vector<LinearCall> &calls) {
    const int64_t blocks = calls.empty() ? 0 : (calls[0].n + kPack - 1) / kPack;
    const auto weights = [&](int64_t task) {
        const LinearCall &c = calls[static_cast<size_t>(task / blocks)];
        return reinterpret_cast<const char *>(static_cast<const T *>(c.packed) + task % blocks * kPack * c.k);
    };
    Pool::instance().sweep(blocks * static_cast<int64_t>(calls.size()), [&](int64_t task, int64_t next) {
        block<T>(calls[static_cast<size_t>(task / blocks)], task % blocks, next < 0 ? nullptr : weights(next));
    });
}

void run_all(const std::vector<LinearCall> &calls, Type type) {
    if (type == Type::f32) return run<float>(calls);
    if (calls.empty() || !tiles_serve(calls[0].k)) return run<bf16>(calls);
    for (const LinearCall &call : calls) linear_tiles(call);
}

}  // namespace

std::vector<LinearCall> split_groups(const GroupedCall &c) {
    const LinearCall &all = c.all;
    const int64_t size = c.type == Type::f32 ? 4 : 2;
    std::vector<LinearCall> calls;
    for (int64_t g = 0; g < c.groups; ++g) {
        const int64_t from = c.starts[g], end = c.starts[g + 1];
        if (from < 0 || end < from || end > all.m)
            throw std::invalid_argument("starts must ascend from 0 to the number of rows");
        if (from == end) continue;
        const char *x = static_cast<const char *>(all.x) + from * all.x_stride * size;
        char *y = static_cast<char *>(all.y) + from * all.n * size;
        const void *bias = c.biases ? reinterpret_cast<const void *>(c.biases[g]) : nullptr;
        calls.push_back({x, end - from, all.k, all.x_stride, reinterpret_cast<const void *>(c.weights[g]), bias, all.n, y});
    }
    char *y = static_cast<char *>(all.y);
    std::fill(y, y + c.starts[0] * all.n * size, char{0});
    std::fill(y + c.starts[c.groups] * all.n * size, y + all.m * all.n * size, char{0});
    return calls;
}

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
    run_all({{x, m, k, x_stride, packed, bias, n, y}}, type);
}

void grouped_linear(const GroupedCall &call) { run_all(split_groups(call), call.type); }

}  // namespace tailrace
