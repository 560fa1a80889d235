#include "sample/boundary.h"

#include <algorithm>
#include <bit>

#include "sample/lanes.h"

namespace tailrace {
namespace {

constexpr int64_t kSortable = 256;  // so few values are sorted at once
constexpr int kProbes = 7;          // number of thresholds that one pass tries

#if TAILRACE_X86
// Copy out the values between, in order. Return their number.
TAILRACE_AVX512 int64_t extract_avx512(const Ranked &from, float shallow, float deep, uint32_t *ids, float *x, float *weights) {
    int64_t n = 0;
    for (int64_t i = 0; i < from.n; i += 16) {
        const __mmask16 valid = from.n - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (from.n - i)) - 1);
        const __m512 v = _mm512_maskz_loadu_ps(valid, from.x + i);
        const __mmask16 in = _mm512_mask_cmp_ps_mask(valid, v, _mm512_set1_ps(shallow), _CMP_LE_OQ) &
                             _mm512_mask_cmp_ps_mask(valid, v, _mm512_set1_ps(deep), _CMP_GE_OQ);
        if (!in) continue;
        compress(x, n, in, v);
        compress(weights, n, in, _mm512_maskz_loadu_ps(valid, from.weights + i));
        _mm512_storeu_si512(ids + n, _mm512_maskz_compress_epi32(in, _mm512_maskz_loadu_epi32(valid, from.ids + i)));
        n += std::popcount(static_cast<unsigned>(in));
    }
    return n;
}
#endif

TAILRACE_CLONES int64_t extract_plain(const Ranked &from, float shallow, float deep, uint32_t *ids, float *x, float *weights) {
    int64_t n = 0;
    for (int64_t at = 0; at < from.n; at += kBlock) {
        alignas(64) uint8_t flag[kBlock] = {};
        const int64_t count = std::min(kBlock, from.n - at);
        for (int64_t i = 0; i < count; ++i) flag[i] = (from.x[at + i] <= shallow) & (from.x[at + i] >= deep);
        each_flagged(flag, [&](int64_t i) {
            ids[n] = from.ids[at + i];
            x[n] = from.x[at + i];
            weights[n++] = from.weights[at + i];
        });
    }
    return n;
}

// The mass and number of the values at or above each of kProbes descending thresholds.
struct Tally {
    double mass[kProbes];
    int64_t count[kProbes];
};

TAILRACE_CLONES void tally(const float *x, const float *weights, int64_t n, const float *threshold, Tally *out) {
    *out = {};
    for (int64_t from = 0; from < n; from += kFlush) {
        F16 mass[kProbes] = {}, count[kProbes] = {};
        each16(x + from, std::min(kFlush, n - from), kNone, [&](int64_t i, const F16 &v) {
            const F16 w = load16<F16>(weights + from + i);
            for (int p = 0; p < kProbes; ++p) {
                mass[p] += v >= all(threshold[p]) ? w : F16{};
                count[p] += v >= all(threshold[p]) ? all(1.0f) : F16{};
            }
        });
        for (int p = 0; p < kProbes; ++p) {
            out->mass[p] += fold(mass[p]);
            out->count[p] += static_cast<int64_t>(fold(count[p]));
        }
    }
}

uint32_t depth_bits(float x) {
    const float depth = x < 0.0f ? -x : 0.0f;
    uint32_t bits;
    std::memcpy(&bits, &depth, 4);
    return bits;
}

float from_depth_bits(uint32_t bits) {
    float depth;
    std::memcpy(&depth, &bits, 4);
    return -depth;
}

// The depths (above, upto] in which the boundary lies. All shallower values are in the prefix, no deeper value is.
struct Interval {
    Ranked among;             // the values of the interval; other values among them are counted already
    uint32_t above, upto;
    bool open = true;         // no value is known to be in the prefix yet
    double mass_before = 0;   // of the values that are in the prefix
    int64_t count_before = 0, count_upto;
    uint32_t low() const { return open ? 0 : above + 1; }
};

// Narrow shallow and deep to the shallowest and the deepest value in [deep, shallow].
TAILRACE_CLONES void bounds_within(const float *x, int64_t n, float &shallow, float &deep) {
    F16 low = all(kNone), high = all(-kNone);
    each16(x, n, kNone, [&](int64_t, const F16 &v) {
        // one comparison per choice: by two comparisons GCC chooses lane by lane, which takes twenty times as long
        const F16 up = v <= all(shallow) ? v : all(kNone), down = v >= all(deep) ? v : all(-kNone);
        low = up > low ? up : low;
        high = down < high ? down : high;
    });
    shallow = largest(low);
    deep = -largest(-high);
}

// Narrow the interval to depths of values. Many equal values would never be separated from the next value otherwise.
void snap(Interval &range) {
    float shallow = from_depth_bits(range.low()), deep = from_depth_bits(range.upto);
    bounds_within(range.among.x, range.among.n, shallow, deep);
    if (!(shallow >= deep)) return;  // no value: only if rounding contradicts itself
    range.upto = depth_bits(deep);
    if (const uint32_t first = depth_bits(shallow); first > range.low()) {
        range.above = first - 1;
        range.open = false;
    }
}

// Narrow the interval until its values are few enough to be sorted, or all equal. reached(mass, count) returns whether
// a prefix of this mass and number is long enough.
template <typename Reached> Interval narrow(const Ranked &all, Workspace &space, Reached reached) {
    Interval range{all, 0, depth_bits(deepest(all.x, all.n)), true, 0.0, 0, all.n};
    double mass_outside = 0;  // of the values that were in the prefix when `among` was copied out
    int64_t count_outside = 0;
    for (int round = 0; range.count_upto - range.count_before > kSortable && range.low() < range.upto; ++round) {
        float threshold[kProbes];
        uint32_t depth[kProbes];
        for (int p = 0; p < kProbes; ++p) {
            if (round < 3) {  // evenly by value: a pass or two are enough in the common case
                const double a = -static_cast<double>(from_depth_bits(range.low()));
                const double b = -static_cast<double>(from_depth_bits(range.upto));
                depth[p] = depth_bits(-static_cast<float>(a + (b - a) * (p + 1) / (kProbes + 1)));
            } else {  // evenly by bits: at most eleven passes
                depth[p] = range.low() + static_cast<uint32_t>(static_cast<uint64_t>(range.upto - range.low()) * (p + 1) / (kProbes + 1));
            }
            depth[p] = std::clamp(depth[p], range.low(), range.upto);
            threshold[p] = from_depth_bits(depth[p]);
        }
        Tally found;
        tally(range.among.x, range.among.weights, range.among.n, threshold, &found);
        for (int p = 0; p < kProbes; ++p) {
            const double mass = mass_outside + found.mass[p];
            const int64_t count = count_outside + found.count[p];
            if (reached(mass, count)) {
                range.upto = depth[p];
                range.count_upto = count;
                break;
            }
            range.above = depth[p];
            range.open = false;
            range.mass_before = mass;
            range.count_before = count;
        }
        if (round > 0) snap(range);  // one pass is usually enough, and snap would be another
        if (range.count_upto - range.count_before > range.among.n / 2) continue;
        uint32_t *ids = space.other_ids.data();
        float *x = space.other_x.data(), *weights = space.other_weights.data();
        const int64_t n = TAILRACE_BEST(extract)(range.among, from_depth_bits(range.low()), from_depth_bits(range.upto), ids, x, weights);
        range.among = {ids, x, weights, n};
        mass_outside = range.mass_before;
        count_outside = range.count_before;
    }
    return range;
}

// Narrow the interval to the token at which the descending mass reaches `target`.
Interval narrow_to(const Ranked &among, double target, Workspace &space) {
    return narrow(among, space, [target](double mass, int64_t count) { return count > 0 && mass >= target; });
}

// Put the rank keys of the interval's values into space.order and return their number. Keys of equal values ascend.
int64_t in_question(const Interval &range, Workspace &space) {
    const float shallow = from_depth_bits(range.low()), deep = from_depth_bits(range.upto);
    int64_t n = 0;
    for (int64_t i = 0; i < range.among.n; ++i)
        if (range.among.x[i] <= shallow && range.among.x[i] >= deep) space.order[n++] = rank_key(range.among.x[i], range.among.ids[i]);
    return n;
}

}  // namespace

TAILRACE_CLONES float deepest(const float *x, int64_t n) {
    F16 low{};
    each16(x, n, 0.0f, [&](int64_t, const F16 &v) { low = v < low ? v : low; });
    return -largest(-low);
}

Boundary nth(const Ranked &among, int64_t k, Workspace &space) {
    const Interval range = narrow(among, space, [k](double, int64_t count) { return count >= k; });
    const int64_t n = in_question(range, space);
    if (n == 0) return {from_depth_bits(range.upto), ~uint32_t{0}};  // only if rounding contradicts itself
    const auto at = space.order.begin() + std::clamp<int64_t>(k - range.count_before, 1, n) - 1;
    std::nth_element(space.order.begin(), at, space.order.begin() + n);
    return boundary(*at);
}

Between around(const Ranked &among, double target, Workspace &space) {
    const Interval range = narrow_to(among, target, space);
    return {from_depth_bits(range.low()), from_depth_bits(range.upto)};
}

Boundary reaching(const Ranked &among, double target, Workspace &space) {
    const Interval range = narrow_to(among, target, space);
    const int64_t n = in_question(range, space);
    if (n == 0) return {from_depth_bits(range.upto), ~uint32_t{0}};
    if (range.low() != range.upto) std::sort(space.order.begin(), space.order.begin() + n);
    // ids ascend in `among`, so a binary search finds a token's weight
    const auto weight_of = [&](uint32_t id) {
        return range.among.weights[std::lower_bound(range.among.ids, range.among.ids + range.among.n, id) - range.among.ids];
    };
    const bool alike = range.low() == range.upto;
    const double shared = alike ? weight_of(boundary(space.order[0]).id) : 0.0;
    double mass = range.mass_before;
    for (int64_t i = 0; i < n; ++i) {
        const Boundary at = boundary(space.order[i]);
        mass += alike ? shared : static_cast<double>(weight_of(at.id));
        if (mass >= target) return at;
    }
    return boundary(space.order[n - 1]);
}

float reached_by(const float *block_max, int64_t blocks, int64_t k, Workspace &space) {
    if (k < 1 || k > blocks) return kNone;
    // maxima of about 2 k groups of blocks: k tokens are at or above the k-th largest of these, too
    const int64_t groups = std::min(blocks, (2 * k + kLanes - 1) / kLanes * kLanes);
    float *top = space.ranked.data();
    std::copy(block_max, block_max + groups, top);
    for (int64_t from = groups; from < blocks; from += groups)
        for (int64_t g = 0, n = std::min(groups, blocks - from); g < n; ++g) top[g] = std::max(top[g], block_max[from + g]);
    std::nth_element(top, top + k - 1, top + groups, std::greater<float>());
    return top[k - 1];
}

}  // namespace tailrace
