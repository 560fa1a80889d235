#include "remainder.h"

#include <algorithm>
#include <cmath>

#include "draw.h"

namespace tailrace {
namespace {

constexpr float kLeast = std::numeric_limits<float>::min();  // less than that is nothing
constexpr float kMost = std::numeric_limits<float>::infinity();

// depth: l − max over temperature, of which the remainder is made in place. Returns its sum.
TAILRACE_CLONES double subtract_block(float *depth, const float *q, float scale) {
    float lane[kLanes] = {};
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int l = 0; l < kLanes; ++l) {
            const float rest = scale * weight(depth[i + l]) - q[i + l];
            depth[i + l] = rest > 0.0f ? rest : 0.0f;
            lane[l] += depth[i + l];
        }
    return fold(load16<F16>(lane));
}

}  // namespace

double subtract_row(const Row &row, const Scan &scan, double temperature, const float *q, double scale, Survivors &out) {
    alignas(64) float buffer[kBlock], x[kBlock], last[kBlock];
    const float share = static_cast<float>(scale / scan.mass.total);
    double sum = 0;
    out.n = 0;
    Cursor cursor;
    for (int64_t b = 0; b < row.blocks(); ++b) {
        const int64_t first = b * kBlock;
        ahead(row, b + kAhead);
        const float *l = read(row, b, buffer), *theirs = q + first;
        for (int64_t i = 0; i < kBlock; ++i) x[i] = l[i];
        if (row.num_edits) edit(row, first, x, cursor);
        for (int64_t i = 0; i < kBlock; ++i) x[i] -= scan.max;
        divide(x, kBlock, temperature);
        if (row.vocab - first < kBlock) {
            std::fill(last, last + kBlock, 0.0f);
            std::copy(theirs, q + row.vocab, last);
            theirs = last;
        }
        sum += subtract_block(x, theirs, share);
        take_block(x, x, kLeast, kMost, 0.0f, static_cast<uint32_t>(first), out);
    }
    return sum;
}

double subtract_survivors(const float *q, double scale, Survivors &out) {
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

int64_t draw_remainder(const Survivors &s, const Noise &noise, Workspace &space) {
    Best best{noise, kNobody, space.noise.data()};
    uint32_t *ids = space.other_ids.data();
    float *x = space.other_x.data();
    const auto offer = [&](int64_t n, bool known_hot) {
        for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(std::log(static_cast<double>(x[i])));
        best.offer(ids, x, n, known_hot);
    };
    float bound = 0.0f;
    if (s.n > kFew) {  // logarithms are dear: only of those that can win
        offer(hot_among(s, noise, space), true);
        if (best.id != kNobody) bound = static_cast<float>(std::exp(static_cast<double>(best.score - kCold)) * (1.0 - 1e-5));
    }
    int64_t n = 0;
    for (int64_t i = 0; i < s.n; ++i) {
        ids[n] = s.ids[i];
        x[n] = s.x[i];
        n += s.x[i] >= bound;
    }
    offer(n, false);
    return best.id;
}

}  // namespace tailrace
