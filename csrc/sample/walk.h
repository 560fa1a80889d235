// One walk through the stages of a program, and the stages that have files of their own. A stage returns true if it
// could decide.
#pragma once
#include <algorithm>
#include <cmath>

#include "sample/refine.h"

namespace tailrace {

// The state of one walk through the stages. While the candidates are incomplete, every uncollected token lies below
// `floor` in the scale of x, and x is (l − max) / temperature: stages that change the scale in another way need all
// tokens.
struct Walk {
    const Context &context;
    Candidates &s;
    double floor;
    double temperature = 1.0;
    double needed = 0;  // the depth, in the scale of x, that an undecided stage needs

    bool undecided(double depth) {
        needed = depth;
        return false;
    }
    // Set s.mass to Σ e^x over the candidates, collected or not. Return false if the sum can't be known.
    bool know_mass() {
        if (s.mass >= 0) return true;
        if (s.complete) s.mass = collected_mass(s);
        else if (context.mass_temperature == temperature) s.mass = context.scan.mass.total;
        return s.mass >= 0;
    }
    // Keep x ≥ at, within the tolerance. The likeliest tokens stay.
    bool cut(double at) { return cut_exactly(at - kTolerance); }
    bool cut_exactly(double at) {
        const double bound = std::min(at, 0.0);
        if (!s.complete && floor > bound) return undecided(bound);
        keep_above(s, bound);
        narrowed();
        return true;
    }
    void narrowed() {
        s.complete = true;
        s.mass = -1;
    }
    // Forget the weights and the mass, because x changed.
    void rescaled() {
        s.weighted = false;
        s.mass = -1;
    }
    bool know_entropy(double *entropy) {
        if (!know_mass()) return false;
        if (!s.complete) {
            *entropy = context.scan.mass.entropy();
            return true;
        }
        weigh(s);
        double first = 0;
        for (int64_t i = 0; i < s.n; ++i)
            if (s.weights[i] > 0) first += static_cast<double>(s.weights[i]) * s.x[i];
        *entropy = std::log(s.mass) - first / s.mass;
        return true;
    }
    // Make the largest x 0 again, because the likeliest token may be gone.
    void lifted() {
        float top = kNone;
        for (int64_t i = 0; i < s.n; ++i) top = std::max(top, s.x[i]);
        if (top == 0) return;
        for (int64_t i = 0; i < s.n; ++i) s.x[i] -= top;
        rescaled();
    }
    // Ask for twice the depth, or for all tokens if much of the row is collected already.
    bool deeper() { return undecided(much() ? kEverything : 2.0 * floor - 1.0); }
    bool much() const { return floor <= -50.0 || 4 * s.n > context.scan.vocab; }
    // Ask for a depth that holds the `count` likeliest tokens.
    bool deeper_for(int64_t count) {
        const float reached = reached_by(context.scan.block_max, context.scan.blocks, count, context.space);
        const double depth = (reached - context.scan.max) / temperature;
        return reached > kNone && depth < floor ? undecided(depth) : deeper();
    }
    // Store the remaining candidates: the state is updated from them.
    void note_basis() {
        know_mass();
        Basis &basis = context.space.basis;
        basis.ids.assign(s.ids, s.ids + s.n);
        basis.x.assign(s.x, s.x + s.n);
        basis.log_mass = std::log(s.mass);
    }
};

// ordered.cpp
bool tail_free(Walk &walk, const Stage &stage);
bool top_h(Walk &walk, const Stage &stage);
bool min_k(Walk &walk, const Stage &stage);
// stateful.cpp
bool mirostat(Walk &walk, const Stage &stage);
bool mirostat_1(Walk &walk, const Stage &stage);
bool adaptive(Walk &walk, const Stage &stage);
// tournament.cpp
bool tournament(Walk &walk, const Stage &stage);

// Put the rank keys of the `count` likeliest tokens, or of all, into space.order, in order. Return their number.
int64_t likeliest(const Ranked &among, int64_t count, Workspace &space);
// kCandidates: number of the likeliest tokens that top-H and mirostat 1 look at. kCliffs: number for min-k's first try.
constexpr int64_t kCandidates = 100, kCliffs = 256;

}  // namespace tailrace
