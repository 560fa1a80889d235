// Loops over values in sixteen lanes, and the compression of the lanes that a mask names.
#pragma once
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/exact.h"
#include "base/simd.h"
#include "sample/row.h"

namespace tailrace {

constexpr int64_t kFlush = 1024;  // number of values summed in float lanes, before the lanes are joined in double

// Call use(at, values) for sixteen values at a time. `fill` takes the place of values behind the end.
template <typename Use> TAILRACE_INLINE void each16(const float *values, int64_t n, float fill, Use use) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) use(i, load16<F16>(values + i));
    if (i == n) return;
    float rest[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) rest[l] = i + l < n ? values[i + l] : fill;
    use(i, load16<F16>(rest));
}

// Call use(i) for every i whose flag byte is 1, in order. flags [kBlock] are 0 or 1.
template <typename Use> TAILRACE_INLINE void each_flagged(const uint8_t *flags, Use use) {
    static_assert(std::endian::native == std::endian::little);
    for (int64_t w = 0; w < kBlock; w += 8) {
        uint64_t word;
        std::memcpy(&word, flags + w, 8);
        for (; word; word &= word - 1) use(w + std::countr_zero(word) / 8);
    }
}

#if TAILRACE_X86
// Write the values of the lanes in the mask, side by side, from to[n] on. Sixteen numbers are written in all.
TAILRACE_AVX512 inline void compress(float *to, int64_t n, __mmask16 in, __m512 values) {
    _mm512_storeu_ps(to + n, _mm512_maskz_compress_ps(in, values));
}
#endif

}  // namespace tailrace
