#include "sample/remainder.h"

#include <algorithm>
#include <cmath>

#include "sample/draw.h"

namespace tailrace {
namespace {

constexpr float kLeast = std::numeric_limits<float>::min();  // a smaller weight counts as 0
constexpr float kMost = std::numeric_limits<float>::infinity();

// Return share · e^((l − max) · scale) − q if that is positive and not too small, else 0. The product is
// rounded twice, so p may differ from a draw's p in the last bit.
TAILRACE_INLINE float rest(float l, float q, float max, float scale, float share) {
    const float left = share * weight((l - max) * scale) - q;
    return left >= kLeast ? left : 0.0f;
}

// Replace the logits of a block, at most 256, by these weights. Return the largest weight.
TAILRACE_CLONES float subtract_block(float *l, const float *q, float max, float scale, float share, double *sum) {
    F16 lane{}, top{};
    for (int64_t i = 0; i < kBlock; ++i) l[i] = rest(l[i], q[i], max, scale, share);
    for (int64_t i = 0; i < kBlock; i += kLanes) {
        const F16 x = load16<F16>(l + i);
        lane += x;
        top = larger(x, top);
    }
    *sum += fold(lane);
    return largest(top);
}

// Replace weights by their logarithms, and offer the tokens.
void offer_logs(Best &best, const uint32_t *ids, float *x, int64_t n, bool known_hot) {
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(std::log(static_cast<double>(x[i])));
    best.offer(ids, x, n, known_hot);
}

// Return the weight below which no token can win any more, hot or not.
float bound_of(const Best &best) {
    return best.id == kNobody ? 0.0f : static_cast<float>(std::exp(static_cast<double>(best.score - kMaxColdNoise)) * (1.0 - 1e-5));
}

}  // namespace

RowRemainder::RowRemainder(const Row &row, const Scan &scan, double temperature, const float *q, double scale, float *block_max)
    : row_(row), q_(q), max_(scan.max), scale_(static_cast<float>(std::min(1.0 / temperature, 1e30))),
      share_(static_cast<float>(scale / scan.mass.total)), block_max_(block_max) {
    alignas(64) float buffer[kBlock];
    Cursor cursor;
    for (int64_t b = 0; b < row.blocks(); ++b) {
        ahead(row, b + kAhead);
        const float *l = read(row, b, buffer);
        if (l != buffer) std::copy(l, l + kBlock, buffer);
        if (row.num_edits) edit(row, b * kBlock, buffer, cursor);
        block_max_[b] = subtract(b, buffer, &sum_);
    }
}

float RowRemainder::subtract(int64_t b, float *logits, double *sum) const {
    const int64_t first = b * kBlock;
    if (row_.vocab - first >= kBlock) return subtract_block(logits, q_ + first, max_, scale_, share_, sum);
    alignas(64) float last[kBlock] = {};  // the vocabulary ends within the block
    std::copy(q_ + first, q_ + row_.vocab, last);
    return subtract_block(logits, last, max_, scale_, share_, sum);
}

int64_t RowRemainder::draw(const Noise &noise, Workspace &space) const {
    Best best{noise, kNobody, space.noise.data()};
    uint32_t *ids = space.other_ids.data();
    float *x = space.other_x.data();
    Hot hot = space.hot();
    hot_groups(noise, 0, row_.blocks() * kBlockGroups, hot);
    int64_t found = ids_of(hot, ids), n = 0;
    while (found > 0 && ids[found - 1] >= row_.vocab) --found;
    logits_of(row_, ids, found, x);
    for (int64_t i = 0; i < found; ++i) {
        ids[n] = ids[i];
        x[n] = rest(x[i], q_[ids[i]], max_, scale_, share_);
        n += x[n] > 0.0f;
    }
    offer_logs(best, ids, x, n, true);
    alignas(64) float buffer[kBlock];
    for (int64_t b = 0; b < row_.blocks(); ++b) {
        const float bound = std::max(bound_of(best), kLeast);
        if (!(block_max_[b] >= bound)) continue;
        const float *l = load(row_, b, buffer);
        if (l != buffer) std::copy(l, l + kBlock, buffer);
        double unused = 0;
        subtract(b, buffer, &unused);
        Candidates some{ids, x, nullptr, nullptr};
        take_block(buffer, buffer, bound, kMost, 0.0f, static_cast<uint32_t>(b * kBlock), some);
        offer_logs(best, ids, x, some.n, false);
    }
    return best.id;
}

double subtract_candidates(const float *q, double scale, Candidates &out) {
    const double mass = collected_mass(out);
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < out.n; ++i) {
        const uint32_t id = out.ids[i];
        const double rest = scale * out.weights[i] / mass - q[id];
        out.ids[n] = id;
        out.x[n] = static_cast<float>(rest);
        if (!(out.x[n] >= kLeast)) continue;
        sum += rest;
        ++n;
    }
    out.n = n;
    return sum;
}

int64_t draw_remainder(const Candidates &s, const Noise &noise, Workspace &space) {
    Best best{noise, kNobody, space.noise.data()};
    uint32_t *ids = space.other_ids.data();
    float *x = space.other_x.data();
    float bound = 0.0f;
    if (s.n > kFew) {  // logarithms are slow, so only of the weights that can win
        offer_logs(best, ids, x, hot_among(s, noise, space), true);
        bound = bound_of(best);
    }
    int64_t n = 0;
    for (int64_t i = 0; i < s.n; ++i) {
        ids[n] = s.ids[i];
        x[n] = s.x[i];
        n += s.x[i] >= bound;
    }
    offer_logs(best, ids, x, n, false);
    return best.id;
}

}  // namespace tailrace
