// The online softmax of attention (FlashAttention-2, arXiv 2307.08691), one chunk of positions at a time.
#include <algorithm>
#include <cstring>

#include "model/attention_chunk.h"

namespace tailrace {
namespace {

#if TAILRACE_X86
// `soften` for bf16 weights by AVX-512. Each pass goes over all rows: the steps of one row wait for each other, those of
// several rows do not.
TAILRACE_BF16 void soften_bf16(float *s, bf16 *p, int rows, const Seen &seen, float scale, float *max, float *sum,
                               const float *times, float *out, int64_t dim) {
    static_assert(kMostRows <= 16);
    alignas(64) float shifts[16], decays[16], tops[16];
    for (int r = 0; r < rows; ++r) {
        float *row = s + r * kChunk;
        __m512 x[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) x[j] = _mm512_mul_ps(_mm512_loadu_ps(row + 16 * j), _mm512_set1_ps(scale));
        if (seen.bits(r) != kAll) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j)
                x[j] = _mm512_mask_mov_ps(_mm512_set1_ps(kMasked), static_cast<__mmask16>(seen.bits(r) >> (16 * j)), x[j]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) _mm512_storeu_ps(row + 16 * j, x[j]);
        const __m512 widest = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
        tops[r] = std::max(max[r], _mm512_reduce_max_ps(widest));
    }
    const __mmask16 there = static_cast<__mmask16>((1u << rows) - 1);
    const __m512 none = _mm512_set1_ps(kMasked), before = _mm512_maskz_loadu_ps(there, max);
    const __m512 top = _mm512_maskz_load_ps(there, tops);
    const __m512 shift = _mm512_mask_mov_ps(top, _mm512_cmp_ps_mask(top, none, _CMP_EQ_OQ), _mm512_setzero_ps());
    const __mmask16 begun = _mm512_cmp_ps_mask(before, none, _CMP_NEQ_UQ);
    _mm512_store_ps(shifts, shift);
    _mm512_store_ps(decays, _mm512_maskz_mov_ps(begun, fast_exp2(_mm512_sub_ps(before, shift))));
    for (int r = 0; r < rows; ++r) {
        const __m512 by = _mm512_set1_ps(shifts[r]), decay = _mm512_set1_ps(decays[r]);
        __m512 x[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) x[j] = fast_exp2(_mm512_sub_ps(_mm512_loadu_ps(s + r * kChunk + 16 * j), by));
        const float total = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3])));
        if (times != nullptr) {  // the scale of a hidden position may be NaN
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j)
                x[j] = _mm512_maskz_mul_ps(static_cast<__mmask16>(seen.bits(r) >> (16 * j)), x[j], _mm512_loadu_ps(times + 16 * j));
        }
        _mm512_storeu_si512(p + r * kChunk, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
        _mm512_storeu_si512(p + r * kChunk + 32, (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]));
        sum[r] = sum[r] * decays[r] + total;
        max[r] = tops[r];
        for (int64_t d = 0; d < dim; d += 16) {
            const __mmask16 inside = static_cast<__mmask16>((1u << std::min<int64_t>(16, dim - d)) - 1);
            float *at = out + r * dim + d;
            _mm512_mask_storeu_ps(at, inside, _mm512_mul_ps(_mm512_maskz_loadu_ps(inside, at), decay));
        }
    }
}
#endif

// x[j] = to for the positions that are not selected.
void replace_rest(float *x, uint64_t selected, float to) {
    if (selected == kAll) return;
    for (int j = 0; j < kChunk; ++j) x[j] = selected >> j & 1 ? x[j] : to;
}

// Scale and mask one row's scores, and replace them by the weights. The selected ones of positions [low, high) are
// visible. Return the factor that rescales the row's sums to the new maximum.
TAILRACE_CLONES float soften_row(float *s, int low, int high, uint64_t selected, float scale, float *max, float *sum) {
    for (int j = 0; j < kChunk; ++j) s[j] = (j >= low && j < high) ? s[j] * scale : kMasked;
    replace_rest(s, selected, kMasked);
    float part[16];
    for (int j = 0; j < 16; ++j) part[j] = s[j];
    for (int i = 16; i < kChunk; i += 16)
        for (int j = 0; j < 16; ++j) part[j] = s[i + j] > part[j] ? s[i + j] : part[j];
    float top = *max;
    for (int j = 0; j < 16; ++j) top = part[j] > top ? part[j] : top;
    const float shift = top == kMasked ? 0.0f : top;
    for (int j = 0; j < kChunk; ++j) s[j] = fast_exp2(s[j] - shift);
    for (int j = 0; j < 16; ++j) part[j] = 0.0f;
    for (int i = 0; i < kChunk; i += 16)
        for (int j = 0; j < 16; ++j) part[j] += s[i + j];
    float total = 0.0f;
    for (int j = 0; j < 16; ++j) total += part[j];
    const float decay = *max == kMasked ? 0.0f : fast_exp2(*max - shift);
    *sum = *sum * decay + total;
    *max = top;
    return decay;
}

TAILRACE_CLONES void to_pairs(const float *s, bf16 *p) {
    for (int j = 0; j < kChunk; ++j) p[j] = to_bf16(s[j]);
}

TAILRACE_CLONES void multiply(float *x, int64_t n, float by) {
    for (int64_t i = 0; i < n; ++i) x[i] *= by;
}

}  // namespace

TAILRACE_CLONES void multiply(float *x, int from, int to, const float *by) {
    for (int i = from; i < to; ++i) x[i] *= by[i];
}

template <typename T>
void soften(float *s, T *p, int rows, const Seen &seen, float scale, float *max, float *sum, const float *times,
            float *out, int64_t dim) {
#if TAILRACE_X86
    if constexpr (sizeof(T) == 2)
        if (has_bf16()) return soften_bf16(s, p, rows, seen, scale, max, sum, times, out, dim);
#endif
    for (int r = 0; r < rows; ++r, s += kChunk, p += kChunk, out += dim) {
        const float decay = soften_row(s, seen.low[r], seen.high[r], seen.selected[r], scale, max + r, sum + r);
        if (times != nullptr) {
            multiply(s, seen.low[r], seen.high[r], times);
            replace_rest(s, seen.selected[r], 0.0f);  // the scale of a hidden position may be NaN
        }
        if constexpr (sizeof(T) == 2) to_pairs(s, p);
        else std::memcpy(p, s, kChunk * sizeof(float));
        if (decay != 1.0f) multiply(out, dim, decay);
    }
}

template void soften(float *, bf16 *, int, const Seen &, float, float *, float *, const float *, float *, int64_t);
template void soften(float *, float *, int, const Seen &, float, float *, float *, const float *, float *, int64_t);

}  // namespace tailrace
