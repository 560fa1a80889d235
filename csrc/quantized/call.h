// One product of quantized weights, and how its rows become int8.
#pragma once
#include "model/linear.h"
#include "quantized/product.h"

#include <vector>

namespace tailrace {

enum Set : int { kPortable = 0, kNeon = 1, kAvx2 = 1, kVnni = 2, kAmx = 3 };  // no machine has both of 1

struct Call : LinearCall {
    const Format *f;
    Activations rows;
    Set set;  // of its products
};

// Make the rows of all calls int8, with an instruction set.
void quantize_rows(const std::vector<Call> &calls, Type type, Set set);

}  // namespace tailrace
