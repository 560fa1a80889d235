// A penalty on one block: gathered, penalised sixteen at a time, and put back.
#include "sample/row.h"

namespace tailrace {
namespace {

// Return how many of the next sixteen entries of `ids`, from `i` on, lie before `end`.
inline int64_t entries_before(const uint32_t *ids, int64_t i, int64_t n, int64_t end) {
    int64_t some = 0;
    while (some < kLanes && i + some < n && ids[i + some] < end) ++some;
    return some;
}

TAILRACE_CLONES int64_t penalise_block_plain(const Edit &edit, int64_t i, int64_t first, float *x) {
    const auto [ids, n] = touched_by(edit);
    constexpr int64_t kWorthIt = 6;  // fewer entries are quicker one by one
    for (int64_t some; (some = entries_before(ids, i, n, first + kBlock)) > 0; i += some) {
        if (some < kWorthIt) {
            for (int64_t l = 0; l < some; ++l) {
                float &value = x[ids[i + l] - first];
                value = penalised(value, edit, *static_cast<const Counts *>(edit.ids), i + l);
            }
            continue;
        }
        float value[kLanes] = {};
        for (int64_t l = 0; l < some; ++l) value[l] = x[ids[i + l] - first];
        penalise(edit, i, some, value);
        for (int64_t l = 0; l < some; ++l) x[ids[i + l] - first] = value[l];
    }
    return i;
}

#if TAILRACE_X86
TAILRACE_AVX512 int64_t penalise_block_avx512(const Edit &edit, int64_t i, int64_t first, float *x) {
    const auto [ids, n] = touched_by(edit);
    const Counts &counts = *static_cast<const Counts *>(edit.ids);
    const __m512 r = _mm512_set1_ps(static_cast<float>(edit.a)), f = _mm512_set1_ps(static_cast<float>(edit.b)),
                 p = _mm512_set1_ps(static_cast<float>(edit.c)), zero = _mm512_setzero_ps();
    const __m512i base = _mm512_set1_epi32(static_cast<int>(first)), end = _mm512_set1_epi32(static_cast<int>(first + kBlock));
    while (i < n && ids[i] < first + kBlock) {
        const __mmask16 valid = n - i >= kLanes ? 0xffff : static_cast<__mmask16>((1u << (n - i)) - 1);
        const __m512i id = _mm512_maskz_loadu_epi32(valid, ids + i);
        const __mmask16 in = _mm512_mask_cmplt_epu32_mask(valid, id, end);
        const __m512i at = _mm512_sub_epi32(id, base);
        const __m512 v = _mm512_mask_i32gather_ps(zero, in, at, x, 4);
        const __m512 again = _mm512_cvtepu32_ps(_mm512_maskz_loadu_epi32(in, counts.repeated.data() + i));
        const __m512 count = _mm512_cvtepu32_ps(_mm512_maskz_loadu_epi32(in, counts.counted.data() + i));
        const __m512 scaled = _mm512_mask_div_ps(_mm512_mul_ps(v, r), _mm512_cmp_ps_mask(v, zero, _CMP_GT_OQ), v, r);
        const __m512 one = _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(again, zero, _CMP_GT_OQ), scaled);
        const __m512 lowered = _mm512_sub_ps(_mm512_sub_ps(one, _mm512_mul_ps(f, count)), p);
        _mm512_mask_i32scatter_ps(x, in, at, _mm512_mask_mov_ps(one, _mm512_cmp_ps_mask(count, zero, _CMP_GT_OQ), lowered), 4);
        i += __builtin_popcount(in);
    }
    return i;
}
#endif

}  // namespace

int64_t penalise_block(const Edit &edit, int64_t i, int64_t first, float *x) { return TAILRACE_BEST(penalise_block)(edit, i, first, x); }

}  // namespace tailrace
