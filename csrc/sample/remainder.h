// What verification draws from after a rejection: the positive part of scale · p − q, not normalised.
#pragma once
#include "sample/candidates.h"

namespace tailrace {

// Of a row that only a temperature refines, p = e^((l − max) / temperature) / mass with scan.mass: nothing is kept of
// it but what each block's largest is, and the draw looks again where it must. Most of such a row is positive, and to
// copy it would take longer than all else.
class RowRemainder {
  public:
    // Sums it; q [V] are probabilities. `block_max` has room for a number per block.
    RowRemainder(const Row &row, const Scan &scan, double temperature, const float *q, double scale, float *block_max);
    double sum() const { return sum_; }
    // argmax of ln x + noise, ties to the smaller id; kNobody if nothing is left.
    int64_t draw(const Noise &noise, Workspace &space) const;

  private:
    // Of block b, whose edited logits are given: they become what is left of each. Adds that up; returns the largest.
    float subtract(int64_t b, float *logits, double *sum) const;

    const Row &row_;
    const float *q_;
    float max_, scale_, share_;
    float *block_max_;
    double sum_ = 0;
};

// Of candidates: they become their remainder, x the remainder itself (no logarithm). Returns its sum.
double subtract_candidates(const float *q, double scale, Candidates &out);

// argmax of ln x + noise over them, ties to the smaller id; kNobody if nothing is left.
int64_t draw_remainder(const Candidates &remainder, const Noise &noise, Workspace &space);

}  // namespace tailrace
