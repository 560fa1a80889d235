// Stages with a state that is updated by each drawn token: mirostat (arXiv 2007.14966) and adaptive-p (llama.cpp).
#include <limits>

#include "base/simd.h"
#include "sample/walk.h"

namespace tailrace {
namespace {

// Return the number of tokens that a Zipf law of exponent s keeps at surprise μ: all if the formula has no finite
// value.
double zipf_k(double s, double mu, double vocab) {
    const double epsilon = s - 1.0;
    if (s <= 0.0) return vocab;
    const double share = std::fabs(epsilon) > 1e-12 ? -std::expm1(-epsilon * std::log(vocab)) / epsilon : std::log(vocab);
    const double log_k = (mu * kLn2 - std::log(share)) / s;
    return log_k >= std::log(vocab) ? vocab : std::max(1.0, std::trunc(std::exp(log_k)));
}

TAILRACE_CLONES void exponentials(const float *x, int64_t n, double *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = exponential(static_cast<double>(x[i]));
}

// Replace e^x by peak − sharpness · d² / (1 + d), d = |p − aim| / width. In double, because unlikely tokens become
// nearly equal and a later stage may order them.
TAILRACE_CLONES void reshape(double *p, int64_t n, double mass, double aim) {
    for (int64_t i = 0; i < n; ++i) {
        const double d = std::fabs(p[i] / mass - aim) / kAdaptiveWidth;
        p[i] = kAdaptivePeak - kAdaptiveSharpness * d * d / (1.0 + d);
    }
}

}  // namespace

// Keep −log2 p ≤ μ, or the likeliest token alone if there is none. a: τ in bits, b: η, as in mirostat_1.
bool mirostat(Walk &walk, const Stage &) {
    if (!walk.know_mass()) return walk.undecided(kEverything);
    const double bound = std::log(walk.s.mass) - walk.context.state.mu * kLn2;
    if (!walk.cut(bound)) return false;
    if (bound > kTolerance) keep(walk.s, nth(ranked(walk.s), 1, walk.context.space));
    walk.note_basis();
    return true;
}

// Keep the k likeliest tokens. k follows from the Zipf exponent of the hundred likeliest.
bool mirostat_1(Walk &walk, const Stage &) {
    Candidates &s = walk.s;
    Workspace &space = walk.context.space;
    if (!s.complete && s.n < kCandidates) return walk.deeper();
    const int64_t n = likeliest(ranked(s), kCandidates, space);
    if (n > 1) {
        double both = 0, squares = 0;
        for (int64_t i = 0; i + 1 < n; ++i) {
            const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
            both += t * (static_cast<double>(boundary(space.order[i]).x) - boundary(space.order[i + 1]).x);
            squares += t * t;
        }
        const double k = zipf_k(both / squares, walk.context.state.mu, static_cast<double>(walk.context.scan.vocab));
        if (!s.complete && k > static_cast<double>(s.n)) return walk.deeper_for(static_cast<int64_t>(k));
        if (k < static_cast<double>(s.n)) keep(s, nth(ranked(s), static_cast<int64_t>(k), space));
        walk.narrowed();
    }
    walk.note_basis();
    return true;
}

// a: target, b: decay.
bool adaptive(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    if (!s.complete) return walk.undecided(kEverything);
    walk.note_basis();
    const State &state = walk.context.state;
    std::vector<double> &p = walk.context.space.exact;
    p.resize(std::max(p.size(), static_cast<size_t>(s.n)));
    exponentials(s.x, s.n, p.data());
    double mass = 0, top = kNone;
    for (int64_t i = 0; i < s.n; ++i) mass += p[i];
    reshape(p.data(), s.n, mass, std::clamp(2.0 * stage.a - state.sum / state.weight, 0.0, 1.0));
    for (int64_t i = 0; i < s.n; ++i) top = std::max(top, p[i]);
    for (int64_t i = 0; i < s.n; ++i) s.x[i] = static_cast<float>(p[i] - top);
    walk.rescaled();
    return true;
}

void update_state(const Program &program, double log_probability, State &state) {
    if (std::isnan(log_probability)) return;
    for (int32_t i = 0; i < program.num_stages; ++i) {
        const Stage &stage = program.stages[i];
        if (stage.kind == StageKind::mirostat || stage.kind == StageKind::mirostat_1)
            state.mu -= stage.b * (-log_probability / kLn2 - stage.a);
        if (stage.kind == StageKind::adaptive) {
            state.sum = std::exp(log_probability) + stage.b * state.sum;
            state.weight = 1.0 + stage.b * state.weight;
        }
    }
}

double update_of(const Basis &basis, uint32_t token) {
    const auto at = std::lower_bound(basis.ids.begin(), basis.ids.end(), token);
    if (at == basis.ids.end() || *at != token) return std::numeric_limits<double>::quiet_NaN();
    return basis.x[static_cast<size_t>(at - basis.ids.begin())] - basis.log_mass;
}

}  // namespace tailrace
