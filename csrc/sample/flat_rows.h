// Rows so flat that the candidates of their one truncation are a large part of the vocabulary. Copying them would cost
// more than looking again: the truncation's boundary is found in place, guided by a sample of the blocks, and the draw
// looks at hot tokens only.
#pragma once
#include <atomic>

#include "sample/draw.h"
#include "sample/refine.h"

namespace tailrace {

// The number of tokens that were drawn this way; for tests.
inline std::atomic<int64_t> flat_draws = 0;

// Return whether a draw may use this way, by the request and by the results of the pass.
bool is_flat(const Context &context);
// Return the token. Return kNobody if the sample misled, or if a token that is not hot may win: then the candidates
// must be collected. Write the truncation's boundary if there is a token.
int64_t draw_flat_row(const Row &row, const Context &context, const Noise &noise, Boundary *boundary);
// Write the ids up to the boundary, ascending.
void survivors_of_flat_row(const Row &row, const Context &context, Boundary last, std::vector<int32_t> &out);

}  // namespace tailrace
