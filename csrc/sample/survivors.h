// The token ids that the truncations of a step have left.
#pragma once
#include <cstdint>
#include <vector>

namespace tailrace {

// The ids that survived, ascending, for each token of a step. Their number is known only after the step.
struct Survivors {
    std::vector<std::vector<int32_t>> of;

    // Read bits [of.size(), words], 32 ids in a word.
    void read(const uint32_t *bits, int64_t words);
    int64_t total() const;
    // Write ids [total], the tokens' ids one after another, and offsets [of.size() + 1]: where each token's ids begin,
    // and the end.
    void write(int32_t *ids, int64_t *offsets) const;
};

}  // namespace tailrace
