// Stages that look at the candidates in order: tail-free, top-H, min-k.
#include <cstdlib>

#include "base/simd.h"
#include "sample/walk.h"

namespace tailrace {
namespace {

constexpr int64_t kShort = 2048;  // up to this number, tokens are sorted by comparing
constexpr int kDigit = 11;        // bits

// Sort the bits of depths, ascending: the likeliest first. `room` is scratch of the same size.
void sort_depths(uint32_t *bits, int64_t n, uint32_t *room) {
    if (n <= kShort) {
        std::sort(bits, bits + n);
        return;
    }
    constexpr uint32_t kMask = (1u << kDigit) - 1;
    for (int shift = 0; shift < 32; shift += kDigit) {
        int64_t place[kMask + 2] = {};
        for (int64_t i = 0; i < n; ++i) ++place[(bits[i] >> shift & kMask) + 1];
        for (uint32_t d = 0; d < kMask; ++d) place[d + 1] += place[d];
        for (int64_t i = 0; i < n; ++i) room[place[bits[i] >> shift & kMask]++] = bits[i];
        std::swap(bits, room);
    }
    std::copy(bits, bits + n, room);  // after three passes the caller's array is `room`
}

TAILRACE_CLONES void exponentials(const uint32_t *depth, int64_t n, double *out) {
    for (int64_t i = 0; i < n; ++i) {
        float x;
        std::memcpy(&x, depth + i, 4);
        out[i] = exponential(-static_cast<double>(x));
    }
}

// Write e^x of the candidates to space.exact, the largest first.
const double *descending(const Candidates &s, Workspace &space) {
    uint32_t *bits = reinterpret_cast<uint32_t *>(space.order.data()), *room = bits + space.order.size();
    for (int64_t i = 0; i < s.n; ++i) bits[i] = static_cast<uint32_t>(rank_key(s.x[i], 0) >> 32);
    sort_depths(bits, s.n, room);
    space.exact.resize(std::max(space.exact.size(), static_cast<size_t>(s.n)));
    exponentials(bits, s.n, space.exact.data());
    return space.exact.data();
}

double bend(const double *p, int64_t i) { return std::fabs((p[i + 2] - p[i + 1]) - (p[i + 1] - p[i])); }

// Return the sum of the n − 2 bends, in a fixed order.
TAILRACE_CLONES double all_bends(const double *p, int64_t n) {
    constexpr int64_t kWide = 8;
    double lane[kWide] = {};
    int64_t i = 0;
    for (; i + kWide <= n - 2; i += kWide)
        for (int64_t l = 0; l < kWide; ++l) lane[l] += std::fabs((p[i + l + 2] - p[i + l + 1]) - (p[i + l + 1] - p[i + l]));
    double total = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    for (; i < n - 2; ++i) total += bend(p, i);
    return total;
}

// Return the first place at which the running sum of bends exceeds this share of `total`, or n − 2 if there is none.
int64_t beyond(const double *p, int64_t n, double total, double share) {
    double sum = 0;
    for (int64_t i = 0; i < n - 2; ++i)
        if ((sum += total > 0 ? bend(p, i) / total : 1.0 / static_cast<double>(n - 2)) > share) return i;
    return n - 2;
}

// Return the smallest finite logit of the edited row.
float least_finite(const Row &row, const Scan &scan) {
    alignas(64) float buffer[kBlock];
    F16 low = all(scan.max);
    for (int64_t b = 0; b < row.blocks(); ++b) {
        ahead(row, b + kAhead);
        const float *x = load(row, b, buffer);
        for (int64_t i = 0; i < kBlock; i += kLanes) {
            const F16 l = load16<F16>(x + i), there = l > all(kNone) ? l : all(scan.max);
            low = there < low ? there : low;
        }
    }
    return -largest(-low);
}

}  // namespace

int64_t likeliest(const Ranked &among, int64_t count, Workspace &space) {
    const Boundary last = count < among.n ? nth(among, count, space) : Boundary{kNone, ~uint32_t{0}};
    int64_t n = 0;
    for (int64_t i = 0; i < among.n; ++i)
        if (among.x[i] > last.x || (among.x[i] == last.x && among.ids[i] <= last.id)) space.order[n++] = rank_key(among.x[i], among.ids[i]);
    std::sort(space.order.begin(), space.order.begin() + n);
    return n;
}

// Take the absolute second differences of the descending probabilities, relative to their sum. Keep the tokens before
// the place at which the running sum first exceeds a. The differences of uncollected tokens add up to at most the last
// two probabilities. If that makes no difference, enough tokens are collected.
bool tail_free(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    Workspace &space = walk.context.space;
    if (s.n <= 2) return s.complete || walk.deeper();
    const double *p = descending(s, space);
    const double seen = all_bends(p, s.n);
    const int64_t found = beyond(p, s.n, seen, stage.a);
    if (!s.complete) {
        constexpr double kRounding = 1e-12;
        const double unseen = p[s.n - 2] + p[s.n - 1];
        const int64_t earliest = seen > 0 ? beyond(p, s.n, seen, stage.a * (1.0 - kRounding)) : s.n - 2;
        const int64_t latest = seen > 0 ? beyond(p, s.n, seen + unseen, stage.a * (1.0 + kRounding)) : s.n - 2;
        if (earliest != latest || latest == s.n - 2) {
            double until = 0;  // the running sum at that place
            for (int64_t i = 0; i <= found && i < s.n - 2; ++i) until += bend(p, i);
            const double spare = until - stage.a * seen, twice = 2.0 * walk.floor - 1.0;
            // half of the sufficient depth, because the sum changes with more tokens
            const double enough = spare > 0 && stage.a > 0 ? std::log(0.25 * spare / stage.a) : twice;
            return walk.undecided(walk.much() ? kEverything : std::min(enough, walk.floor - 2.0));
        }
    }
    if (found == s.n - 2) return true;
    keep(s, nth(ranked(s), std::max<int64_t>(found, 1), space));
    walk.narrowed();
    return true;
}

// Keep the longest prefix of the hundred likeliest tokens whose share of their entropy is at most a.
bool top_h(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    Workspace &space = walk.context.space;
    if (!s.complete && s.n < kCandidates) return walk.deeper();
    const int64_t n = likeliest(ranked(s), kCandidates, space);
    double p[kCandidates], mass = 0, entropy = 0, sum = 0;
    for (int64_t i = 0; i < n; ++i) mass += p[i] = exponential(boundary(space.order[i]).x);
    const double log_mass = std::log(mass);
    for (int64_t i = 0; i < n; ++i) entropy += p[i] = p[i] / mass * (log_mass - boundary(space.order[i]).x);
    int64_t kept = 0;
    while (kept < n && (sum += p[kept]) <= stage.a * entropy * (1.0 + 1e-12)) ++kept;
    keep(s, boundary(space.order[std::max<int64_t>(kept, 1) - 1]));
    walk.narrowed();
    return true;
}

// Keep the k likeliest tokens by the logits before the stages. k is the place of the steepest fall (lᵢ − lᵢ₊₁) / i, of
// equal ones the first, or the k that a gives over the range of the row, if that is larger.
bool min_k(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    Workspace &space = walk.context.space;
    const float max = walk.context.scan.max, low = least_finite(walk.context.row, walk.context.scan), least = low - max;
    const double by_range = stage.a / (static_cast<double>(max) - low + 1e-8);
    if (!s.complete && by_range > static_cast<double>(s.n)) return walk.undecided(kEverything);
    if (!s.complete && s.n < 2) return walk.deeper();
    const Ranked raw{s.ids, s.raw, s.weights, s.n};
    int64_t cliff = 1;
    for (int64_t count = std::min(kCliffs, s.n); s.n >= 2;) {
        likeliest(raw, count, space);
        double heaviest = -1;
        for (int64_t i = 1; i < count; ++i) {
            const double fall = (static_cast<double>(boundary(space.order[i - 1]).x) - boundary(space.order[i]).x) / static_cast<double>(i);
            if (fall > heaviest) heaviest = fall, cliff = i;
        }
        // no later fall can exceed the rest of the range
        const double left = static_cast<double>(boundary(space.order[count - 1]).x) - least;
        if (heaviest >= left / static_cast<double>(count) || (s.complete && count == s.n)) break;
        // weighted in the same way
        const double enough = std::min(left / heaviest + 1.0, static_cast<double>(walk.context.scan.vocab));
        if (!s.complete && enough > static_cast<double>(s.n)) return walk.deeper_for(static_cast<int64_t>(enough));
        count = std::clamp(static_cast<int64_t>(enough), count + 1, s.n);
    }
    const int64_t k = std::max(cliff, static_cast<int64_t>(std::min(by_range, static_cast<double>(s.n))));
    if (s.complete && k >= s.n) return true;
    const Boundary last = nth(raw, k, space);
    for (int64_t i = 0; i < s.n; ++i) space.flags[i] = s.raw[i] > last.x || (s.raw[i] == last.x && s.ids[i] <= last.id);
    keep_flagged(s, space.flags.data());
    walk.narrowed();
    walk.lifted();
    return true;
}

}  // namespace tailrace
