// The refinements over candidates. A stage either decides which candidates it keeps, or asks for a greater depth.
#pragma once
#include "sample/candidates.h"

namespace tailrace {

// The data that stages may read besides the candidates.
struct Context {
    const Program &program;
    const Row &row;
    const Scan &scan;
    const State &state;
    int64_t position;
    double mass_temperature;  // scan.mass is Σ e^((l − max) / mass_temperature); 0: the mass is unknown
    Workspace &space;
};

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kEverything = -1e300;  // a depth that only the complete row satisfies

// Write −|log_mass − x − entropy| of each token: how near −ln p is to the entropy.
void nearness(const float *x, int64_t n, double log_mass, double entropy, float *out);
// Return whether a stage reads the edited logits after other stages have changed x: Candidates::raw.
bool wants_raw(StageKind kind);
// Set what the pass over the row must find so that the stages can decide: mass, moments, sigma and temperature.
void plan(const Program &program, Wants &wants);
// Return the depth, relative to the maximum, down to which tokens are collected first.
double first_depth(const Context &context);
// Update the state after a token. log_probability: ln of its probability among the tokens that the method looks at.
void update_state(const Program &program, double log_probability, State &state);
// Return this log-probability. NaN: the method does not look at the token, or nothing is stored.
double update_of(const Basis &basis, uint32_t token);
// Apply all stages in order. Return true if all could decide. Else set *depth (relative to the maximum, ≤ 0): the row
// must be collected down to it.
bool refine(const Context &context, double floor, Candidates &candidates, double *depth);

}  // namespace tailrace
