// The tokens of a row still in play, and the ways to have fewer of them. Ids ascend always.
//
// A set may be incomplete: it then holds every token whose logit is at least `floor`, and nothing is known of the
// others but their number and, where it was asked for, the mass of all. What needs to know more says so, and the floor
// is lowered.
#pragma once
#include <cstdint>
#include <vector>

#include "row.h"

namespace tailrace {

// Those that a method's state is updated from: what was left when it looked.
struct Basis {
    std::vector<uint32_t> ids;
    std::vector<float> x;
    double log_mass = 0;  // ln Σ e^x
};

// Memory of one thread, grown to the largest vocabulary it has met and never given back: no allocation per step.
struct Workspace {
    std::vector<float> block_max, raw_block_max, sums, ranked, raw, x, weights, noise, other_x, other_weights;
    std::vector<uint8_t> flags;
    std::vector<uint32_t> ids, other_ids, hot_group, hot_bits;
    std::vector<uint64_t> order;
    std::vector<double> exact;  // of stages that want more than floats; as long as they made it
    Basis basis;
    Hot hot() { return {hot_group.data(), hot_bits.data(), 0}; }
    void fit(int64_t vocab);
    static Workspace &mine();
};

struct Candidates {
    uint32_t *ids;
    float *x;        // edited logit less the row's maximum, and what the stages have made of it; at most 0
    float *weights;  // e^x, where `weighted`
    float *raw;      // the former, where a stage will ask for it; else null
    int64_t n = 0;
    bool complete = false, weighted = false;
    double mass = -1;  // Σ e^x over all of them, the uncollected included; −1: not known
};

// Of a block of logits that begins with id `first`: those with low <= key <= high are put behind what is there.
void take_block(const float *key, const float *l, float low, float high, float max, uint32_t first, Candidates &out);
// All tokens whose edited logit is at least `floor`; raw and x are filled in.
void collect(const Row &row, const Scan &scan, float floor, Candidates &out);

// The last token of a prefix in descending order: larger x first, of equal ones the smaller id.
struct Boundary {
    float x;
    uint32_t id;
};
// Drop what comes after the boundary.
void keep(Candidates &candidates, Boundary last);
// Drop what is below x.
void keep_above(Candidates &candidates, double x);
// Drop all but those whose flag is set.
void keep_flagged(Candidates &candidates, const uint8_t *flags);

// e^x of each, once.
void weigh(Candidates &candidates);
// l / T in double, rounded once.
void divide(float *x, int64_t n, double by);
// Σ e^x of those here, in a fixed order.
double collected_mass(Candidates &candidates);
// Σ e^2x of those here, in a fixed order.
double collected_squares(Candidates &candidates);

// Values with their weights, ids ascending: what a boundary is looked for in.
struct Ranked {
    const uint32_t *ids;
    const float *x;  // at most 0
    const float *weights;
    int64_t n;
};
// The k-th in descending order, 1 <= k <= n. Weights are not looked at.
Boundary nth(const Ranked &among, int64_t k, Workspace &space);
// The token at which the descending mass reaches `target`, or the last one.
Boundary reaching(const Ranked &among, double target, Workspace &space);
// Values between which that token lies, close to each other.
struct Between {
    float high, low;
};
Between around(const Ranked &among, double target, Workspace &space);
inline Ranked ranked(const Candidates &s) { return {s.ids, s.x, s.weights, s.n}; }

// A value that at least k blocks' maxima reach, so at least k tokens: near the k-th largest, for a fraction of its
// price. −inf where there are fewer blocks.
float reached_by(const float *block_max, int64_t blocks, int64_t k, Workspace &space);

// The smallest of values that are at most 0.
float deepest(const float *x, int64_t n);

// Larger value first, then smaller id: ascending integers.
inline uint64_t rank_key(float x, uint32_t id) {
    const float depth = x < 0.0f ? -x : 0.0f;  // −0 and +0 are one value
    uint32_t bits;
    std::memcpy(&bits, &depth, 4);
    return static_cast<uint64_t>(bits) << 32 | id;
}
inline Boundary boundary(uint64_t key) {
    const uint32_t bits = static_cast<uint32_t>(key >> 32);
    float depth;
    std::memcpy(&depth, &bits, 4);
    return {-depth, static_cast<uint32_t>(key)};
}

}  // namespace tailrace
