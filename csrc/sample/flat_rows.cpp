#include "sample/flat_rows.h"

#include <algorithm>

namespace tailrace {
namespace {

// Kept mass relative to the likeliest token. From here on the winner is hot in 6 of 7 draws, soon in nearly all.
constexpr double kFlat = 512;
constexpr int64_t kSampled = 32;     // number of sampled blocks, which show roughly where the boundary lies
// Standard errors of the sample. If neighbours are alike, the boundary lies outside more often than chance predicts.
constexpr double kDeviations = 4.0;
constexpr double kRounding = 0x1p-21;  // relative error of a few float operations

// The key by which the truncation ranks, at most 0: the depth itself, or minus the distance of −ln p from the entropy.
struct Order {
    bool typical;
    double temperature, log_mass, entropy;
    float max;

    void of(const float *x, int64_t n, float *key) const {
        if (typical) nearness(x, n, log_mass, entropy, key);
        else std::copy(x, x + n, key);
    }
    // Write rough keys of a block of logits, in units of logits.
    float centre() const { return static_cast<float>(max + (log_mass - entropy) * temperature); }
    float rough(double key) const { return static_cast<float>((typical ? 0.0 : max) + key * temperature); }
    // Return how far rough and exact keys may differ, in units of keys, down to keys of this depth.
    double slack(double key) const {
        return kRounding * ((std::fabs(max) + std::fabs(static_cast<double>(centre()))) / temperature - key + 1.0);
    }
};

TAILRACE_CLONES void minus_distance(const float *l, float centre, float *key) {
    for (int64_t i = 0; i < kBlock; ++i) key[i] = -std::fabs(l[i] - centre);
}

// Return Σ e^((l − max) · scale) of a block's tokens whose key is above `high`.
TAILRACE_CLONES double mass_above(const float *l, const float *key, float high, float max, float scale) {
    float lane[kLanes] = {};
    const float c = scale * kLog2E;
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int k = 0; k < kLanes; ++k) {
            const float w = power((l[i + k] - max) * c);
            lane[k] += key[i + k] > high ? w : 0.0f;
        }
    return fold(load16<F16>(lane));
}

TAILRACE_CLONES double sum_of_squares(const float *x, int64_t n) {
    float lane[kLanes] = {};
    for (int64_t i = 0; i + kLanes <= n; i += kLanes)
        for (int l = 0; l < kLanes; ++l) lane[l] += x[i + l] * x[i + l];
    return fold(load16<F16>(lane));
}

// Return two keys between which the boundary most likely lies.
struct Bracket {
    double high, low;
};

Bracket guess(const Row &row, const Order &order, double share, Candidates &some, Workspace &space) {
    alignas(64) float buffer[kBlock];
    const int64_t stride = std::max<int64_t>(1, row.blocks() / kSampled);
    some.n = 0;
    for (int64_t b = stride / 2; b < row.blocks(); b += stride) {
        const float *l = load(row, b, buffer);
        take_block(l, l, kLowest, -kNone, order.max, static_cast<uint32_t>(b * kBlock), some);
    }
    if (some.n == 0) return {kNone, kNone};
    divide(some.x, some.n, order.temperature);
    some.weighted = false;
    const double mass = collected_mass(some), independent = mass * mass / sum_of_squares(some.weights, some.n);
    const double error = kDeviations * std::sqrt(share * (1.0 - share) / independent);
    float *key = space.noise.data();
    order.of(some.x, some.n, key);
    const Ranked ranked{some.ids, key, some.weights, some.n};
    Bracket found{0.0, -std::numeric_limits<double>::infinity()};
    // widen the bracket at both ends, where rough and exact keys may disagree
    if (share - error > 0.0) {
        found.high = around(ranked, (share - error) * mass, space).high;
        found.high = std::min(0.0, found.high + 2.0 * order.slack(found.high));
    }
    if (share + error < 1.0) {
        found.low = around(ranked, (share + error) * mass, space).low;
        found.low -= 2.0 * order.slack(found.low);
    }
    return found;
}

// Find the exact boundary. Return false if it is not in the bracket.
bool find_boundary(const Row &row, const Context &context, const Order &order, double share, Candidates &some, Boundary *out) {
    Workspace &space = context.space;
    const Bracket bracket = guess(row, order, share, some, space);
    const float high = order.rough(bracket.high), low = std::max(order.rough(bracket.low), kLowest);
    alignas(64) float buffer[kBlock], keys[kBlock];
    double above = 0;
    some.n = 0;
    for (int64_t b = 0; b < row.blocks(); ++b) {
        if (!order.typical && context.scan.block_max[b] < low) continue;
        const float *l = load(row, b, buffer), *key = l;
        if (order.typical) {
            minus_distance(l, order.centre(), keys);
            key = keys;
        }
        above += mass_above(l, key, high, order.max, static_cast<float>(1.0 / order.temperature));
        take_block(key, l, low, high, order.max, static_cast<uint32_t>(b * kBlock), some);
    }
    divide(some.x, some.n, order.temperature);
    some.weighted = false;
    const double rest = share * (1.0 - kTolerance) * context.scan.mass.total - above;
    if (some.n == 0 || !(rest > 0) || !(collected_mass(some) >= rest)) return false;
    float *key = space.noise.data();
    order.of(some.x, some.n, key);
    *out = reaching({some.ids, key, some.weights, some.n}, rest, space);
    const double slack = order.slack(out->x);
    return (bracket.high == 0.0 || out->x < bracket.high - slack) && out->x > bracket.low + slack;
}

Order order_of(const Context &context) {
    const Scan &scan = context.scan;
    const bool typical = context.program.stages[context.program.num_stages - 1].kind == StageKind::typical;
    return {typical, context.mass_temperature, std::log(scan.mass.total), typical ? scan.mass.entropy() : 0.0, scan.max};
}

}  // namespace

bool is_flat(const Context &context) {
    const Program &program = context.program;
    const int32_t last = program.num_stages - 1;
    if (last < 0 || last > 1 || (last == 1 && program.stages[0].kind != StageKind::temperature)) return false;
    const StageKind kind = program.stages[last].kind;
    const double temperature = last == 1 ? program.stages[0].a : 1.0;
    if ((kind != StageKind::top_p && kind != StageKind::typical) || context.mass_temperature != temperature || temperature < 1e-3 ||
        context.scan.mass.total * program.stages[last].a < kFlat)
        return false;
    const float deep = static_cast<float>(context.scan.max - 4.0 * temperature);
    int64_t reaching = 0;
    for (int64_t b = 0; b < context.scan.blocks; ++b) reaching += context.scan.block_max[b] >= deep;
    return reaching > context.scan.blocks / 2;
}

int64_t draw_flat_row(const Row &row, const Context &context, const Noise &noise, Boundary *boundary) {
    Workspace &space = context.space;
    const Scan &scan = context.scan;
    const Order order = order_of(context);
    Candidates some{space.ids.data(), space.x.data(), space.weights.data(), nullptr};
    Boundary &last = *boundary;
    if (!find_boundary(row, context, order, context.program.stages[context.program.num_stages - 1].a, some, &last)) return kNobody;
    Hot hot = space.hot();
    hot_groups(noise, 0, scan.blocks * kBlockGroups, hot);
    uint32_t *ids = space.other_ids.data();
    float *x = space.other_x.data(), *key = space.other_weights.data();
    const int64_t n = ids_of(hot, ids);
    logits_of(row, ids, n, x);
    for (int64_t i = 0; i < n; ++i) x[i] -= scan.max;
    divide(x, n, order.temperature);
    order.of(x, n, key);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
        const bool in = x[i] > kNone && (key[i] > last.x || (key[i] == last.x && ids[i] <= last.id));
        ids[kept] = ids[i];
        x[kept] = x[i];
        kept += in;
    }
    Best best{noise, kNobody, space.noise.data()};
    best.offer(ids, x, kept, true);
    if (!(best.score > kMaxColdNoise)) return kNobody;
    flat_draws.fetch_add(1, std::memory_order_relaxed);
    return best.id;  // no other token can reach this score, because x is at most 0
}

void survivors_of_flat_row(const Row &row, const Context &context, Boundary last, std::vector<int32_t> &out) {
    const Order order = order_of(context);
    Candidates some{context.space.ids.data(), context.space.x.data(), context.space.weights.data(), nullptr};
    alignas(64) float buffer[kBlock], keys[kBlock];
    const double slack = order.slack(last.x);
    const float high = order.rough(last.x + 2.0 * slack), low = order.rough(last.x - 2.0 * slack);
    for (int64_t b = 0; b < row.blocks(); ++b) {
        const int64_t from = some.n;
        const uint32_t first = static_cast<uint32_t>(b * kBlock);
        const float *l = load(row, b, buffer), *key = l;
        if (order.typical) {
            minus_distance(l, order.centre(), keys);
            key = keys;
        }
        take_block(key, l, low, high, order.max, first, some);
        const bool doubtful = some.n > from;
        some.n = from;
        take_block(key, l, low, -kNone, order.max, first, some);
        if (!doubtful) continue;
        float *x = some.x + from;  // rough keys can't decide, so compute exact ones
        const int64_t n = some.n - from;
        divide(x, n, order.temperature);
        order.of(x, n, keys);
        some.n = from;
        for (int64_t i = 0; i < n; ++i) {
            some.ids[some.n] = some.ids[from + i];
            some.n += keys[i] > last.x || (keys[i] == last.x && some.ids[from + i] <= last.id);
        }
    }
    out.assign(some.ids, some.ids + some.n);
}

}  // namespace tailrace
