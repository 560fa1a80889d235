// Arithmetic on sixteen lanes whose result is the same bits on every instruction set: these files are compiled without
// contraction of a · b + c, and every sum has a fixed order (sixteen lanes, then a fixed tree), so neither the SIMD
// width nor the number of threads nor the batch can change a result. `static`, so that no other file's build of them is
// ever linked in.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#define TAILRACE_INLINE __attribute__((always_inline)) static inline

namespace tailrace {

constexpr int64_t kLanes = 16;
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kLowest = -std::numeric_limits<float>::max();  // the smallest logit of a token that can still be drawn

// Sixteen at once, whatever registers there are: one of AVX-512, two of AVX2, four of SSE2 or NEON. A comparison must
// stand right before its `? :`, because GCC 12 splits a mask in a variable into scalars.
typedef float F16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));

template <typename V, typename T> TAILRACE_INLINE V load16(const T *from) {
    static_assert(sizeof(V) == kLanes * sizeof(T));
    V out;
    std::memcpy(&out, from, sizeof(V));
    return out;
}
template <typename V, typename T> TAILRACE_INLINE void store16(T *to, const V &values) {
    static_assert(sizeof(V) == kLanes * sizeof(T));
    std::memcpy(to, &values, sizeof(V));
}
TAILRACE_INLINE F16 all(float x) { return F16{} + x; }
TAILRACE_INLINE F16 larger(const F16 &a, const F16 &b) { return a > b ? a : b; }

// 2^y for y <= 0: relative error < 2e-7, exactly 1 at 0; what is below -126 counts as that, about 1e-38, −inf too.
// Branch-free, so loops over it vectorise. fma is asked for by name: it rounds once on every machine (where there is no
// such instruction, slowly).
TAILRACE_INLINE float power(float y) {
    const float clamped = y < -126.0f ? -126.0f : y;
    const float shifted = clamped + 12582912.0f;  // the nearest integer, in the lowest bits
    const float r = clamped - (shifted - 12582912.0f);
    float p = __builtin_fmaf(r, 1.326472731307149e-3f, 9.671512991189957e-3f);
    p = __builtin_fmaf(p, r, 5.550733581185341e-2f);
    p = __builtin_fmaf(p, r, 2.4022242426872253e-1f);
    p = __builtin_fmaf(p, r, 6.931470036506653e-1f);
    p = __builtin_fmaf(p, r, 1.0f);
    uint32_t bits, exponent;
    std::memcpy(&bits, &p, 4);
    std::memcpy(&exponent, &shifted, 4);
    bits += exponent << 23;
    std::memcpy(&p, &bits, 4);
    return p;
}
constexpr float kLog2E = 1.44269504088896341f;

// e^x for x <= 0: absolute error < 2e-7, exactly 1 at 0 and 0 below -87.3.
TAILRACE_INLINE float weight(float x) {
    const float y = x * kLog2E, p = power(y);
    return y < -126.0f ? 0.0f : p;
}

// e^x for x <= 0 in double, relative error < 1e-15, exactly 1 at 0 and 0 below -708. Branch-free, as `power` is.
TAILRACE_INLINE double exponential(double x) {
    const double clamped = x < -708.0 ? -708.0 : x;
    const double shifted = __builtin_fma(clamped, 1.4426950408889634, 6755399441055744.0);
    const double k = shifted - 6755399441055744.0;
    double r = __builtin_fma(k, -0x1.62e42fefa3800p-1, clamped);  // ln 2 in two parts
    r = __builtin_fma(k, -0x1.ef35793c76730p-45, r);
    double p = 1.0 / 6227020800.0;
    p = __builtin_fma(p, r, 1.0 / 479001600.0);
    p = __builtin_fma(p, r, 1.0 / 39916800.0);
    p = __builtin_fma(p, r, 1.0 / 3628800.0);
    p = __builtin_fma(p, r, 1.0 / 362880.0);
    p = __builtin_fma(p, r, 1.0 / 40320.0);
    p = __builtin_fma(p, r, 1.0 / 5040.0);
    p = __builtin_fma(p, r, 1.0 / 720.0);
    p = __builtin_fma(p, r, 1.0 / 120.0);
    p = __builtin_fma(p, r, 1.0 / 24.0);
    p = __builtin_fma(p, r, 1.0 / 6.0);
    p = __builtin_fma(p, r, 0.5);
    p = __builtin_fma(p, r, 1.0);
    p = __builtin_fma(p, r, 1.0);
    uint64_t bits, exponent;
    std::memcpy(&bits, &p, 8);
    std::memcpy(&exponent, &shifted, 8);
    bits += exponent << 52;
    std::memcpy(&p, &bits, 8);
    return x < -708.0 ? 0.0 : p;
}

// ln x for normal x > 0, relative error < 1e-12: log of the mantissa by the artanh series.
TAILRACE_INLINE double logarithm(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, 8);
    const int64_t shifted = bits - 0x3fe6a09e667f3bcd;  // mantissa in [√½, √2)
    const int64_t exponent = shifted >> 52;
    const int64_t mantissa = bits - (exponent << 52);
    double m;
    std::memcpy(&m, &mantissa, 8);
    const double s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 1.0 / 17;
    p = p * q + 1.0 / 15;
    p = p * q + 1.0 / 13;
    p = p * q + 1.0 / 11;
    p = p * q + 1.0 / 9;
    p = p * q + 1.0 / 7;
    p = p * q + 1.0 / 5;
    p = p * q + 1.0 / 3;
    p = p * q + 1.0;
    return 2.0 * s * p + static_cast<double>(static_cast<int32_t>(exponent)) * 0.693147180559945309417;
}

// Return the sum of sixteen lanes, always in this order.
TAILRACE_INLINE double fold(const F16 &lane) {
    typedef double D4 __attribute__((vector_size(32)));
    typedef float F4 __attribute__((vector_size(16)));
    F4 part[4];
    std::memcpy(part, &lane, sizeof(lane));
    const D4 sum = (__builtin_convertvector(part[0], D4) + __builtin_convertvector(part[1], D4)) +
                   (__builtin_convertvector(part[2], D4) + __builtin_convertvector(part[3], D4));
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Return the largest of sixteen lanes.
TAILRACE_INLINE float largest(const F16 &lane) {
    typedef float F8 __attribute__((vector_size(32)));
    typedef float F4 __attribute__((vector_size(16)));
    F8 half[2];
    std::memcpy(half, &lane, sizeof(lane));
    const F8 a = half[0] > half[1] ? half[0] : half[1];
    F4 quarter[2];
    std::memcpy(quarter, &a, sizeof(a));
    const F4 b = quarter[0] > quarter[1] ? quarter[0] : quarter[1];
    const float c = b[0] > b[1] ? b[0] : b[1], d = b[2] > b[3] ? b[2] : b[3];
    return c > d ? c : d;
}

}  // namespace tailrace
