// bfloat16 as its 16 bits, run-time dispatch, and an exponential that every path shares.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define TAILRACE_X86 1
#define TAILRACE_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#else
#define TAILRACE_X86 0
#endif
#if defined(__aarch64__) && defined(__linux__) && (defined(__GNUC__) || defined(__clang__))
#define TAILRACE_NEON 1
#else
#define TAILRACE_NEON 0
#endif

// The portable loops are compiled three times and chosen at load time, where the loader can do that (glibc's ifunc).
// TAILRACE_ONE_SET: only for the set that the compiler is given, so that tests can compare the sets.
#if defined(TAILRACE_ONE_SET)
#define TAILRACE_CLONES
#elif TAILRACE_X86 && defined(__ELF__) && defined(__GLIBC__) && (defined(__clang__) || __GNUC__ >= 12)
#define TAILRACE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif TAILRACE_X86 && defined(__ELF__) && defined(__GLIBC__)  // GCC 11 does not know the levels here
#define TAILRACE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TAILRACE_CLONES
#endif

namespace tailrace {

using bf16 = uint16_t;

inline float to_float(bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
inline float to_float(float x) { return x; }

// Round to nearest, ties to even; NaN stays NaN.
inline bf16 to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return static_cast<bf16>(nan ? ((bits >> 16) | 0x40u) : (rounded >> 16));
}
// The same for many, by the widest registers (model/elementwise.cpp).
void round_row(const float *from, int64_t count, bf16 *to);
template <typename T> inline T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x) { return to_bf16(x); }

// exp(x), relative error < 2e-7; exactly 1 at 0, 0 below -87, infinite above 88. NaN stays NaN.
// Cody-Waite reduction and a degree-6 polynomial; branch-free, so loops over it vectorise.
inline float fast_exp(float x) {
    const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    const float shifted = clamped * 1.44269504088896341f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, 4);
    const uint32_t power = (bits + 127u) << 23;
    float scale;
    std::memcpy(&scale, &power, 4);
    return x < -87.0f ? 0.0f : x > 88.0f ? HUGE_VALF : p * scale;
}

// 2^x for x <= 0 (and a little above), relative error < 3e-7; exactly 1 at 0 and 0 below -126. NaN stays NaN.
inline float fast_exp2(float x) {
    const float clamped = x < -126.0f ? -126.0f : x;
    const float shifted = clamped + 12582912.0f;
    const float r = clamped - (shifted - 12582912.0f);
    float p = 1.535336188319500e-4f;
    p = p * r + 1.339887440266574e-3f;
    p = p * r + 9.618437357674640e-3f;
    p = p * r + 5.550332471162809e-2f;
    p = p * r + 2.402264791363012e-1f;
    p = p * r + 6.931472028550421e-1f;
    p = p * r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, 4);
    const uint32_t power = (bits + 127u) << 23;
    float scale;
    std::memcpy(&scale, &power, 4);
    return x < -126.0f ? 0.0f : p * scale;
}

#if TAILRACE_X86
// The same for sixteen, and infinite for large x; the last place may differ from the scalar one.
TAILRACE_BF16 inline __m512 fast_exp2(__m512 x) {
    const __m512 clamped = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);  // NaN is the second operand: it stays
    const __m512 n = _mm512_roundscale_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(clamped, n);
    __m512 p = _mm512_set1_ps(1.535336188319500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.339887440266574e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.618437357674640e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550332471162809e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402264791363012e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931472028550421e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}
#endif

// Decided once. TAILRACE_BEST(f) is f_avx512 where the CPU has it, else f_plain.
#if TAILRACE_X86
#define TAILRACE_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
// Sixteen bfloat16 as floats.
TAILRACE_AVX512 inline __m512 widened(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline bool avx512_wanted = true;  // false only while tests compare
inline bool supports_avx512() {
    static const bool yes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return yes;
}
inline bool has_avx512() { return avx512_wanted && supports_avx512(); }
// vdpbf16ps, which multiplies bfloat16 pairs
inline bool has_bf16() {
    static const bool yes = supports_avx512() && __builtin_cpu_supports("avx512bf16");
    return yes && avx512_wanted;
}
#define TAILRACE_BEST(name) (has_avx512() ? name##_avx512 : name##_plain)
#else
inline bool avx512_wanted = true;
inline bool has_bf16() { return false; }
#define TAILRACE_BEST(name) name##_plain
#endif

}  // namespace tailrace
