// The sums of the streaming pass: taken block by block, relative to the block's maximum, and joined afterwards.
#pragma once
#include <cmath>
#include <cstring>

#include "sample/row.h"

namespace tailrace {

// The sums of a block besides Σ w.
enum class Sums { mass, moments, squares };
inline Sums sums_of(const Wants &wants) {
    return wants.moments ? Sums::moments : wants.squares ? Sums::squares : Sums::mass;
}

// The sums of a block by lane: Σ w with w = e^y, y = (x − top) · scale. block_moments adds Σ w y and Σ w y²,
// block_squares adds Σ w².
constexpr int64_t kSums = 3 * kLanes;  // per block
TAILRACE_INLINE void block_mass(const float *x, float top, float scale, float *out) {
    float lane[kLanes] = {};
    const float c = scale * kLog2E;
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int l = 0; l < kLanes; ++l) lane[l] += power((x[i + l] - top) * c);
    std::memcpy(out, lane, sizeof(lane));
}

TAILRACE_INLINE void block_moments(const float *x, float top, float scale, float *out) {
    float w0[kLanes] = {}, w1[kLanes] = {}, w2[kLanes] = {};
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int l = 0; l < kLanes; ++l) {
            const float exact = (x[i + l] - top) * scale, y = exact < -100.0f ? -100.0f : exact;  // finite; w is 0
            const float w = weight(exact), wy = w * y;
            w0[l] += w;
            w1[l] += wy;
            w2[l] += wy * y;
        }
    std::memcpy(out, w0, sizeof(w0));
    std::memcpy(out + kLanes, w1, sizeof(w1));
    std::memcpy(out + 2 * kLanes, w2, sizeof(w2));
}

TAILRACE_INLINE void block_squares(const float *x, float top, float scale, float *out) {
    float w1[kLanes] = {}, w2[kLanes] = {};
    const float c = scale * kLog2E;
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int l = 0; l < kLanes; ++l) {
            const float w = power((x[i + l] - top) * c);
            w1[l] += w;
            w2[l] += w * w;
        }
    std::memcpy(out, w1, sizeof(w1));
    std::memcpy(out + kLanes, w2, sizeof(w2));
}

// Sixteen sums in double, one per lane.
struct Wide {
    typedef float F8 __attribute__((vector_size(32)));
    typedef double D8 __attribute__((vector_size(64)));
    D8 low{}, high{};
    void add(const float *lanes, double times) {
        low += __builtin_convertvector(load<F8>(lanes), D8) * times;
        high += __builtin_convertvector(load<F8>(lanes + 8), D8) * times;
    }
    double total() const {
        const D8 both = low + high;
        return ((both[0] + both[1]) + (both[2] + both[3])) + ((both[4] + both[5]) + (both[6] + both[7]));
    }
    template <typename V> static V load(const float *from) {
        V out;
        std::memcpy(&out, from, sizeof(V));
        return out;
    }
};

// Count, Σ d and Σ d² of the finite logits with d = x − pivot. The pivot is the mean of the row's first block. If that
// block lies far from the rest, σ is as large, so cancellation is bounded. The relative error of σ is below 1e-4,
// usually 1e-7.
struct Spread {
    Wide count, first, second;
    float pivot = 0;
    bool begun = false;
    double sigma() const {
        const double n = count.total(), mean = first.total() / n;
        const double variance = second.total() / n - mean * mean;
        return variance > 1e-30 && variance < 1e36 ? std::sqrt(variance) : -1.0;  // −1: a float may have overflowed
    }
};

TAILRACE_INLINE void block_spread(const float *x, Spread &spread) {
    if (!spread.begun) {
        double sum = 0, n = 0;
        for (int64_t i = 0; i < kBlock; ++i)
            if (x[i] > kNone) {
                sum += x[i];
                ++n;
            }
        if (n == 0) return;
        spread.pivot = static_cast<float>(sum / n);
        spread.begun = true;
    }
    const float pivot = spread.pivot;
    F16 counts{}, firsts{}, seconds{};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
        const F16 v = load16<F16>(x + i), d = v > all(kNone) ? v - pivot : F16{};
        counts += v > all(kNone) ? all(1.0f) : F16{};
        firsts += d;
        seconds += d * d;
    }
    float count[kLanes], first[kLanes], second[kLanes];
    store16(count, counts);
    store16(first, firsts);
    store16(second, seconds);
    spread.count.add(count, 1.0);
    spread.first.add(first, 1.0);
    spread.second.add(second, 1.0);
}

// Join the sums of the blocks. Each is relative to its block's maximum.
TAILRACE_INLINE Mass join(const float *block_max, const float *sums, int64_t blocks, float max, float scale, Sums kind) {
    Wide total, first, second, squares;
    for (int64_t from = 0; from < blocks; from += kLanes) {
        const int64_t n = std::min(kLanes, blocks - from);
        float shift[kLanes] = {}, w[kLanes];
        for (int64_t i = 0; i < n; ++i) shift[i] = (block_max[from + i] - max) * scale;
        for (int l = 0; l < kLanes; ++l) w[l] = weight(shift[l]);
        for (int64_t i = 0; i < n; ++i) {
            if (!(w[i] > 0.0f)) continue;
            const float *sum = sums + kSums * (from + i);
            const double d = shift[i];
            total.add(sum, w[i]);
            if (kind == Sums::squares) squares.add(sum + kLanes, static_cast<double>(w[i]) * w[i]);
            if (kind != Sums::moments) continue;
            first.add(sum + kLanes, w[i]);
            first.add(sum, w[i] * d);
            second.add(sum + 2 * kLanes, w[i]);
            second.add(sum + kLanes, 2.0 * w[i] * d);
            second.add(sum, w[i] * d * d);
        }
    }
    return {total.total(), first.total(), second.total(), squares.total()};
}

TAILRACE_INLINE void store_mass(const float *x, float top, float scale, Sums kind, float *out) {
    if (top == kNone) return;  // joined with weight 0
    if (kind == Sums::moments) block_moments(x, top, scale, out);
    else if (kind == Sums::squares) block_squares(x, top, scale, out);
    else block_mass(x, top, scale, out);
}

}  // namespace tailrace
