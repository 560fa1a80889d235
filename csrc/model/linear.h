// Calls of packed linear layers, and the path that has a file of its own.
#pragma once
#include "kernels.h"

#include <vector>

namespace tailrace {

// A call per group that has rows. Rows of no group become 0.
std::vector<LinearCall> split_groups(const GroupedCall &call);

// Whether the machine has tiles of bfloat16, and a row of k inputs fills them.
bool tiles_serve(int64_t k);
// The same product by tiles (AMX).
void linear_tiles(const LinearCall &call);

}  // namespace tailrace
