#include "sample/noise.h"

#include <algorithm>
#include <bit>

#include "base/exact.h"
#include "base/simd.h"

namespace tailrace {
namespace {

constexpr int64_t kBatch = 64;

// −ln(−ln(1 − u)) with u from a token's own word and its hot bit; the fine end of u is where the noise is large.
TAILRACE_INLINE float value(uint32_t word, bool hot) {
    const double v = (static_cast<double>(static_cast<int64_t>(word)) + 0.5) * 0x1p-32;
    const double fine = v * 0x1p-8;  // below 2^-8: the series of −ln(1 − u), to the last place
    const double series = fine * (1.0 + fine * (0.5 + fine * (1.0 / 3 + fine * (0.25 + fine * 0.2))));
    const double rest = (1.0 - v) * (1.0 - 0x1p-8);  // 1 − u
    return static_cast<float>(-logarithm(hot ? series : -logarithm(rest)));
}

// Sixteen calls of Philox at once: the compilers don't find the 32 × 32 → 64 bit multiplication by themselves.
#if TAILRACE_X86
struct Wide {
    __m512i w0, w1, w2, w3;
};

TAILRACE_AVX512 inline void multiply(__m512i a, __m512i by, __m512i *high, __m512i *low) {
    const __m512i even = _mm512_mul_epu32(a, by), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), by);
    *high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    *low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}

// N batches side by side, for a round waits for the one before; c[i].w0 holds the first counter word.
template <int N> TAILRACE_AVX512 inline void philox16(uint64_t key, uint32_t c1, uint64_t position, Wide (&c)[N]) {
    for (int i = 0; i < N; ++i) {
        c[i].w1 = _mm512_set1_epi32(static_cast<int>(c1));
        c[i].w2 = _mm512_set1_epi32(static_cast<int>(position));
        c[i].w3 = _mm512_set1_epi32(static_cast<int>(position >> 32));
    }
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    constexpr int kXor3 = 0x96;
    for (int round = 0; round < 10; ++round) {
        const __m512i key0 = _mm512_set1_epi32(static_cast<int>(k0)), key1 = _mm512_set1_epi32(static_cast<int>(k1));
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) {
            __m512i high0, low0, high1, low1;
            multiply(c[i].w0, m0, &high0, &low0);
            multiply(c[i].w2, m1, &high1, &low1);
            c[i].w0 = _mm512_ternarylogic_epi32(high1, c[i].w1, key0, kXor3);
            c[i].w2 = _mm512_ternarylogic_epi32(high0, c[i].w3, key1, kXor3);
            c[i].w1 = low1;
            c[i].w3 = low0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

TAILRACE_AVX512 inline __m512i joined(const Wide &w) {
    const __m512i both = _mm512_and_si512(_mm512_and_si512(w.w0, w.w1), _mm512_and_si512(w.w2, w.w3));
    return _mm512_and_si512(both, _mm512_srli_epi32(both, 16));
}

TAILRACE_AVX512 inline __m512i hot_bits16(const Noise &noise, __m512i group) {
    Wide c[1];
    c[0].w0 = group;
    philox16(noise.key, 2 * noise.stream + 1, noise.position, c);
    return joined(c[0]);
}

TAILRACE_AVX512 inline void append(__m512i group, __m512i words, __mmask16 valid, Hot &out) {
    const __mmask16 in = _mm512_mask_test_epi32_mask(valid, words, words);
    _mm512_storeu_si512(out.group + out.n, _mm512_maskz_compress_epi32(in, group));
    _mm512_storeu_si512(out.bits + out.n, _mm512_maskz_compress_epi32(in, words));
    out.n += std::popcount(static_cast<unsigned>(in));
}

TAILRACE_AVX512 void hot_groups_avx512(const Noise &noise, int64_t first, int64_t n, Hot &out) {
    const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int64_t g = 0;
    for (; g + 4 * kLanes <= n; g += 4 * kLanes) {
        __m512i group[4];
        Wide c[4];
        for (int i = 0; i < 4; ++i)
            c[i].w0 = group[i] = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first + g + i * kLanes)), step);
        philox16(noise.key, 2 * noise.stream + 1, noise.position, c);
        for (int i = 0; i < 4; ++i) append(group[i], joined(c[i]), 0xffff, out);
    }
    for (; g < n; g += kLanes) {
        const __m512i group = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first + g)), step);
        const __mmask16 valid = n - g >= kLanes ? 0xffff : static_cast<__mmask16>((1u << (n - g)) - 1);
        append(group, hot_bits16(noise, group), valid, out);
    }
}

// The ids' own words and, unless they are known to be hot, their hot bits. n up to kBatch; the arrays have room for
// kBatch.
TAILRACE_AVX512 void draw_bits_avx512(const Noise &noise, const uint32_t *ids, int64_t n, bool know_hot, uint32_t *word, uint32_t *hot) {
    for (int64_t i = 0; i < n; i += kLanes) {
        const __mmask16 valid = n - i >= kLanes ? 0xffff : static_cast<__mmask16>((1u << (n - i)) - 1);
        const __m512i id = _mm512_maskz_loadu_epi32(valid, ids + i);
        Wide c[1];
        c[0].w0 = id;
        philox16(noise.key, 2 * noise.stream, noise.position, c);
        _mm512_storeu_si512(word + i, c[0].w0);
        if (know_hot) continue;
        const __m512i bits = hot_bits16(noise, _mm512_srli_epi32(id, 4));
        const __m512i bit = _mm512_srlv_epi32(bits, _mm512_and_si512(id, _mm512_set1_epi32(15)));
        _mm512_storeu_si512(hot + i, _mm512_and_si512(bit, _mm512_set1_epi32(1)));
    }
}
#endif

TAILRACE_CLONES void hot_groups_plain(const Noise &noise, int64_t first, int64_t n, Hot &out) {
    const Noise mine = noise;
    uint32_t bits[kBatch];
    for (int64_t at = 0; at < n; at += kBatch) {
        const int64_t count = std::min(kBatch, n - at);
        for (int64_t g = 0; g < count; ++g) bits[g] = hot_bits(mine, static_cast<uint32_t>(first + at + g));
        for (int64_t g = 0; g < count; ++g) {
            out.group[out.n] = static_cast<uint32_t>(first + at + g);
            out.bits[out.n] = bits[g];
            out.n += bits[g] != 0;
        }
    }
}

TAILRACE_CLONES void draw_bits_plain(const Noise &noise, const uint32_t *ids, int64_t n, bool know_hot, uint32_t *word, uint32_t *hot) {
    const Noise mine = noise;
    for (int64_t i = 0; i < n; ++i) word[i] = philox(mine.key, ids[i], 2 * mine.stream, mine.position).w0;
    if (know_hot) return;
    for (int64_t i = 0; i < n; ++i) hot[i] = hot_bits(mine, ids[i] / kGroup) >> (ids[i] % kGroup) & 1u;
}

TAILRACE_CLONES void values(const uint32_t *word, const uint32_t *hot, int64_t n, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = value(word[i], hot[i] != 0);
}

// Calls use(at, count, word, hot) with the bits of kBatch ids at a time.
template <typename Use> void each_batch(const Noise &noise, const uint32_t *ids, int64_t n, bool know_hot, Use use) {
    alignas(64) uint32_t hot[kBatch], word[kBatch];
    std::fill(hot, hot + kBatch, 1u);
    for (int64_t at = 0; at < n; at += kBatch) {
        const int64_t count = std::min(kBatch, n - at);
        TAILRACE_BEST(draw_bits)(noise, ids + at, count, know_hot, word, hot);
        use(at, count, word, hot);
    }
}

void noise_of(const Noise &noise, const uint32_t *ids, int64_t n, bool know_hot, float *out) {
    each_batch(noise, ids, n, know_hot, [out](int64_t at, int64_t count, const uint32_t *word, const uint32_t *hot) {
        values(word, hot, count, out + at);
    });
}

}  // namespace

void hot_groups(const Noise &noise, int64_t first, int64_t n, Hot &out) { TAILRACE_BEST(hot_groups)(noise, first, n, out); }
void gumbel(const Noise &noise, const uint32_t *ids, int64_t n, float *out) { noise_of(noise, ids, n, false, out); }
void gumbel_hot(const Noise &noise, const uint32_t *ids, int64_t n, float *out) { noise_of(noise, ids, n, true, out); }

void words(const Noise &noise, const uint32_t *ids, int64_t n, uint32_t *out) {
    each_batch(noise, ids, n, true, [out](int64_t at, int64_t count, const uint32_t *word, const uint32_t *) {
        std::copy(word, word + count, out + at);
    });
}

double uniform(const Noise &noise) {
    const Words w = philox(noise.key, 0, 2 * noise.stream, noise.position);
    const uint64_t bits = (static_cast<uint64_t>(w.w0) << 21) | (w.w1 >> 11);
    return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

}  // namespace tailrace
