// The tokens of a row that may still be drawn, and the functions that remove tokens. Ids always ascend.
//
// A set of candidates may be incomplete. It then holds every token whose logit is at least `floor`. Of the other tokens
// only the number is known and, if a stage needs it, the mass of all tokens. A stage that must know more asks for a
// lower floor.
#pragma once
#include <cstdint>

#include "sample/boundary.h"
#include "sample/row.h"
#include "sample/workspace.h"

namespace tailrace {

struct Candidates {
    uint32_t *ids;
    float *x;        // edited logit minus the row's maximum, as the stages have changed it; at most 0
    float *weights;  // e^x, if `weighted`
    float *raw;      // x before the stages, if a stage needs it; else null
    int64_t n = 0;
    bool complete = false, weighted = false;
    double mass = -1;  // Σ e^x over all tokens, collected or not; −1: unknown
};

// Append the tokens with low <= key <= high of a block of logits, whose first id is `first`.
void take_block(const float *key, const float *l, float low, float high, float max, uint32_t first, Candidates &out);
// Collect all tokens whose edited logit is at least `floor`. Fill in x and raw.
void collect(const Row &row, const Scan &scan, float floor, Candidates &out);

// Drop the tokens after the boundary.
void keep(Candidates &candidates, Boundary last);
// Drop the tokens below x.
void keep_above(Candidates &candidates, double x);
// Drop the tokens whose flag is 0.
void keep_flagged(Candidates &candidates, const uint8_t *flags);

// Compute the weights, unless they are known.
void weigh(Candidates &candidates);
// Divide in double and round once.
void divide(float *x, int64_t n, double by);
// Return Σ e^x over the collected tokens, in a fixed order.
double collected_mass(Candidates &candidates);
// Return Σ e^2x over the collected tokens, in a fixed order.
double collected_squares(Candidates &candidates);

inline Ranked ranked(const Candidates &s) { return {s.ids, s.x, s.weights, s.n}; }

}  // namespace tailrace
