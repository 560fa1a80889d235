// Boundaries: the last token of a prefix in descending order, found without sorting all values.
#pragma once
#include <cstdint>
#include <cstring>

#include "sample/workspace.h"

namespace tailrace {

// The last token of a prefix in descending order: larger x first, of equal ones the smaller id.
struct Boundary {
    float x;
    uint32_t id;
};

// The values that a boundary is looked for in, with their weights. Ids ascend.
struct Ranked {
    const uint32_t *ids;
    const float *x;  // at most 0
    const float *weights;
    int64_t n;
};
// Return the k-th value in descending order, 1 <= k <= n. Weights do not matter.
Boundary nth(const Ranked &among, int64_t k, Workspace &space);
// Return the token at which the mass, added in descending order, reaches `target`, or the last token.
Boundary reaching(const Ranked &among, double target, Workspace &space);
// Two values close to each other; the token that `reaching` returns lies between them.
struct Between {
    float high, low;
};
Between around(const Ranked &among, double target, Workspace &space);

// Return a value that the maxima of at least k blocks reach, and so at least k tokens. The value is near the k-th
// largest logit and takes a fraction of the time. The result is −inf if there are fewer than k blocks.
float reached_by(const float *block_max, int64_t blocks, int64_t k, Workspace &space);

// Return the smallest of n values that are at most 0.
float deepest(const float *x, int64_t n);

// Return an integer that orders tokens: a larger value has a smaller key, and of equal values the smaller id has it.
inline uint64_t rank_key(float x, uint32_t id) {
    const float depth = x < 0.0f ? -x : 0.0f;  // −0 and +0 are one value
    uint32_t bits;
    std::memcpy(&bits, &depth, 4);
    return static_cast<uint64_t>(bits) << 32 | id;
}
// Return the token of a rank key.
inline Boundary boundary(uint64_t key) {
    const uint32_t bits = static_cast<uint32_t>(key >> 32);
    float depth;
    std::memcpy(&depth, &bits, 4);
    return {-depth, static_cast<uint32_t>(key)};
}

}  // namespace tailrace
