// What verification draws from after a rejection: the positive part of scale · p − q, not normalised.
#pragma once
#include "survivors.h"

namespace tailrace {

// Both fill `out`, ids ascending, x the remainder itself (no logarithm), and return its sum. q [V] are probabilities.
// Of a row that only a temperature refines: p = e^((l − max) / temperature) / mass, with scan.mass.
double subtract_row(const Row &row, const Scan &scan, double temperature, const float *q, double scale, Survivors &out);
// Of survivors, which are `out` itself.
double subtract_survivors(const float *q, double scale, Survivors &out);

// argmax of ln x + noise, ties to the smaller id; kNobody if nothing is left.
int64_t draw_remainder(const Survivors &remainder, const Noise &noise, Workspace &space);

}  // namespace tailrace
