// The memory that a thread of the sampler works in.
#pragma once
#include <cstdint>
#include <vector>

#include "sample/noise.h"

namespace tailrace {

// The tokens that a method's state is updated from: the candidates at the method's stage.
struct Basis {
    std::vector<uint32_t> ids;
    std::vector<float> x;
    double log_mass = 0;  // ln Σ e^x
};

// The arrays of one thread. They grow to the largest vocabulary and are never freed, so a step allocates nothing.
struct Workspace {
    std::vector<float> block_max, raw_block_max, sums, ranked, raw, x, weights, noise, other_x, other_weights;
    std::vector<uint8_t> flags;
    std::vector<uint32_t> ids, other_ids, hot_group, hot_bits;
    std::vector<uint64_t> order;
    std::vector<double> exact;  // for stages that need doubles; these resize it
    Basis basis;
    Hot hot() { return {hot_group.data(), hot_bits.data(), 0}; }
    void fit(int64_t vocab);     // grows the arrays
    static Workspace &mine();    // returns this thread's workspace
};

}  // namespace tailrace
