// One call of a packed linear layer, and the path that has a file of its own.
#pragma once
#include "kernels.h"

namespace tailrace {

struct LinearCall {
    const void *x;
    int64_t m, k, x_stride;
    const void *packed, *bias;
    int64_t n;
    void *y;
};

// Whether the machine has tiles of bfloat16, and a row of k inputs fills them.
bool tiles_serve(int64_t k);
// The same product by tiles (AMX).
void linear_tiles(const LinearCall &call);

}  // namespace tailrace
