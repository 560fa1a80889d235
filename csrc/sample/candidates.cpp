#include "sample/candidates.h"

#include <algorithm>
#include <bit>

#include "sample/lanes.h"

namespace tailrace {
namespace {

#if TAILRACE_X86
TAILRACE_AVX512 int64_t take_block_avx512(const float *key, const float *l, float low, float high, float max, uint32_t first, uint32_t *ids,
                                           float *out) {
    const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    constexpr int64_t kAtOnce = 4;  // a branch per sixteen would be mispredicted too often
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
            const __m512 depth = _mm512_sub_ps(_mm512_loadu_ps(l + i + j * kLanes), _mm512_set1_ps(max));
            const __m512i id = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first + i + j * kLanes)), step);
            _mm512_storeu_si512(ids + n, _mm512_maskz_compress_epi32(in[j], id));
            _mm512_storeu_ps(out + n, _mm512_maskz_compress_ps(in[j], depth));
            n += std::popcount(static_cast<unsigned>(in[j]));
        }
    }
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
        if (s.raw) compress(s.raw, n, in, _mm512_maskz_loadu_ps(valid, s.raw + i));
        compress(s.x, n, in, x);
        _mm512_storeu_si512(s.ids + n, _mm512_maskz_compress_epi32(in, id));
        n += std::popcount(static_cast<unsigned>(in));
    }
    return n;
}
#endif

TAILRACE_CLONES int64_t take_block_plain(const float *key, const float *l, float low, float high, float max, uint32_t first, uint32_t *ids,
                                         float *out) {
    alignas(64) uint8_t flag[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) flag[i] = (key[i] >= low) & (key[i] <= high);
    int64_t n = 0;
    each_flagged(flag, [&](int64_t i) {
        ids[n] = first + static_cast<uint32_t>(i);
        out[n++] = l[i] - max;
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

TAILRACE_CLONES void weigh_all(const float *x, int64_t n, float *weights) {
    for (int64_t i = 0; i < n; ++i) weights[i] = weight(x[i]);
}

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

// Insert the edited values of the entries that edits touch in one block. `l` are the raw logits of the block. The
// block's candidates start at `from`.
void amend(const Row &row, const Scan &scan, const float *l, int64_t block, float floor, int64_t from, Cursor &cursor, Candidates &out) {
    const uint32_t first = static_cast<uint32_t>(block * kBlock), end = first + kBlock;
    const auto edited = [&](const Edit &edit, uint32_t id, int64_t i) {
        const float value = l[id - first];
        if (edit.kind != EditKind::penalty) return changed(edit, i, value);
        return penalised(value, edit, *static_cast<const Counts *>(edit.ids), i);
    };
    const auto set = [&](uint32_t id, float value) {
        if (scan.lowered && !(l[id - first] >= floor)) return;  // it is below the floor before and after the edit
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
    for (int32_t e = 0; e < row.num_edits; ++e)  // the order of bans does not matter
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
    // Clamp the floor so that candidates are finite and l − max can't overflow.
    floor = std::max({floor, kLowest, scan.max + kLowest});
    const bool amended = row.num_edits > 0 && scan.bounds;
    Cursor cursor;
    for (int64_t b = 0; b < row.blocks(); ++b) {
        if (!(scan.block_max[b] >= floor)) continue;
        const float *l = amended ? read(row, b, buffer) : load(row, b, buffer);
        const int64_t from = out.n;
        take_block(l, l, floor, -kNone, scan.max, static_cast<uint32_t>(b * kBlock), out);
        if (amended) amend(row, scan, l, b, floor, from, cursor, out);
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

TAILRACE_CLONES void divide(float *x, int64_t n, double by) {
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / by);
}

}  // namespace tailrace
