// The sampler for rows of logits: edit, prune, refine, draw, report; and the verification of drafts. Contracts:
// kernels/__init__.py.
#pragma once
#include <vector>

#include "kernels.h"
#include "program.h"

namespace tailrace {

// The ids that survived, ascending, of each token of a step: it is known only afterwards how many there are.
struct Survivors {
    std::vector<std::vector<int32_t>> of;

    // From bits [of.size(), words], 32 ids in a word.
    void read(const uint32_t *bits, int64_t words);
    int64_t total() const;
    // ids [total], one token's behind the other's; offsets [of.size() + 1]: where each one's begin, and the end.
    void write(int32_t *ids, int64_t *offsets) const;
};

enum class Rule : int32_t { exact = 0, rejection = 1, block = 2, typical = 3 };

// What a slot asks of a step, whichever backend draws for it.
struct SlotNeeds {
    int32_t logprobs;  // alternatives to report; −1: none
    int32_t flags;     // of its program
};

// The rows of a step, whichever backend draws for them. N requests; request i owns rows start[i] … start[i + 1] − 1. K
// + 1 = width: tokens a request may get.
struct StepRows {
    int64_t logits_rows, vocab, slots, rows, requests, width;
    const SlotNeeds *needs;       // by slot
    const int64_t *slot, *source, *position, *start, *draft;  // as in kernels/rows.py
    const int32_t *rule;      // [N], or null: all exact
    const int64_t *mask;      // [R], the row's place among the masks, −1: none; or null
    int64_t num_masks;
    const int64_t *companion; // [R], the logits row that this row is guided away from, −1: none; or null
    const float *scale;       // [R], of the guidance; where there is a companion
    // found by check
    int32_t flags;            // all that is set in any slot of the step
    int32_t top;              // the most alternatives that a slot asks for; 0 where none does
};

// One step for these kernels.
struct Step : StepRows {
    const void *logits;
    Type type;
    int64_t stride;
    const Program *programs;  // by slot; behind them, those of single rows
    const float *const *proposals;  // [R], each [vocab]: a row's q, null where it is one-hot; null: all are one-hot
    const uint32_t *masks;    // [num_masks, ⌈vocab / 32⌉]
    const int64_t *program;   // [R], the row's place in programs; or null: its slot
    // out
    int64_t *token_ids;       // [N, width], −1 where there is none
    int64_t *num_tokens;      // [N]
    int32_t *status;          // [N]: a Status, or kFallsBack
    double *numbers;          // [N, width, 3 + top], if asked for: logprob, entropy, varentropy in nats, top logprobs
    int64_t *ranks;           // [N, width, 1 + top], where a program asks: rank, the top ids
    double *seconds;          // [N], where a program is costly: of processor time
    double *updates;          // [N, width], where a program has a state: what updates it, see Target; NaN: nothing
    Survivors *survivors;     // [N · width], where a program asks

    const Program &program_of(int64_t row) const { return programs[program ? program[row] : slot[row]]; }
};

// Where drafts go that are drawn from a distribution which is kept, one for each row of a step.
struct Proposals {
    // in: the noise is that of (the slot's key, begin, stream); a row's own position is what its methods see
    const int64_t *begin, *stream;  // [R]
    // out
    float *const *q;       // [R], each [vocab]; as it was where the status is not kOk
    int32_t *const *note;  // [R], of each q: Written (draw.h); also read
    int64_t *token_ids;    // [R], −1 where there is none
    int32_t *status;       // [R]: a Status, or kFallsBack
};

// Throws std::invalid_argument where the rows' numbers point outside of what they point into.
void check(StepRows &rows);
// Wants what check has found. Requests that ask for what the kernels don't have get kFallsBack.
void sample(const Step &step);
// The same, for a draft out of each row. The step's own drafts and rules are not looked at.
void propose(const Step &step, const Proposals &to);

}  // namespace tailrace
