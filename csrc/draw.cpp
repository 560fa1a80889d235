#include "draw.h"

#include <algorithm>
#include <bit>


namespace tailrace {
namespace {

struct Best {
    float score = kNone;
    int64_t id = kNobody;
    void offer(float candidate, int64_t of) {
        if (candidate > score || (candidate == score && of < id)) {
            score = candidate;
            id = of;
        }
    }
};

void offer_all(const uint32_t *ids, const float *x, const float *noise, int64_t n, int64_t excluded, Best &best) {
    for (int64_t i = 0; i < n; ++i)
        if (ids[i] != excluded) best.offer(x[i] + noise[i], ids[i]);
}

// The hot ids, ascending.
int64_t ids_of(const Hot &hot, uint32_t *ids) {
    int64_t n = 0;
    for (int64_t i = 0; i < hot.n; ++i)
        for (uint32_t word = hot.bits[i]; word; word &= word - 1)
            ids[n++] = static_cast<uint32_t>(hot.group[i] * kGroup + std::countr_zero(word));
    return n;
}

constexpr int64_t kFew = 256;  // of so few, the noise is simply computed

}  // namespace

int64_t draw(const Survivors &s, const Noise &noise, int64_t excluded, Workspace &space) {
    Best best;
    if (s.n <= kFew) {
        gumbel(noise, s.ids, s.n, space.noise.data());
        offer_all(s.ids, s.x, space.noise.data(), s.n, excluded, best);
        return best.id;
    }
    // The hot ones first: in a flat crowd the winner is nearly always among them, and then no other can beat it.
    const int64_t first = s.ids[0] / kGroup, groups = s.ids[s.n - 1] / kGroup + 1 - first;
    Hot hot = space.hot();
    hot_groups(noise, first, groups, hot);
    int64_t n = ids_of(hot, space.other_ids.data());
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
    gumbel_hot(noise, space.other_ids.data(), found, space.noise.data());
    offer_all(space.other_ids.data(), space.other_x.data(), space.noise.data(), found, excluded, best);
    const float bound = best.id == kNobody ? -std::numeric_limits<float>::max() : best.score - kCold;
    if (bound > 0.0f) return best.id;
    n = 0;
    for (int64_t i = 0; i < s.n; ++i) {
        space.other_ids[n] = s.ids[i];
        space.other_x[n] = s.x[i];
        n += s.x[i] >= bound;
    }
    gumbel(noise, space.other_ids.data(), n, space.noise.data());
    offer_all(space.other_ids.data(), space.other_x.data(), space.noise.data(), n, excluded, best);
    return best.id;
}

int64_t draw_all(const Row &row, const Scan &scan, double temperature, float floor, Survivors &s, const Noise &noise,
                 int64_t excluded, Workspace &space) {
    Best best;
    gumbel(noise, s.ids, s.n, space.noise.data());
    offer_all(s.ids, s.x, space.noise.data(), s.n, excluded, best);
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
    for (int64_t i = 0; i < n; ++i) space.other_x[i] = static_cast<float>(space.other_x[i] / temperature);
    gumbel_hot(noise, space.other_ids.data(), n, space.noise.data());
    offer_all(space.other_ids.data(), space.other_x.data(), space.noise.data(), n, excluded, best);
    // No token that is neither hot nor collected has noise above kCold.
    const double depth = best.id == kNobody ? -std::numeric_limits<double>::infinity() : (best.score - kCold) * temperature;
    const double bound = scan.max + depth - 1e-5 * std::fabs(depth) - 1e-6 * std::fabs(static_cast<double>(scan.max));
    if (!s.complete && bound < floor) {
        const double lowest = -std::numeric_limits<float>::max();
        collect(row, scan, static_cast<float>(std::max(bound, lowest)), s);
        for (int64_t i = 0; i < s.n; ++i) s.x[i] = static_cast<float>(s.x[i] / temperature);
        gumbel(noise, s.ids, s.n, space.noise.data());
        offer_all(s.ids, s.x, space.noise.data(), s.n, excluded, best);
    }
    return best.id;
}

}  // namespace tailrace
