// Rows so flat that the candidates of their one truncation are a large part of the vocabulary. Copying them would cost
// more than looking again: the truncation's boundary is found in place, guided by a sample of the blocks, and the draw
// looks at hot tokens only.
#pragma once
#include <atomic>

#include "sample/draw.h"
#include "sample/refine.h"

namespace tailrace {

// How many tokens came this way; for tests.
inline std::atomic<int64_t> flat_draws = 0;

// Whether a draw may go this way, by what is asked and by what the pass found.
bool is_flat(const Context &context);
// The token; kNobody where the sample misled or other than hot tokens may win: then the candidates must be collected
// after all. `boundary`: of the truncation, where there is a token.
int64_t draw_flat_row(const Row &row, const Context &context, const Noise &noise, Boundary *boundary);
// The ids up to that boundary, ascending.
void survivors_of_flat_row(const Row &row, const Context &context, Boundary last, std::vector<int32_t> &out);

}  // namespace tailrace
