// Arithmetic that the scans share.
#pragma once
#include "base/exact.h"
#include "base/simd.h"
#include "state/scan.h"

#include <algorithm>
#include <vector>

namespace tailrace {

// Return e^x: exactly 1 at 0, 0 below -87.3 and infinite above 88. NaN stays NaN. The same bits on every instruction set.
TAILRACE_INLINE float exponential_of(float x) {
    const float y = x * kLog2E, p = power(y > 127.0f ? 127.0f : y);
    const float low = y < -126.0f ? 0.0f : p;
    const float high = y > 127.0f ? std::numeric_limits<float>::infinity() : low;
    return y != y ? y : high;
}

TAILRACE_INLINE void widen_row(const Rows &rows, int64_t token, int64_t offset, int64_t count, float *to) {
    const int64_t at = token * rows.stride + offset;
    if (rows.type == Type::f32) {
        const float *from = static_cast<const float *>(rows.data) + at;
        for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    } else {
        const bf16 *from = static_cast<const bf16 *>(rows.data) + at;
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
            std::memcpy(to + i, &bits, 4);
        }
    }
}

// Return this thread's memory for `count` numbers; the contents are undefined.
inline float *borrow_floats(int64_t count) {
    thread_local std::vector<float> floats;
    if (static_cast<int64_t>(floats.size()) < count) floats.resize(static_cast<size_t>(count));
    return floats.data();
}

}  // namespace tailrace
