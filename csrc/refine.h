// The refinements over survivors: what each stage keeps, or how much deeper it must see to know.
#pragma once
#include "survivors.h"

namespace tailrace {

// What the stages may look at besides the survivors.
struct Context {
    const Program &program;
    const Scan &scan;
    int64_t position;
    double mass_temperature;  // scan.mass is of (l − max) / this; 0: there is none
    Workspace &space;
};

constexpr double kEverything = -1e300;  // a depth that only the complete row satisfies

// −|log_mass − x − entropy| of each: how near −ln p is to the entropy.
void nearness(const float *x, int64_t n, double log_mass, double entropy, float *out);
// What the streaming pass must find so that the stages can decide; sets mass, moments, sigma and temperature.
void plan(const Program &program, Wants &wants);
// Down to which logit, relative to the maximum, it is worth collecting first.
double first_depth(const Context &context);
// All stages in order. True if they could decide; else *depth (relative to the maximum, ≤ 0) is how far down to collect instead.
bool refine(const Context &context, double floor, Survivors &survivors, double *depth);

}  // namespace tailrace
