// The weights from which verification draws after a rejection: the positive part of scale · p − q, not normalised.
#pragma once
#include "sample/candidates.h"

namespace tailrace {

// The remainder of a row that only a temperature refines: p = e^((l − max) / temperature) / mass with scan.mass. Only
// each block's largest weight is stored, and the draw reads blocks again if it must. Most weights of such a row are
// positive, and a copy of them would take longer than all other work.
class RowRemainder {
  public:
    // Sum the remainder. q [V] are probabilities. `block_max` has room for a number per block.
    RowRemainder(const Row &row, const Scan &scan, double temperature, const float *q, double scale, float *block_max);
    double sum() const { return sum_; }
    // Return the argmax of ln x + noise, ties to the smaller id, or kNobody if nothing is left.
    int64_t draw(const Noise &noise, Workspace &space) const;

  private:
    // Replace the edited logits of block b by their remainder, and add the block's sum. Return the largest weight.
    float subtract(int64_t b, float *logits, double *sum) const;

    const Row &row_;
    const float *q_;
    float max_, scale_, share_;
    float *block_max_;
    double sum_ = 0;
};

// Replace candidates by their remainder: x becomes the weight itself, not its logarithm. Return the sum.
double subtract_candidates(const float *q, double scale, Candidates &out);

// Return the argmax of ln x + noise over the candidates, ties to the smaller id, or kNobody if nothing is left.
int64_t draw_remainder(const Candidates &remainder, const Noise &noise, Workspace &space);

}  // namespace tailrace
