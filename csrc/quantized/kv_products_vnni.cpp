// Attention over codes by AVX-512 VNNI: the same bits as those of kv_products.cpp's portable loops.
#include "quantized/kv_products_vnni.h"

#include "base/simd.h"

#include <algorithm>
#include <cstring>

#if TAILRACE_X86
#define TAILRACE_KV_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")))

namespace tailrace {
namespace {

// power() of base/exact.h, sixteen at once.
TAILRACE_KV_VNNI inline __m512 power16(__m512 y) {
    const __m512 clamped = _mm512_max_ps(_mm512_set1_ps(-126.0f), y);  // NaN is the second operand: it stays
    const __m512 shifted = _mm512_add_ps(clamped, _mm512_set1_ps(12582912.0f));
    const __m512 r = _mm512_sub_ps(clamped, _mm512_sub_ps(shifted, _mm512_set1_ps(12582912.0f)));
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(1.326472731307149e-3f), _mm512_set1_ps(9.671512991189957e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550733581185341e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022242426872253e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931470036506653e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
}

TAILRACE_KV_VNNI inline __m512i four_codes(const void *from) {
    int32_t four;
    std::memcpy(&four, from, 4);
    return _mm512_set1_epi32(four);
}

// vpdpbusd. The compiler's own function takes vectors of another type, for which GCC 12 copies each sum twice.
TAILRACE_KV_VNNI inline __m512i dot(__m512i sum, __m512i whole_numbers, __m512i signed_numbers) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(whole_numbers), "v"(signed_numbers));
    return sum;
}

// 128 · high + low.
TAILRACE_KV_VNNI inline __m512 whole(__m512i high, __m512i low) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(128.0f), _mm512_cvtepi32_ps(low));
}

// The first factor of vpdpbusd has no sign. So 128 is added to each key; the sums begin with what that adds.
template <int R, bool Fetch> TAILRACE_KV_VNNI void score_rows(const QueryCodes &q, const CodedChunk &chunk, int64_t dim, float *s) {
    const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
    __m512i high[R][4], low[R][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        high[r][0] = high[r][1] = high[r][2] = high[r][3] = _mm512_set1_epi32(q.start[2 * r]);
        low[r][0] = low[r][1] = low[r][2] = low[r][3] = _mm512_set1_epi32(q.start[2 * r + 1]);
    }
    const uint8_t *k0 = chunk.keys[0], *k1 = chunk.keys[1], *k2 = chunk.keys[2], *k3 = chunk.keys[3];
    for (int64_t d = 0; d < dim; d += 4) {
        const __m512i w0 = _mm512_xor_si512(_mm512_loadu_si512(k0), flip), w1 = _mm512_xor_si512(_mm512_loadu_si512(k1), flip);
        const __m512i w2 = _mm512_xor_si512(_mm512_loadu_si512(k2), flip), w3 = _mm512_xor_si512(_mm512_loadu_si512(k3), flip);
        k0 += 64, k1 += 64, k2 += 64, k3 += 64;
        if (Fetch)
            for (const uint8_t *next : chunk.next_keys) __builtin_prefetch(next + 16 * d);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const __m512i h = four_codes(q.high + r * dim + d), l = four_codes(q.low + r * dim + d);
            high[r][0] = dot(high[r][0], w0, h);
            high[r][1] = dot(high[r][1], w1, h);
            high[r][2] = dot(high[r][2], w2, h);
            high[r][3] = dot(high[r][3], w3, h);
            low[r][0] = dot(low[r][0], w0, l);
            low[r][1] = dot(low[r][1], w1, l);
            low[r][2] = dot(low[r][2], w2, l);
            low[r][3] = dot(low[r][3], w3, l);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512 scales = _mm512_loadu_ps(chunk.key_scales[i]);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(q.scale[r]));
            _mm512_storeu_ps(s + r * kCodedPositions + 16 * i, _mm512_mul_ps(whole(high[r][i], low[r][i]), scale));
        }
    }
}

// W · 16 dimensions from `at` on, of R rows.
template <int R, int W, bool Fetch>
TAILRACE_KV_VNNI void weigh_part(const WeightCodes &w, int first, const CodedChunk &chunk, int64_t at, int64_t dim, float *out) {
    __m512i high[R][W], low[R][W];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < W; ++j) high[r][j] = low[r][j] = _mm512_setzero_si512();
    for (int i = 0; i < chunk.groups; ++i)
        for (int four = 0; four < 4; ++four) {
            const uint8_t *from = chunk.values[i] + 4 * (four * dim + at);
            const int place = first * kCodedPositions + 16 * i + 4 * four;
            __m512i values[W];
#pragma GCC unroll 4
            for (int j = 0; j < W; ++j) values[j] = _mm512_loadu_si512(from + 64 * j);
            if (Fetch)
                for (int j = 0; j < W; ++j) __builtin_prefetch(chunk.next_values[i] + 4 * (four * dim + at) + 64 * j);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const __m512i h = four_codes(w.high + place + r * kCodedPositions);
#pragma GCC unroll 4
                for (int j = 0; j < W; ++j) high[r][j] = dot(high[r][j], h, values[j]);
                const __m512i l = four_codes(w.low + place + r * kCodedPositions);
#pragma GCC unroll 4
                for (int j = 0; j < W; ++j) low[r][j] = dot(low[r][j], l, values[j]);
            }
        }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        const __m512 scale = _mm512_set1_ps(w.scale[first + r]), decay = _mm512_set1_ps(w.decay[first + r]);
#pragma GCC unroll 4
        for (int j = 0; j < W; ++j) {
            float *to = out + (first + r) * dim + at + 16 * j;
            const __m512 part = _mm512_mul_ps(whole(high[r][j], low[r][j]), scale);
            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_loadu_ps(to), decay, part));
        }
    }
}

template <int R, bool Fetch> void weigh_rows(const WeightCodes &w, int first, const CodedChunk &chunk, int64_t dim, float *out) {
    int64_t at = 0;
    for (; at + 64 <= dim; at += 64) weigh_part<R, 4, Fetch>(w, first, chunk, at, dim, out);
    for (; at + 16 <= dim; at += 16) weigh_part<R, 1, Fetch>(w, first, chunk, at, dim, out);
}

// The rows at a time: three fill the registers with sums, and four are two times two.
inline int rows_now(int left) { return left == 4 || left == 2 ? 2 : std::min(3, left); }

// The scores of one row, scaled and masked.
TAILRACE_KV_VNNI inline void masked(const float *s, uint64_t seen, float scale, __m512 *x) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
        x[i] = _mm512_mask_mul_ps(_mm512_set1_ps(-std::numeric_limits<float>::infinity()), static_cast<__mmask16>(seen >> (16 * i)),
                                  _mm512_loadu_ps(s + 16 * i), _mm512_set1_ps(scale));
}

}  // namespace

bool has_kv_vnni() {
    static const bool yes = supports_avx512() && __builtin_cpu_supports("avx512vnni");
    return yes && avx512_wanted;
}

// The first rows fetch the next chunk.
void score_vnni(int rows, const QueryCodes &queries, const CodedChunk &chunk, int64_t dim, float *s) {
    static constexpr decltype(&score_rows<1, true>) score[2][3] = {
        {score_rows<1, false>, score_rows<2, false>, score_rows<3, false>},
        {score_rows<1, true>, score_rows<2, true>, score_rows<3, true>}};
    for (int r = 0; r < rows;) {
        const int now = rows_now(rows - r);
        score[chunk.fetch && r == 0][now - 1](queries.from(r, dim), chunk, dim, s + r * kCodedPositions);
        r += now;
    }
}

// Each pass goes over all rows: the steps of one row wait for each other, those of several rows do not.
TAILRACE_KV_VNNI void soften_vnni(const float *s, int rows, const uint64_t *seen, float scale, const CodedChunk &chunk,
                                  float *max, float *sum, WeightCodes &to) {
    alignas(64) float tops[kCodedRows], shifts[kCodedRows], weights[kCodedRows * kCodedPositions];
    alignas(64) int32_t most[kCodedRows];
    for (int r = 0; r < rows; ++r) {
        __m512 x[4];
        masked(s + r * kCodedPositions, seen[r], scale, x);
        tops[r] = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])));
    }
    const __mmask16 there = static_cast<__mmask16>((1u << rows) - 1);
    const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity()), before = _mm512_maskz_loadu_ps(there, max);
    const __m512 top = _mm512_max_ps(before, _mm512_maskz_load_ps(there, tops));
    const __m512 shift = _mm512_mask_mov_ps(top, _mm512_cmp_ps_mask(top, none, _CMP_EQ_OQ), _mm512_setzero_ps());
    const __mmask16 begun = _mm512_cmp_ps_mask(before, none, _CMP_NEQ_UQ);
    _mm512_store_ps(shifts, shift);
    _mm512_store_ps(to.decay, _mm512_maskz_mov_ps(begun, power16(_mm512_sub_ps(before, shift))));
    _mm512_mask_storeu_ps(max, there, top);
    for (int r = 0; r < rows; ++r) {
        __m512 x[4];
        __m512i widest = _mm512_setzero_si512();
        masked(s + r * kCodedPositions, seen[r], scale, x);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __mmask16 bits = static_cast<__mmask16>(seen[r] >> (16 * i));
            x[i] = _mm512_maskz_mov_ps(bits, power16(_mm512_sub_ps(x[i], _mm512_set1_ps(shifts[r]))));
        }
        const float total = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3])));
        sum[r] = __builtin_fmaf(sum[r], to.decay[r], total);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {  // the scale of a hidden position may be NaN
            const __mmask16 bits = static_cast<__mmask16>(seen[r] >> (16 * i));
            x[i] = _mm512_maskz_mul_ps(bits, x[i], _mm512_loadu_ps(chunk.value_scales[i]));
            widest = _mm512_max_epi32(widest, _mm512_and_si512(_mm512_castps_si512(x[i]), _mm512_set1_epi32(0x7fffffff)));
            _mm512_store_ps(weights + r * kCodedPositions + 16 * i, x[i]);
        }
        most[r] = _mm512_reduce_max_epi32(widest);
    }
    for (int r = 0; r < rows; ++r) {
        float widest;
        std::memcpy(&widest, most + r, 4);
        const WeightScale found = scale_of_weights(widest);
        to.scale[r] = found.scale;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const int at = r * kCodedPositions + 16 * i;
            const __m512 x = _mm512_mul_ps(_mm512_load_ps(weights + at), _mm512_set1_ps(found.by));
            const __m512i code = _mm512_cvtps_epi32(x);
            _mm_store_si128(reinterpret_cast<__m128i *>(to.high + at), _mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 7)));
            const __m512i low = _mm512_and_si512(code, _mm512_set1_epi32(127));
            _mm_store_si128(reinterpret_cast<__m128i *>(to.low + at), _mm512_cvtepi32_epi8(low));
        }
    }
}

void weigh_vnni(int rows, const WeightCodes &weights, const CodedChunk &chunk, int64_t dim, float *out) {
    static constexpr decltype(&weigh_rows<1, true>) weigh[2][3] = {
        {weigh_rows<1, false>, weigh_rows<2, false>, weigh_rows<3, false>},
        {weigh_rows<1, true>, weigh_rows<2, true>, weigh_rows<3, true>}};
    for (int r = 0; r < rows;) {
        const int now = rows_now(rows - r);
        weigh[chunk.fetch && r == 0][now - 1](weights, r, chunk, dim, out);
        r += now;
    }
    if (dim % 16) weigh_portable(rows, weights, chunk, {dim / 16 * 16, dim}, out);
}

}  // namespace tailrace
#else
namespace tailrace {
bool has_kv_vnni() { return false; }
void score_vnni(int, const QueryCodes &, const CodedChunk &, int64_t, float *) {}
void soften_vnni(const float *, int, const uint64_t *, float, const CodedChunk &, float *, float *, WeightCodes &) {}
void weigh_vnni(int, const WeightCodes &, const CodedChunk &, int64_t, float *) {}
}  // namespace tailrace
#endif
