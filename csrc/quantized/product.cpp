// The products by portable loops and by AVX2.
#include "quantized/product.h"

#include <cmath>

namespace tailrace {
namespace {

// Add the products of `groups` groups of four codes and four inputs to the sums of 64 outputs.
TAILRACE_CLONES void sums_portable(const uint8_t *codes, const int8_t *q, int groups, int32_t *sums) {
    for (int g = 0; g < groups; ++g, codes += 4 * kPack, q += 4)
        for (int j = 0; j < kPack; ++j)
            sums[j] += codes[4 * j] * q[0] + codes[4 * j + 1] * q[1] + codes[4 * j + 2] * q[2] + codes[4 * j + 3] * q[3];
}

#if TAILRACE_X86
__attribute__((target("avx2,fma"))) void sums_avx2(const uint8_t *codes, const int8_t *q, int groups, int32_t *sums) {
    // vpmaddubsw adds two products in 16 bits. Two products of 7 and 8 bits fit, so the eighth bit of a code is
    // multiplied separately.
    const __m256i seven = _mm256_set1_epi8(127), one = _mm256_set1_epi8(1);
    const __m256i ones = _mm256_set1_epi16(1), eighth = _mm256_set1_epi16(128);
    for (int j = 0; j < kPack; j += 8) {
        __m256i *to = reinterpret_cast<__m256i *>(sums + j);
        __m256i sum = _mm256_load_si256(to);
        for (int g = 0; g < groups; ++g) {
            int32_t four;
            std::memcpy(&four, q + 4 * g, 4);
            const __m256i x = _mm256_set1_epi32(four);
            const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes + (g * kPack + j) * 4));
            const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(w, seven), x);
            const __m256i top = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w, 7), one), x);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, ones));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(top, eighth));
        }
        _mm256_store_si256(to, sum);
    }
}

__attribute__((target("avx2,fma"))) void add_avx2(const int32_t *sums, const float *scales, float by, float *acc) {
    const __m256 x = _mm256_set1_ps(by);
    for (int j = 0; j < kPack; j += 8) {
        const __m256 sum = _mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(sums + j)));
        const __m256 part = _mm256_mul_ps(sum, _mm256_load_ps(scales + j));
        _mm256_storeu_ps(acc + j, _mm256_fmadd_ps(part, x, _mm256_loadu_ps(acc + j)));
    }
}

__attribute__((target("avx2,fma"))) void add_min_avx2(const float *mins, float by, float *acc) {
    const __m256 x = _mm256_set1_ps(by);
    for (int j = 0; j < kPack; j += 8)
        _mm256_storeu_ps(acc + j, _mm256_fmadd_ps(_mm256_load_ps(mins + j), x, _mm256_loadu_ps(acc + j)));
}
#endif

void add_portable(const int32_t *sums, const float *scales, float by, float *acc) {
    for (int j = 0; j < kPack; ++j) acc[j] = std::fma(static_cast<float>(sums[j]) * scales[j], by, acc[j]);
}
void add_min_portable(const float *mins, float by, float *acc) {
    for (int j = 0; j < kPack; ++j) acc[j] = std::fma(mins[j], by, acc[j]);
}

using Sums = void (*)(const uint8_t *, const int8_t *, int, int32_t *);
using Add = void (*)(const int32_t *, const float *, float, float *);
using AddMin = void (*)(const float *, float, float *);

inline void each_row(const Product &p, int rows, float *acc, Sums sums_of, Add add, AddMin add_min) {
    const int parts = p.twice ? 2 : 1, groups = kBlock / 4 / parts;
    alignas(64) int32_t sums[kPack];
    for (int r = 0; r < rows; ++r, acc += kPack) {
        const ActivationRow at(*p.x, p.row + r);
        for (int64_t b = 0; b < p.count; ++b) {
            const int64_t block = p.first + b;
            if (r == 0) fetch_next(p, b);
            for (int half = 0; half < parts; ++half) {
                const int32_t start = *at.start(block, half);
                for (int32_t &sum : sums) sum = start;
                sums_of(p.codes + b * p.stride + half * groups * 4 * kPack, at.q(block) + half * kSixteen, groups, sums);
                add(sums, p.w->scales + (b * parts + half) * kPack, at.scale(block), acc);
            }
            if (p.min) add_min(p.w->mins + b * kPack, at.total(block), acc);
        }
    }
}

}  // namespace

void product_portable(const Product &p, int rows, float *acc) {
    each_row(p, rows, acc, sums_portable, add_portable, add_min_portable);
}

#if TAILRACE_X86
void product_avx2(const Product &p, int rows, float *acc) {
    each_row(p, rows, acc, sums_avx2, add_avx2, add_min_avx2);
}
#endif

}  // namespace tailrace
