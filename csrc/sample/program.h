// The program of a row's slot, as the kernels read it: edits and stages in the request's own order. Written by
// src/tailrace/kernels/cpu/program.py (which mirrors these structs), read by the sampler.
#pragma once
#include <cstdint>

#include "sample/constants.h"
#include "sample/counts.h"

namespace tailrace {

enum class EditKind : int32_t { mask = 0, ban = 1, add = 2, penalty = 3, lift = 4 };

// mask: ids points at one bit per token, 32 per word; cleared bits become −inf. ban: `count` ids become −inf. add:
// values[i] is added to ids[i]. lift: of `count` ids l becomes l + |l| · a. penalty: ids points at a Counts; a, b, c
// are repetition, frequency and presence penalty. Ids ascend.
struct Edit {
    EditKind kind;
    int32_t count;
    const void *ids;
    const float *values;
    double a, b, c;
};

// What a stage must know of the row before it can decide.
// - nothing: the stage rescales the collected tokens.
// - depth: the tokens down to a depth. The candidates are complete after the stage.
// - mass: Σ e^x over all tokens. squares: also Σ e^2x. moments: also the entropy.
// - everything: all tokens.
enum class Needs : int32_t { nothing, depth, mass, squares, moments, everything };

// Every kind of stage in the order of its number, with what it needs. A kind has a function of its name (refine.cpp).
// kernels/program.py has the same table; the two are compared when the module is loaded (kernels/cpu/program.py).
#define TAILRACE_STAGES(X)                                                                                                    \
    X(temperature, nothing) X(dynamic_temperature, everything) X(quadratic, everything) X(min_p, depth) X(top_k, depth)       \
    X(top_p, mass) X(top_a, mass) X(typical, moments) X(epsilon, mass) X(eta, moments) X(top_n_sigma, depth)                  \
    X(xtc, everything) X(p_less, squares) X(tail_free, depth) X(top_h, depth) X(min_k, depth) X(mirostat, mass)               \
    X(mirostat_1, depth) X(adaptive, everything) X(tournament, everything)

enum class StageKind : int32_t {
#define X(kind, needs) kind,
    TAILRACE_STAGES(X)
#undef X
};

// A tournament (src/tailrace/sampling/watermark.py): `depth` layers of bits, keyed by the last `context` tokens. A
// token is not marked if the same context also occurs within the `recent` places before.
struct Tournament {
    int64_t key;
    const int64_t *keys;   // a key for each layer in transformers' scheme; null in tailrace's own scheme
    const uint8_t *table;  // the bits of transformers' scheme
    int64_t table_size;
    int32_t depth, context, recent, unused;
};

// The parameters of one refinement. The comment at each stage's function explains k, a, b and c (refine.cpp,
// ordered.cpp, stateful.cpp).
struct Stage {
    StageKind kind;
    int32_t k;
    double a, b, c;
    const Tournament *tournament;
};

// The state of a sequence's methods. mu: mirostat's μ in bits. sum, weight: of adaptive-p's average.
struct State {
    double mu, sum, weight;
};

constexpr int kMaxEdits = 16;
constexpr int kMaxStages = 32;

struct Program {
    int64_t key;
    int64_t forced;    // the token that is taken instead of a draw; −1: none
    Counts *history;   // drafts are added during verification; null: nothing reads it, or rows have their own
    Said *said;        // drafts are added here too; null: nothing reads it
    const uint32_t *exempt;  // ids that XTC never removes
    int32_t num_exempt;
    int32_t repeated, counted;  // what an output token adds to history
    int32_t num_edits, num_stages;
    int32_t logprobs;  // how many alternatives to report; −1: none
    int32_t flags;     // constants.h
    int32_t unused;
    State state;       // after the last token of the sequence
    Edit edits[kMaxEdits];
    Stage stages[kMaxStages];
};

}  // namespace tailrace
