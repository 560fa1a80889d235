#include "sample/draw.h"

#include <algorithm>
#include <bit>

namespace tailrace {
namespace {

// Write the p of 256 logits. Return the sum of p. The product is rounded twice. That is allowed: q is by
// definition what is written here.
TAILRACE_CLONES float write_block(const float *l, float max, float scale, float share, float *__restrict__ p) {
    F16 lane{};
    for (int64_t i = 0; i < kBlock; ++i) p[i] = share * weight((l[i] - max) * scale);
    for (int64_t i = 0; i < kBlock; i += kLanes) lane += load16<F16>(p + i);
    return static_cast<float>(fold(lane));
}

// Turn weights w into p = share · w. Return the sum of p.
TAILRACE_CLONES float scale_weights(float *w, int64_t n, float share) {
    for (int64_t i = 0; i < n; ++i) w[i] *= share;
    F16 lane{};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) lane += load16<F16>(w + i);
    double sum = fold(lane);
    for (; i < n; ++i) sum += w[i];
    return static_cast<float>(sum);
}

}  // namespace

void Best::offer(const uint32_t *ids, const float *x, int64_t n, bool known_hot) {
    (known_hot ? gumbel_hot : gumbel)(noise, ids, n, scratch);
    for (int64_t i = 0; i < n; ++i) {
        const float candidate = x[i] + scratch[i];
        if (ids[i] == excluded || candidate < score || (candidate == score && ids[i] >= id)) continue;
        score = candidate;
        id = ids[i];
    }
}

int64_t ids_of(const Hot &hot, uint32_t *ids) {
    int64_t n = 0;
    for (int64_t i = 0; i < hot.n; ++i)
        for (uint32_t word = hot.bits[i]; word; word &= word - 1)
            ids[n++] = static_cast<uint32_t>(hot.group[i] * kGroup + std::countr_zero(word));
    return n;
}

int64_t hot_among(const Candidates &s, const Noise &noise, Workspace &space) {
    const int64_t first = s.ids[0] / kGroup, groups = s.ids[s.n - 1] / kGroup + 1 - first;
    Hot hot = space.hot();
    hot_groups(noise, first, groups, hot);
    const int64_t n = ids_of(hot, space.other_ids.data());
    int64_t found = 0;
    for (int64_t i = 0, at = 0; i < n; ++i) {  // both ascend: gallop from one to the next
        const uint32_t id = space.other_ids[i];
        int64_t stride = 16;
        while (at + stride < s.n && s.ids[at + stride] < id) {
            at += stride;
            stride *= 2;
        }
        at = std::lower_bound(s.ids + at, s.ids + std::min(at + stride + 1, s.n), id) - s.ids;
        if (at == s.n) break;
        if (s.ids[at] != id) continue;
        space.other_ids[found] = id;
        space.other_x[found++] = s.x[at];
    }
    return found;
}

int64_t draw(const Candidates &s, const Noise &noise, int64_t excluded, Workspace &space) {
    Best best{noise, excluded, space.noise.data()};
    if (s.n <= kFew) {
        best.offer(s.ids, s.x, s.n);
        return best.id;
    }
    // Offer the hot tokens first. If many tokens have similar logits, the winner is nearly always hot, and then no
    // other token can beat it.
    best.offer(space.other_ids.data(), space.other_x.data(), hot_among(s, noise, space), true);
    const float bound = best.id == kNobody ? kLowest : best.score - kMaxColdNoise;
    if (bound > 0.0f) return best.id;
    int64_t n = 0;
    for (int64_t i = 0; i < s.n; ++i) {
        space.other_ids[n] = s.ids[i];
        space.other_x[n] = s.x[i];
        n += s.x[i] >= bound;
    }
    best.offer(space.other_ids.data(), space.other_x.data(), n);
    return best.id;
}

int64_t draw_all(const Row &row, const Scan &scan, double temperature, float floor, Candidates &s, const Noise &noise,
                 int64_t excluded, Workspace &space) {
    Best best{noise, excluded, space.noise.data()};
    best.offer(s.ids, s.x, s.n);
    const int64_t hot = ids_of(scan.hot, space.other_ids.data());
    logits_of(row, space.other_ids.data(), hot, space.other_x.data());
    // Leave out a hot token that even the largest noise could not make win, or that was already offered.
    const double least = best.id == kNobody ? kNone : (best.score - kMaxNoise) * temperature + scan.max - 1e-5 * std::fabs(scan.max);
    int64_t n = 0;
    for (int64_t i = 0; i < hot; ++i) {
        const float l = space.other_x[i];
        space.other_ids[n] = space.other_ids[i];
        space.other_x[n] = l - scan.max;
        n += (l < floor) & (l > kNone) & (l >= least);
    }
    divide(space.other_x.data(), n, temperature);
    best.offer(space.other_ids.data(), space.other_x.data(), n, true);
    // No token that is neither hot nor collected has noise above kMaxColdNoise.
    const double depth = best.id == kNobody ? -std::numeric_limits<double>::infinity() : (best.score - kMaxColdNoise) * temperature;
    const double bound = scan.max + depth - 1e-5 * std::fabs(depth) - 1e-6 * std::fabs(static_cast<double>(scan.max));
    if (!s.complete && bound < floor) {
        collect(row, scan, static_cast<float>(std::max(bound, static_cast<double>(kLowest))), s);
        divide(s.x, s.n, temperature);
        best.offer(s.ids, s.x, s.n);
    }
    return best.id;
}

void Written::clear() {
    if (note[0] < 0) std::fill(q, q + vocab, 0.0f);
    for (int32_t i = 0; i < note[0]; ++i) q[note[1 + i]] = 0.0f;
    note[0] = 0;
}

void write_token(int64_t token, Written &to) {
    to.clear();
    to.q[token] = 1.0f;
    to.note[to.note[0] = 1] = static_cast<int32_t>(token);
}

void write_row(const Row &row, const Scan &scan, double temperature, Written &to, float *sums) {
    alignas(64) float buffer[kBlock], x[kBlock], last[kBlock];
    // the same scale as in the pass over the row (scan.cpp)
    const float scale = static_cast<float>(std::min(1.0 / temperature, 1e30)), share = static_cast<float>(1.0 / scan.mass.total);
    float *q = to.q;
    to.note[0] = -1;
    Cursor cursor;
    for (int64_t b = 0; b < row.blocks(); ++b) {
        const int64_t first = b * kBlock, n = std::min(kBlock, row.vocab - first);
        ahead(row, b + kAhead);
        for (int64_t at = first + kAhead * kBlock; at < std::min(row.vocab, first + (kAhead + 1) * kBlock); at += kLanes)
            __builtin_prefetch(q + at, 1);
        const float *l = read(row, b, buffer);
        if (row.num_edits) {
            std::copy(l, l + kBlock, x);
            edit(row, first, x, cursor);
            l = x;
        }
        sums[b] = write_block(l, scan.max, scale, share, n < kBlock ? last : q + first);
        if (n < kBlock) std::copy(last, last + n, q + first);
    }
}

void write_candidates(Candidates &s, double mass, Written &to, float *sums) {
    to.clear();
    to.note[0] = s.n <= kNoted ? static_cast<int32_t>(s.n) : -1;
    std::copy(s.ids, s.ids + std::max(to.note[0], 0), to.note + 1);
    for (int64_t from = 0; from < s.n; from += kBlock) {
        const int64_t n = std::min(kBlock, s.n - from);
        sums[from / kBlock] = scale_weights(s.weights + from, n, static_cast<float>(1.0 / mass));
        for (int64_t i = from; i < from + n; ++i) to.q[s.ids[i]] = s.weights[i];
    }
}

int64_t place_of(double u, const float *p, int64_t n, const float *sums) {
    const int64_t blocks = (n + kBlock - 1) / kBlock;
    double whole = 0;
    for (int64_t b = 0; b < blocks; ++b) whole += sums[b];
    double rest = u * whole;
    int64_t block = 0, place = 0;
    for (int64_t b = 0; b < blocks; ++b) {
        if (!(sums[b] > 0.0f)) continue;
        block = b;  // rounding may lead beyond the end: then the last block with mass counts
        if (rest < sums[b]) break;
        rest -= sums[b];
    }
    double mass = 0;
    for (int64_t i = block * kBlock; i < std::min(n, (block + 1) * kBlock); ++i) {
        if (!(p[i] > 0.0f)) continue;
        place = i;
        if ((mass += p[i]) > rest) break;
    }
    return place;
}

}  // namespace tailrace
