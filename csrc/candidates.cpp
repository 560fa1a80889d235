#include "candidates.h"

#include <algorithm>
#include <bit>

namespace tailrace {
namespace {

constexpr int64_t kSortable = 256;  // so few are sorted at once
constexpr int kProbes = 7;          // thresholds tried in one pass

#if TAILRACE_X86
TAILRACE_AVX512 int64_t take_block_avx512(const float *key, const float *x, float low, float high, float max, uint32_t first, uint32_t *ids,
                                           float *out) {
    const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    constexpr int64_t kAtOnce = 4;  // a branch for each sixteen would be guessed wrong too often
    int64_t n = 0;
    for (int64_t i = 0; i < kBlock; i += kAtOnce * kLanes) {
        __mmask16 in[kAtOnce], any = 0;
        for (int j = 0; j < kAtOnce; ++j) {
            const __m512 k = _mm512_loadu_ps(key + i + j * kLanes);
            in[j] = _mm512_cmp_ps_mask(k, _mm512_set1_ps(low), _CMP_GE_OQ) & _mm512_cmp_ps_mask(k, _mm512_set1_ps(high), _CMP_LE_OQ);
            any |= in[j];
        }
        if (!any) continue;
        for (int j = 0; j < kAtOnce; ++j) {
            const __m512 depth = _mm512_sub_ps(_mm512_loadu_ps(x + i + j * kLanes), _mm512_set1_ps(max));
            const __m512i id = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first + i + j * kLanes)), step);
            _mm512_storeu_si512(ids + n, _mm512_maskz_compress_epi32(in[j], id));
            _mm512_storeu_ps(out + n, _mm512_maskz_compress_ps(in[j], depth));
            n += std::popcount(static_cast<unsigned>(in[j]));
        }
    }
    return n;
}

TAILRACE_AVX512 inline int64_t pack(float *to, int64_t n, __mmask16 in, __m512 values) {
    _mm512_storeu_ps(to + n, _mm512_maskz_compress_ps(in, values));
    return n;
}

TAILRACE_AVX512 int64_t keep_avx512(Candidates &s, Boundary last) {
    int64_t n = 0;
    const __m512 bound = _mm512_set1_ps(last.x);
    const __m512i id_bound = _mm512_set1_epi32(static_cast<int>(last.id));
    for (int64_t i = 0; i < s.n; i += 16) {
        const __mmask16 valid = s.n - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (s.n - i)) - 1);
        const __m512 x = _mm512_maskz_loadu_ps(valid, s.x + i);
        const __m512i id = _mm512_maskz_loadu_epi32(valid, s.ids + i);
        const __mmask16 above = _mm512_mask_cmp_ps_mask(valid, x, bound, _CMP_GT_OQ);
        const __mmask16 tied = _mm512_mask_cmp_ps_mask(valid, x, bound, _CMP_EQ_OQ) & _mm512_cmple_epu32_mask(id, id_bound);
        const __mmask16 in = above | tied;
        if (!in) continue;
        if (s.raw) pack(s.raw, n, in, _mm512_maskz_loadu_ps(valid, s.raw + i));
        pack(s.x, n, in, x);
        _mm512_storeu_si512(s.ids + n, _mm512_maskz_compress_epi32(in, id));
        n += std::popcount(static_cast<unsigned>(in));
    }
    return n;
}

// What lies between, copied out in order; n of it.
TAILRACE_AVX512 int64_t extract_avx512(const Ranked &from, float shallow, float deep, uint32_t *ids, float *x, float *weights) {
    int64_t n = 0;
    for (int64_t i = 0; i < from.n; i += 16) {
        const __mmask16 valid = from.n - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (from.n - i)) - 1);
        const __m512 v = _mm512_maskz_loadu_ps(valid, from.x + i);
        const __mmask16 in = _mm512_mask_cmp_ps_mask(valid, v, _mm512_set1_ps(shallow), _CMP_LE_OQ) &
                             _mm512_mask_cmp_ps_mask(valid, v, _mm512_set1_ps(deep), _CMP_GE_OQ);
        if (!in) continue;
        pack(x, n, in, v);
        pack(weights, n, in, _mm512_maskz_loadu_ps(valid, from.weights + i));
        _mm512_storeu_si512(ids + n, _mm512_maskz_compress_epi32(in, _mm512_maskz_loadu_epi32(valid, from.ids + i)));
        n += std::popcount(static_cast<unsigned>(in));
    }
    return n;
}
#endif

// Calls use(i) for every i whose flag byte is 1, in order; flags[kBlock], zero where nothing is.
template <typename Use> TAILRACE_INLINE void each_flagged(const uint8_t *flags, Use use) {
    static_assert(std::endian::native == std::endian::little);
    for (int64_t w = 0; w < kBlock; w += 8) {
        uint64_t word;
        std::memcpy(&word, flags + w, 8);
        for (; word; word &= word - 1) use(w + std::countr_zero(word) / 8);
    }
}

TAILRACE_CLONES int64_t take_block_plain(const float *key, const float *x, float low, float high, float max, uint32_t first, uint32_t *ids,
                                         float *out) {
    alignas(64) uint8_t flag[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) flag[i] = (key[i] >= low) & (key[i] <= high);
    int64_t n = 0;
    each_flagged(flag, [&](int64_t i) {
        ids[n] = first + static_cast<uint32_t>(i);
        out[n++] = x[i] - max;
    });
    return n;
}

int64_t keep_plain(Candidates &s, Boundary last) {
    int64_t n = 0;
    for (int64_t i = 0; i < s.n; ++i) {
        const bool in = s.x[i] > last.x || (s.x[i] == last.x && s.ids[i] <= last.id);
        s.x[n] = s.x[i];
        s.ids[n] = s.ids[i];
        if (s.raw) s.raw[n] = s.raw[i];
        n += in;
    }
    return n;
}

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

// Calls use(at, values) for sixteen values at a time; what is missing at the end is filled with `fill`.
template <typename Use> TAILRACE_INLINE void each16(const float *values, int64_t n, float fill, Use use) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) use(i, load16<F16>(values + i));
    if (i == n) return;
    float rest[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) rest[l] = i + l < n ? values[i + l] : fill;
    use(i, load16<F16>(rest));
}

TAILRACE_CLONES void weigh_all(const float *x, int64_t n, float *weights) {
    for (int64_t i = 0; i < n; ++i) weights[i] = weight(x[i]);
}

constexpr int64_t kFlush = 1024;  // so many are summed in float lanes, then joined in double

TAILRACE_CLONES double sum(const float *values, int64_t n) {
    double total = 0;
    for (int64_t from = 0; from < n; from += kFlush) {
        F16 lane{};
        each16(values + from, std::min(kFlush, n - from), 0.0f, [&](int64_t, const F16 &v) { lane += v; });
        total += fold(lane);
    }
    return total;
}

TAILRACE_CLONES double sum_squares(const float *values, int64_t n) {
    double total = 0;
    for (int64_t from = 0; from < n; from += kFlush) {
        F16 lane{};
        each16(values + from, std::min(kFlush, n - from), 0.0f, [&](int64_t, const F16 &v) { lane += v * v; });
        total += fold(lane);
    }
    return total;
}

// Mass and number of those at or above each of kProbes descending thresholds.
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

// The boundary lies in the depths (above, upto]: everything shallower is in the prefix for sure, everything deeper is
// not.
struct Interval {
    Ranked among;             // at least what lies in it; what it had besides is counted already
    uint32_t above, upto;
    bool open = true;         // nothing is known to be in the prefix yet
    double mass_before = 0;   // of what is in the prefix for sure
    int64_t count_before = 0, count_upto;
    uint32_t low() const { return open ? 0 : above + 1; }
};

// The deepest and the shallowest of the values in [deep, shallow].
TAILRACE_CLONES void bounds_within(const float *x, int64_t n, float &shallow, float &deep) {
    F16 low = all(kNone), high = all(-kNone);
    each16(x, n, kNone, [&](int64_t, const F16 &v) {
        // choices by one comparison each: what is made of two is done number by number, and takes twenty times as long
        const F16 up = v <= all(shallow) ? v : all(kNone), down = v >= all(deep) ? v : all(-kNone);
        low = up > low ? up : low;
        high = down < high ? down : high;
    });
    shallow = largest(low);
    deep = -largest(-high);
}

// To depths that values have: where many are equal, nothing else would ever part them from the next.
void snap(Interval &range) {
    float shallow = from_depth_bits(range.low()), deep = from_depth_bits(range.upto);
    bounds_within(range.among.x, range.among.n, shallow, deep);
    if (!(shallow >= deep)) return;  // nobody: only if rounding contradicts itself
    range.upto = depth_bits(deep);
    if (const uint32_t first = depth_bits(shallow); first > range.low()) {
        range.above = first - 1;
        range.open = false;
    }
}

// Narrows it until few enough values are left to be sorted, or all are one. reached(mass, count): a prefix of so much
// is enough.
template <typename Reached> Interval narrow(const Ranked &all, Workspace &space, Reached reached) {
    Interval range{all, 0, depth_bits(deepest(all.x, all.n)), true, 0.0, 0, all.n};
    double mass_outside = 0;  // of what was in the prefix for sure when `among` was copied out
    int64_t count_outside = 0;
    for (int round = 0; range.count_upto - range.count_before > kSortable && range.low() < range.upto; ++round) {
        float threshold[kProbes];
        uint32_t depth[kProbes];
        for (int p = 0; p < kProbes; ++p) {
            if (round < 3) {  // evenly in value: the common case is done in a pass or two
                const double a = -static_cast<double>(from_depth_bits(range.low()));
                const double b = -static_cast<double>(from_depth_bits(range.upto));
                depth[p] = depth_bits(-static_cast<float>(a + (b - a) * (p + 1) / (kProbes + 1)));
            } else {  // evenly in bits: never more than eleven passes
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
        if (round > 0) snap(range);  // mostly one pass is enough, and needs no second
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

// To the token at which the descending mass reaches `target`.
Interval narrow_to(const Ranked &among, double target, Workspace &space) {
    return narrow(among, space, [target](double mass, int64_t count) { return count > 0 && mass >= target; });
}

// The rank keys of those in question; of one value alone they ascend, as ids do.
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

TAILRACE_CLONES void divide(float *x, int64_t n, double by) {
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / by);
}

void Workspace::fit(int64_t vocab) {
    const size_t blocks = static_cast<size_t>((vocab + kBlock - 1) / kBlock), all = blocks * kBlock + kLanes;
    if (ids.size() >= all) return;
    for (auto *floats : {&raw, &x, &weights, &noise, &other_x, &other_weights}) floats->resize(all);
    for (auto *floats : {&block_max, &raw_block_max, &ranked}) floats->resize(blocks);
    sums.resize(6 * kLanes * blocks);
    hot_group.resize(blocks * kBlockGroups + kLanes);
    hot_bits.resize(blocks * kBlockGroups + kLanes);
    flags.resize(all);
    ids.resize(all);
    other_ids.resize(all);
    order.resize(all);
}

Workspace &Workspace::mine() {
    thread_local Workspace space;
    return space;
}

namespace {

// Puts the edited values of one block's touched entries among those taken from the raw block `x`, which start at
// `from`.
void amend(const Row &row, const Scan &scan, const float *x, int64_t block, float floor, int64_t from, Cursor &cursor, Candidates &out) {
    const uint32_t first = static_cast<uint32_t>(block * kBlock), end = first + kBlock;
    const auto edited = [&](const Edit &edit, uint32_t id, int64_t i) {
        const float value = x[id - first];
        if (edit.kind != EditKind::penalty) return changed(edit, i, value);
        return penalised(value, edit, *static_cast<const Counts *>(edit.ids), i);
    };
    const auto set = [&](uint32_t id, float value) {
        if (scan.lowered && !(x[id - first] >= floor)) return;  // it was not taken, and is not now
        int64_t at = from;
        while (at < out.n && out.ids[at] < id) ++at;
        const bool there = at < out.n && out.ids[at] == id;
        if (!(value >= floor)) {
            if (!there) return;
            std::copy(out.ids + at + 1, out.ids + out.n, out.ids + at);
            std::copy(out.x + at + 1, out.x + out.n, out.x + at);
            --out.n;
            return;
        }
        if (!there) {
            std::copy_backward(out.ids + at, out.ids + out.n, out.ids + out.n + 1);
            std::copy_backward(out.x + at, out.x + out.n, out.x + out.n + 1);
            ++out.n;
        }
        out.ids[at] = id;
        out.x[at] = value - scan.max;
    };
    const auto walk = [&](int32_t e) {
        const auto [ids, n] = touched_by(row.edits[e]);
        int64_t &i = cursor.at[e];
        while (i < n && ids[i] < first) ++i;
        for (; i < n && ids[i] < end; ++i) set(ids[i], edited(row.edits[e], ids[i], i));
    };
    if (scan.change >= 0) walk(scan.change);
    for (int32_t e = 0; e < row.num_edits; ++e)  // a ban is one wherever it stands in the order
        if (e != scan.change) walk(e);
}

}  // namespace

void take_block(const float *key, const float *l, float low, float high, float max, uint32_t first, Candidates &out) {
    out.n += TAILRACE_BEST(take_block)(key, l, low, high, max, first, out.ids + out.n, out.x + out.n);
}

void collect(const Row &row, const Scan &scan, float floor, Candidates &out) {
    alignas(64) float buffer[kBlock];
    out.n = 0;
    out.weighted = false;
    out.complete = floor <= kLowest;
    // no logit is −inf, and none lies so far below the largest
    floor = std::max({floor, kLowest, scan.max + kLowest});
    const bool amended = row.num_edits > 0 && scan.bounds;
    Cursor cursor;
    for (int64_t b = 0; b < row.blocks(); ++b) {
        if (!(scan.block_max[b] >= floor)) continue;
        const float *x = amended ? read(row, b, buffer) : load(row, b, buffer);
        const int64_t from = out.n;
        take_block(x, x, floor, -kNone, scan.max, static_cast<uint32_t>(b * kBlock), out);
        if (amended) amend(row, scan, x, b, floor, from, cursor, out);
    }
    if (out.raw) std::memcpy(out.raw, out.x, static_cast<size_t>(out.n) * sizeof(float));
}

void keep(Candidates &s, Boundary last) {
    s.weighted = false;
    s.n = TAILRACE_BEST(keep)(s, last);
}

void keep_above(Candidates &s, double x) {
    float bound = static_cast<float>(x);
    if (bound < x) bound = std::nextafterf(bound, std::numeric_limits<float>::infinity());
    keep(s, {std::max(bound, kLowest), ~uint32_t{0}});
}

void keep_flagged(Candidates &s, const uint8_t *flags) {
    s.weighted = false;
    int64_t n = 0;
    for (int64_t i = 0; i < s.n; ++i) {
        s.x[n] = s.x[i];
        s.ids[n] = s.ids[i];
        if (s.raw) s.raw[n] = s.raw[i];
        n += flags[i] != 0;
    }
    s.n = n;
}

void weigh(Candidates &s) {
    if (!s.weighted) weigh_all(s.x, s.n, s.weights);
    s.weighted = true;
}

double collected_mass(Candidates &s) {
    weigh(s);
    return sum(s.weights, s.n);
}

double collected_squares(Candidates &s) {
    weigh(s);
    return sum_squares(s.weights, s.n);
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
    // each one's own weight: ids ascend in `among`, so it is found by its id
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
    // maxima of about 2 k groups of blocks: the k-th largest of those has k tokens at or above it just as well
    const int64_t groups = std::min(blocks, (2 * k + kLanes - 1) / kLanes * kLanes);
    float *top = space.ranked.data();
    std::copy(block_max, block_max + groups, top);
    for (int64_t from = groups; from < blocks; from += groups)
        for (int64_t g = 0, n = std::min(groups, blocks - from); g < n; ++g) top[g] = std::max(top[g], block_max[from + g]);
    std::nth_element(top, top + k - 1, top + groups, std::greater<float>());
    return top[k - 1];
}

}  // namespace tailrace
