// Greedy argmax in one streaming read, any of bf16, f16, f32, without converting: floats order like their bits once the
// magnitude bits of negatives are flipped. A block that holds the maximum is read a second time, from cache.
#include "base/pool.h"
#include "base/simd.h"
#include "kernels.h"

#include <algorithm>

namespace tailrace {
namespace {

constexpr int64_t kBlock = 2048;

template <typename I> struct Keys;
template <> struct Keys<int16_t> { static constexpr int16_t flip = 0x7fff; };
template <> struct Keys<int32_t> { static constexpr int32_t flip = 0x7fffffff; };

// key(x) as signed integer: order-preserving; NaNs lie beyond both infinities.
template <typename I> inline I key(I bits) {
    return static_cast<I>(bits ^ ((bits >> (8 * sizeof(I) - 1)) & Keys<I>::flip));
}

#define TAILRACE_RANGE(NAME, I)                                                              \
    TAILRACE_CLONES void NAME(const I *x, int64_t n, I *low, I *high) {                      \
        I lo = Keys<I>::flip, hi = static_cast<I>(~Keys<I>::flip);                           \
        for (int64_t i = 0; i < n; ++i) {                                                    \
            const I bits = x[i];                                                             \
            const I k = static_cast<I>(bits ^ ((bits >> (8 * sizeof(I) - 1)) & Keys<I>::flip)); \
            lo = k < lo ? k : lo;                                                            \
            hi = k > hi ? k : hi;                                                            \
        }                                                                                    \
        *low = lo;                                                                           \
        *high = hi;                                                                          \
    }
TAILRACE_RANGE(range16, int16_t)
TAILRACE_RANGE(range32, int32_t)
#undef TAILRACE_RANGE

inline void range(const int16_t *x, int64_t n, int16_t *lo, int16_t *hi) { range16(x, n, lo, hi); }
inline void range(const int32_t *x, int64_t n, int32_t *lo, int32_t *hi) { range32(x, n, lo, hi); }

template <typename I> void row(const I *x, int64_t vocab, I inf, int64_t *id, int32_t *status) {
    I low = Keys<I>::flip, high = static_cast<I>(~Keys<I>::flip);
    int64_t best = 0;
    bool zero = false;  // -0 and +0 are one value: a later block's +0 does not beat an earlier block's -0
    for (int64_t at = 0; at < vocab; at += kBlock) {
        I lo, hi;
        range(x + at, std::min(kBlock, vocab - at), &lo, &hi);
        low = std::min(low, lo);
        if (hi > high && !(hi == 0 && zero)) best = at;
        high = std::max(high, hi);
        zero = zero || hi == -1;
    }
    const I negative_inf = key<I>(static_cast<I>(inf | ~Keys<I>::flip));
    *id = -1;
    if (high > inf || low < negative_inf) {
        *status = kNan;
    } else if (high == inf) {
        *status = kInf;
    } else if (high == negative_inf) {
        *status = kEmpty;
    } else {
        *status = kOk;
        const int64_t end = std::min(best + kBlock, vocab);
        for (int64_t i = best; i < end; ++i) {
            const I k = key(x[i]);
            if (k == high || (high == 0 && k == -1)) {
                *id = i;
                return;
            }
        }
    }
}

}  // namespace

void argmax(const void *logits, Type type, int64_t rows, int64_t vocab, int64_t row_stride, int64_t *ids,
            int32_t *status) {
    Pool::instance().run(rows, [&](int64_t r) {
        if (type == Type::f32) {
            row<int32_t>(static_cast<const int32_t *>(logits) + r * row_stride, vocab, 0x7f800000, ids + r, status + r);
        } else {
            const int16_t inf = type == Type::bf16 ? 0x7f80 : 0x7c00;
            row<int16_t>(static_cast<const int16_t *>(logits) + r * row_stride, vocab, inf, ids + r, status + r);
        }
    });
}

}  // namespace tailrace
