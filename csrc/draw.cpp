#include "draw.h"

#include <algorithm>
#include <bit>

namespace tailrace {

void Best::offer(const uint32_t *ids, const float *x, int64_t n, bool known_hot) {
    (known_hot ? gumbel_hot : gumbel)(noise, ids, n, room);
    for (int64_t i = 0; i < n; ++i) {
        const float candidate = x[i] + room[i];
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

int64_t hot_among(const Survivors &s, const Noise &noise, Workspace &space) {
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

int64_t draw(const Survivors &s, const Noise &noise, int64_t excluded, Workspace &space) {
    Best best{noise, excluded, space.noise.data()};
    if (s.n <= kFew) {
        best.offer(s.ids, s.x, s.n);
        return best.id;
    }
    // The hot ones first: in a flat crowd the winner is nearly always among them, and then no other can beat it.
    best.offer(space.other_ids.data(), space.other_x.data(), hot_among(s, noise, space), true);
    const float bound = best.id == kNobody ? kLowest : best.score - kCold;
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

int64_t draw_all(const Row &row, const Scan &scan, double temperature, float floor, Survivors &s, const Noise &noise,
                 int64_t excluded, Workspace &space) {
    Best best{noise, excluded, space.noise.data()};
    best.offer(s.ids, s.x, s.n);
    const int64_t hot = ids_of(scan.hot, space.other_ids.data());
    logits_of(row, space.other_ids.data(), hot, space.other_x.data());
    // where even the hottest noise would not do, or what is offered already, is left out
    const double least = best.id == kNobody ? kNone : (best.score - kHottest) * temperature + scan.max - 1e-5 * std::fabs(scan.max);
    int64_t n = 0;
    for (int64_t i = 0; i < hot; ++i) {
        const float l = space.other_x[i];
        space.other_ids[n] = space.other_ids[i];
        space.other_x[n] = l - scan.max;
        n += (l < floor) & (l > kNone) & (l >= least);
    }
    divide(space.other_x.data(), n, temperature);
    best.offer(space.other_ids.data(), space.other_x.data(), n, true);
    // No token that is neither hot nor collected has noise above kCold.
    const double depth = best.id == kNobody ? -std::numeric_limits<double>::infinity() : (best.score - kCold) * temperature;
    const double bound = scan.max + depth - 1e-5 * std::fabs(depth) - 1e-6 * std::fabs(static_cast<double>(scan.max));
    if (!s.complete && bound < floor) {
        collect(row, scan, static_cast<float>(std::max(bound, static_cast<double>(kLowest))), s);
        divide(s.x, s.n, temperature);
        best.offer(s.ids, s.x, s.n);
    }
    return best.id;
}

}  // namespace tailrace
