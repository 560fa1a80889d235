// Repetitions in a sequence, which DRY penalises. no_repeat_ngram reads them too (src/tailrace/sampling/methods/).
#pragma once
#include <cstdint>

namespace tailrace {

// Compute how many tokens before and at each place agree with the last tokens of the sequence: out [n]. The last entry
// is n. Linear in n.
void agreements(const int64_t *tokens, int64_t n, int64_t *out);

}  // namespace tailrace
