// The refinements over candidates: what each stage keeps, or how much deeper it must see to know.
#pragma once
#include "sample/candidates.h"

namespace tailrace {

// What the stages may look at besides the candidates.
struct Context {
    const Program &program;
    const Row &row;
    const Scan &scan;
    const State &state;
    int64_t position;
    double mass_temperature;  // scan.mass is of (l − max) / this; 0: there is none
    Workspace &space;
};

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kEverything = -1e300;  // a depth that only the complete row satisfies

// −|log_mass − x − entropy| of each: how near −ln p is to the entropy.
void nearness(const float *x, int64_t n, double log_mass, double entropy, float *out);
// Whether a stage looks at the edited logits after others have changed x: Candidates::raw.
bool wants_raw(StageKind kind);
// What the streaming pass must find so that the stages can decide; sets mass, moments, sigma and temperature.
void plan(const Program &program, Wants &wants);
// Down to which logit, relative to the maximum, it is worth collecting first.
double first_depth(const Context &context);
// A token was drawn that was so likely among those that the methods with a state look at, nats.
void update_state(const Program &program, double log_probability, State &state);
// That log-probability; NaN where the token is none of them, or it has none.
double update_of(const Basis &basis, uint32_t token);
// All stages in order. True if they could decide; else *depth (relative to the maximum, ≤ 0) is how far down to collect
// instead.
bool refine(const Context &context, double floor, Candidates &candidates, double *depth);

}  // namespace tailrace
