#include "sample/refine.h"

#include "base/simd.h"
#include "sample/walk.h"

namespace tailrace {
namespace {

constexpr int32_t kSpare = 16;  // number of blocks whose maximum is only a bound and may lie below it

// Return the depth that p-less keeps: ln of its threshold relative to the likeliest token, from Σ e^x and Σ e^2x.
double p_less_depth(double mass, double squares, const Scan &scan, const Stage &stage) {
    const double vocab = static_cast<double>(scan.vocab), agree = squares / (mass * mass);
    const double least = stage.k == 0 ? agree : vocab > 1 ? (vocab * agree - 1.0) / (vocab - 1.0) : 0.0;
    return least > 0 ? std::max(std::log(least * mass), kEverything) : kEverything;
}

// Divide x, and drop tokens whose x becomes −inf: a temperature of 1e-45 leaves the maximum and its equals.
bool temperature(Walk &walk, const Stage &stage) {
    if (walk.temperature * stage.a < 1e-30 && !walk.s.complete) {  // the bounds of an incomplete set would overflow
        const double all_but_equal = -1e-20;
        if (walk.floor > all_but_equal) return walk.undecided(all_but_equal);
    }
    divide(walk.s.x, walk.s.n, stage.a);
    if (stage.a < 1.0 && deepest(walk.s.x, walk.s.n) == kNone) keep_above(walk.s, kLowest);
    walk.floor /= stage.a;
    walk.temperature *= stage.a;
    walk.rescaled();
    return true;
}

// T = max(0, a − b) + (a + b − max(0, a − b)) · (H / ln n)^c; a: temperature, b: range, c: exponent.
bool dynamic_temperature(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    if (!s.complete) return walk.undecided(kEverything);
    if (s.n == 1) return true;
    double entropy = 0;
    walk.know_entropy(&entropy);
    const double low = std::max(0.0, stage.a - stage.b), high = stage.a + stage.b;
    const double t = low + (high - low) * std::pow(std::max(0.0, entropy) / std::log(static_cast<double>(s.n)), stage.c);
    if (t <= 0) return walk.cut_exactly(0.0);
    divide(s.x, s.n, t);
    keep_above(s, kLowest);
    walk.rescaled();
    return true;
}

// x' = −d² (k + q d) with d = −x, k = s (3 − c) / 2, q = s (c − 1) / 2; a: factor s, b: curve c.
bool quadratic(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    if (!s.complete) return walk.undecided(kEverything);
    const double k = stage.a * (3.0 - stage.b) / 2.0, q = stage.a * (stage.b - 1.0) / 2.0;
    for (int64_t i = 0; i < s.n; ++i) {
        const double d = -static_cast<double>(s.x[i]);
        s.x[i] = static_cast<float>(-d * d * (k + q * d));
    }
    keep_above(s, kLowest);
    walk.rescaled();
    return true;
}

bool min_p(Walk &walk, const Stage &stage) { return walk.cut(std::log(stage.a)); }

bool top_k(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    if (s.complete && stage.k >= s.n) return true;
    if (s.n < stage.k)  // some block maxima were only bounds, so look deeper
        return walk.undecided(walk.context.scan.bounds && walk.floor > -50.0 ? 2.0 * walk.floor - 1.0 : kEverything);
    keep(s, nth(ranked(s), stage.k, walk.context.space));
    walk.narrowed();
    return true;
}

bool top_p(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    if (!walk.know_mass()) return walk.undecided(kEverything);
    const double target = stage.a * s.mass * (1.0 - kTolerance);
    if (!s.complete && !(collected_mass(s) >= target)) {
        // All tokens below (1 − top_p) / V weigh less than 1 − top_p together, so the tokens above suffice. First try
        // half-way there.
        const double sure = std::log(0.5 * (1.0 - stage.a) * s.mass / static_cast<double>(walk.context.scan.vocab));
        if (walk.floor <= sure) return walk.undecided(kEverything);  // rounding alone keeps the sum below
        return walk.undecided(walk.floor > -8.0 && sure < -8.0 ? -8.0 : sure);
    }
    weigh(s);
    keep(s, reaching(ranked(s), target, walk.context.space));
    walk.narrowed();
    return true;
}

// p ≥ a · p₁², and p₁ = 1 / mass
bool top_a(Walk &walk, const Stage &stage) {
    return walk.know_mass() ? walk.cut(std::log(stage.a) - std::log(walk.s.mass)) : walk.undecided(kEverything);
}

bool epsilon(Walk &walk, const Stage &stage) {
    return walk.know_mass() ? walk.cut(std::log(stage.a) + std::log(walk.s.mass)) : walk.undecided(kEverything);
}

// p ≥ min(a, √a · e^−H)
bool eta(Walk &walk, const Stage &stage) {
    double entropy = 0;
    if (!walk.know_entropy(&entropy)) return walk.undecided(kEverything);
    const double log_eta = std::log(stage.a);
    return walk.cut(std::min(log_eta, 0.5 * log_eta - entropy) + std::log(walk.s.mass));
}

// Keep the tokens with the smallest |−ln p − H| until their mass exceeds a. Uncollected tokens are less likely than all
// candidates. If the candidates nearer to H than any uncollected token suffice, no uncollected token is kept.
bool typical(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    Workspace &space = walk.context.space;
    double entropy = 0;
    if (!walk.know_entropy(&entropy)) return walk.undecided(kEverything);
    const double log_mass = std::log(s.mass), target = stage.a * s.mass * (1.0 - kTolerance);
    weigh(s);
    float *nearby = space.noise.data();
    nearness(s.x, s.n, log_mass, entropy, nearby);
    const Ranked nearest{s.ids, nearby, s.weights, s.n};
    const bool enough = s.complete || collected_mass(s) >= target;
    const Boundary last = enough ? reaching(nearest, target, space) : Boundary{kNone, 0};
    const double nearest_unseen = log_mass - walk.floor - entropy;
    if (!s.complete && (!enough || -static_cast<double>(last.x) >= nearest_unseen))
        return walk.undecided(walk.floor > -50.0 ? 2.0 * walk.floor : kEverything);
    for (int64_t i = 0; i < s.n; ++i)
        space.flags[i] = nearby[i] > last.x || (nearby[i] == last.x && s.ids[i] <= last.id);
    keep_flagged(s, space.flags.data());
    walk.narrowed();
    walk.lifted();
    return true;
}

// l ≥ l_max − a · σ, σ over the whole edited row; the largest remaining logit stays
bool top_n_sigma(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    const double at = -stage.a * walk.context.scan.sigma * kSigmaSlack;
    if (!s.complete && walk.floor * walk.temperature > at) return walk.undecided(at / walk.temperature);
    float largest = kNone;  // an earlier stage may have removed the row's largest logit
    for (int64_t i = 0; i < s.n; ++i) largest = std::max(largest, s.raw[i]);
    const double bound = std::min(at, static_cast<double>(largest));
    for (int64_t i = 0; i < s.n; ++i) walk.context.space.flags[i] = static_cast<double>(s.raw[i]) >= bound;
    keep_flagged(s, walk.context.space.flags.data());
    walk.narrowed();
    walk.lifted();
    return true;
}

// With probability b, remove all tokens with p ≥ a but the least likely of them. Exempt tokens are never removed and do
// not count.
bool xtc(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    const Program &program = walk.context.program;
    if (uniform({static_cast<uint64_t>(program.key), static_cast<uint64_t>(walk.context.position), kXtcStream}) >= stage.b)
        return true;
    if (!s.complete) return walk.undecided(kEverything);
    walk.know_mass();
    const double bound = std::log(stage.a * s.mass) - kTolerance;
    int64_t least = -1, found = 0;
    uint8_t *flags = walk.context.space.flags.data();
    for (int64_t i = 0; i < s.n; ++i) {
        const bool safe = std::binary_search(program.exempt, program.exempt + program.num_exempt, s.ids[i]);
        flags[i] = safe || s.x[i] < bound;
        if (flags[i]) continue;
        ++found;
        if (least < 0 || s.x[i] <= s.x[least]) least = i;
    }
    if (found < 2) return true;
    flags[least] = 1;
    keep_flagged(s, flags);
    walk.narrowed();
    walk.lifted();
    return true;
}

// p ≥ Σ p², the probability that two draws agree; k = 1: p ≥ (V Σ p² − 1) / (V − 1). The likeliest stays.
bool p_less(Walk &walk, const Stage &stage) {
    if (!walk.know_mass()) return walk.undecided(kEverything);
    const Candidates &s = walk.s;
    return walk.cut(p_less_depth(s.mass, s.complete ? collected_squares(walk.s) : walk.context.scan.mass.squares, walk.context.scan, stage));
}

using Apply = bool (*)(Walk &, const Stage &);
#define X(kind, needs) kind,
constexpr Apply kApply[] = {TAILRACE_STAGES(X)};
#undef X
#define X(kind, needs) Needs::needs,
constexpr Needs kNeeds[] = {TAILRACE_STAGES(X)};
#undef X

Needs needs_of(StageKind kind) { return kNeeds[static_cast<int>(kind)]; }
bool needs_mass(Needs needs) { return needs == Needs::mass || needs == Needs::squares || needs == Needs::moments; }
// Return the number of likeliest tokens that a stage asks for.
int64_t asked_for(const Stage &stage) {
    return stage.kind == StageKind::top_k ? stage.k : stage.kind == StageKind::min_k ? kCliffs : kCandidates;
}

}  // namespace

TAILRACE_CLONES void nearness(const float *x, int64_t n, double log_mass, double entropy, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = -static_cast<float>(std::fabs(log_mass - x[i] - entropy));
}

bool wants_raw(StageKind kind) { return kind == StageKind::top_n_sigma || kind == StageKind::min_k; }

void plan(const Program &program, Wants &wants) {
    for (int32_t i = 0; i < program.num_stages; ++i) wants.sigma |= program.stages[i].kind == StageKind::top_n_sigma;
    double temperature = 1.0;
    for (int32_t i = 0; i < program.num_stages; ++i) {
        const Stage &stage = program.stages[i];
        const Needs needs = needs_of(stage.kind);
        if (needs == Needs::depth || needs == Needs::everything) return;
        if (stage.kind == StageKind::temperature) temperature *= stage.a;
        if (needs_mass(needs)) {
            wants.mass = true;
            wants.moments = needs == Needs::moments;
            wants.squares = needs == Needs::squares;
            wants.temperature = temperature;
            return;
        }
    }
}

double first_depth(const Context &context) {
    const Program &program = context.program;
    const Scan &scan = context.scan;
    double temperature = 1.0, depth = kEverything;
    for (int32_t i = 0; i < program.num_stages; ++i) {
        const Stage &stage = program.stages[i];
        const Needs needs = needs_of(stage.kind);
        if (needs == Needs::everything && depth == kEverything) return depth;
        if (needs == Needs::everything) break;
        const double slack = 1.0 + 1e-6;  // rounding must not make the first try fail
        const auto below = [slack](double bound) { return (bound - kTolerance) * slack; };
        switch (stage.kind) {
            case StageKind::temperature: temperature *= stage.a; break;
            case StageKind::min_p: depth = std::max(depth, temperature * below(std::log(stage.a))); break;
            case StageKind::top_n_sigma: depth = std::max(depth, -stage.a * scan.sigma * kSigmaSlack * slack); break;
            case StageKind::top_k: case StageKind::top_h: case StageKind::min_k: case StageKind::mirostat_1: {
                // the k-th largest block maximum has k tokens at or above it
                const float reached = reached_by(scan.block_max, scan.blocks, asked_for(stage) + (scan.bounds ? kSpare : 0), context.space);
                if (reached > kNone) depth = std::max(depth, static_cast<double>(reached) - scan.max);
                break;
            }
            case StageKind::epsilon: depth = std::max(depth, temperature * below(std::log(stage.a) + std::log(scan.mass.total))); break;
            case StageKind::mirostat:
                depth = std::max(depth, temperature * below(std::log(scan.mass.total) - context.state.mu * kLn2));
                break;
            case StageKind::tail_free: depth = std::max(depth, -8.0 * temperature); break;
            case StageKind::p_less:
                if (scan.mass.squares > 0)
                    depth = std::max(depth, std::min(0.0, temperature * below(p_less_depth(scan.mass.total, scan.mass.squares, scan, stage))));
                break;
            default:  // a nucleus; a kind without a case that needs no mass sees every token
                if (needs_mass(needs)) depth = std::max(depth, -4.0 * temperature);
        }
        if (depth > kEverything && stage.kind != StageKind::temperature && !needs_mass(needs)) break;
    }
    return std::min(depth, 0.0);  // a bound above the likeliest keeps the likeliest
}

bool refine(const Context &context, double floor, Candidates &candidates, double *depth) {
    Walk walk{context, candidates, floor};
    const Program &program = context.program;
    for (int32_t i = 0; i < program.num_stages; ++i) {
        const Stage &stage = program.stages[i];
        if (kApply[static_cast<int>(stage.kind)](walk, stage)) continue;
        *depth = walk.needed == kEverything ? kEverything : walk.needed * walk.temperature * (1.0 + 1e-6);
        return false;
    }
    return true;
}

}  // namespace tailrace
