// The scores and weighted sums of attention in registers, for machines or heads without tiles.
#include <cstring>

#include "model/attention_chunk.h"

namespace tailrace {
namespace {

#if TAILRACE_X86
template <int R, bool Fetch>
TAILRACE_BF16 void scores_tile(const bf16 *const *q, const bf16 *const *keys, const bf16 *const *next, int64_t dim,
                               int64_t stride, float *s) {
    __m512 acc[R][4];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) acc[r][j] = _mm512_setzero_ps();
    const bf16 *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
    const bf16 *n0 = nullptr, *n1 = nullptr, *n2 = nullptr, *n3 = nullptr;
    if (Fetch) n0 = next[0], n1 = next[1], n2 = next[2], n3 = next[3];
    for (int64_t d = 0; d < dim; d += 2) {
        const __m512bh w0 = (__m512bh)_mm512_loadu_si512(k0), w1 = (__m512bh)_mm512_loadu_si512(k1);
        const __m512bh w2 = (__m512bh)_mm512_loadu_si512(k2), w3 = (__m512bh)_mm512_loadu_si512(k3);
        k0 += stride, k1 += stride, k2 += stride, k3 += stride;
        if (Fetch) {
            __builtin_prefetch(n0), __builtin_prefetch(n1), __builtin_prefetch(n2), __builtin_prefetch(n3);
            n0 += stride, n1 += stride, n2 += stride, n3 += stride;
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, q[r] + d, 4);
            const __m512bh b = (__m512bh)_mm512_set1_epi32(pair);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, b);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, b);
            acc[r][2] = _mm512_dpbf16_ps(acc[r][2], w2, b);
            acc[r][3] = _mm512_dpbf16_ps(acc[r][3], w3, b);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) _mm512_storeu_ps(s + r * kChunk + 16 * j, acc[r][j]);
}

// out[r][at … at + 16 · W) += Σ_pairs p[r][pair] · v[pair].
template <int R, int W, bool Fetch>
TAILRACE_BF16 void values_tile(const bf16 *p, const bf16 *const *values, const bf16 *const *next, int pairs, int64_t at,
                               int64_t dim, float *out) {
    __m512 acc[R][W];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < W; ++j) acc[r][j] = _mm512_loadu_ps(out + r * dim + at + 16 * j);
    for (int i = 0; i < pairs; ++i) {
        const bf16 *v = values[i] + 2 * at;
        __m512bh w[W];
        for (int j = 0; j < W; ++j) w[j] = (__m512bh)_mm512_loadu_si512(v + 32 * j);
        if (Fetch)
            for (int j = 0; j < W; ++j) __builtin_prefetch(next[i / 8] + 2 * (i % 8 * dim + at) + 32 * j);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, p + r * kChunk + 2 * i, 4);
            const __m512bh b = (__m512bh)_mm512_set1_epi32(pair);
            for (int j = 0; j < W; ++j) acc[r][j] = _mm512_dpbf16_ps(acc[r][j], w[j], b);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < W; ++j) _mm512_storeu_ps(out + r * dim + at + 16 * j, acc[r][j]);
}

template <int R, bool Fetch>
TAILRACE_BF16 void values_rows(const bf16 *p, const bf16 *const *values, const bf16 *const *next, int pairs, int64_t dim,
                               float *out) {
    int64_t at = 0;
    for (; at + 64 <= dim; at += 64) values_tile<R, 4, Fetch>(p, values, next, pairs, at, dim, out);
    for (; at + 16 <= dim; at += 16) values_tile<R, 1, Fetch>(p, values, next, pairs, at, dim, out);
}

#define TAILRACE_BY_ROWS(CALL)      \
    switch (rows) {                 \
        case 1: CALL(1); break;     \
        case 2: CALL(2); break;     \
        case 3: CALL(3); break;     \
        case 4: CALL(4); break;     \
        case 5: CALL(5); break;     \
        default: CALL(6); break;    \
    }
#endif

TAILRACE_CLONES void scores_bf16(int rows, const bf16 *const *q, const bf16 *const *keys, int64_t dim, int64_t stride,
                                 float *s) {
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < 4; ++c) {
            float acc[16] = {};
            const bf16 *k = keys[c];
            for (int64_t d = 0; d < dim; d += 2, k += stride) {
                const float even = to_float(q[r][d]), odd = to_float(q[r][d + 1]);
                for (int j = 0; j < 16; ++j) acc[j] += to_float(k[2 * j]) * even + to_float(k[2 * j + 1]) * odd;
            }
            std::memcpy(s + r * kChunk + 16 * c, acc, sizeof acc);
        }
}

TAILRACE_CLONES void scores_f32(int rows, const float *const *q, const float *const *keys, int64_t dim, int64_t stride,
                                float *s) {
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < 4; ++c) {
            float acc[16] = {};
            const float *k = keys[c];
            for (int64_t d = 0; d < dim; ++d, k += stride) {
                const float value = q[r][d];
                for (int j = 0; j < 16; ++j) acc[j] += k[j] * value;
            }
            std::memcpy(s + r * kChunk + 16 * c, acc, sizeof acc);
        }
}

TAILRACE_CLONES void values_bf16(int rows, const bf16 *p, const bf16 *const *values, int pairs, int64_t dim,
                                 float *out) {
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < pairs; ++i) {
            const float even = to_float(p[r * kChunk + 2 * i]), odd = to_float(p[r * kChunk + 2 * i + 1]);
            const bf16 *v = values[i];
            for (int64_t d = 0; d < dim; ++d) out[r * dim + d] += even * to_float(v[2 * d]) + odd * to_float(v[2 * d + 1]);
        }
}

TAILRACE_CLONES void values_f32(int rows, const float *p, const float *const *values, int positions, int64_t dim,
                                float *out) {
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < positions; ++i) {
            const float weight = p[r * kChunk + i];
            const float *v = values[i];
            for (int64_t d = 0; d < dim; ++d) out[r * dim + d] += weight * v[d];
        }
}

}  // namespace

void scores_by_registers(int rows, const bf16 *const *q, const bf16 *const *keys, const bf16 *const *next, int64_t dim,
                         float *s) {
    constexpr int64_t stride = 32;  // numbers of a pair of dimensions
#if TAILRACE_X86
    if (has_bf16()) {
#define CALL(R) next ? scores_tile<R, true>(q, keys, next, dim, stride, s) : scores_tile<R, false>(q, keys, next, dim, stride, s)
        TAILRACE_BY_ROWS(CALL)
#undef CALL
        return;
    }
#endif
    scores_bf16(rows, q, keys, dim, stride, s);
}
void scores_by_registers(int rows, const float *const *q, const float *const *keys, const float *const *, int64_t dim,
                         float *s) {
    scores_f32(rows, q, keys, dim, 16, s);
}

void weigh_by_registers(int rows, const bf16 *p, const bf16 *const *values, const bf16 *const *next, int count,
                        int64_t dim, float *out) {
#if TAILRACE_X86
    if (has_bf16() && dim % 16 == 0) {
#define CALL(R) next ? values_rows<R, true>(p, values, next, count, dim, out) : values_rows<R, false>(p, values, next, count, dim, out)
        TAILRACE_BY_ROWS(CALL)
#undef CALL
        return;
    }
#endif
    values_bf16(rows, p, values, count, dim, out);
}
void weigh_by_registers(int rows, const float *p, const float *const *values, const float *const *, int count, int64_t dim,
                        float *out) {
    values_f32(rows, p, values, count, dim, out);
}

}  // namespace tailrace
