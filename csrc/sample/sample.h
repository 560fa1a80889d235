// The sampler's step over rows of logits: edit, prune, refine, draw, verify drafts, report.
// src/tailrace/kernels/__init__.py has the contracts.
#pragma once
#include "kernels.h"
#include "sample/program.h"
#include "sample/survivors.h"

namespace tailrace {

enum class Rule : int32_t { exact = 0, rejection = 1, block = 2, typical = 3 };

// What a slot asks for in a step, whichever backend draws for it.
struct SlotNeeds {
    int32_t logprobs;  // alternatives to report; −1: none
    int32_t flags;     // of its program
};

// The rows of a step, whichever backend draws for them. There are N requests and R rows. Request i owns the rows
// start[i] … start[i + 1] − 1, and may get up to `width` tokens.
struct StepRows {
    int64_t logits_rows, vocab, slots, rows, requests, width;
    const SlotNeeds *needs;       // by slot
    const int64_t *slot, *source, *position, *start, *draft;  // as in kernels/rows.py
    const int32_t *rule;      // [N], or null: all exact
    const int64_t *mask;      // [R], the index of the row's mask, −1: none; or null
    int64_t num_masks;
    const int64_t *companion; // [R], the logits row that this row is guided away from, −1: none; or null
    const float *scale;       // [R], of the guidance; read if the row has a companion
    // written by check
    int32_t flags;            // the flags of all slots of the step
    int32_t top;              // the largest number of alternatives that a slot asks for, or 0
};

// The arguments and results of one step.
struct Step : StepRows {
    const void *logits;
    Type type;
    int64_t stride;
    const Program *programs;  // by slot; then the programs of single rows
    const float *const *proposals;  // [R], each [vocab]: the q of a row's draft, null: one-hot; null: all are one-hot
    const uint32_t *masks;    // [num_masks, ⌈vocab / 32⌉]
    const int64_t *program;   // [R], the index of the row's program; or null: the row's slot
    // out
    int64_t *token_ids;       // [N, width], −1: no token
    int64_t *num_tokens;      // [N]
    int32_t *status;          // [N]: a Status, or kFallsBack
    double *numbers;          // [N, width, 3 + top], if asked for: logprob, entropy, varentropy in nats, top logprobs
    int64_t *ranks;           // [N, width, 1 + top], if asked for: rank, the top ids
    double *seconds;          // [N], if a program is costly: processor time
    double *updates;          // [N, width], if a program has a state: the number that updates it (Target), NaN: none
    Survivors *survivors;     // [N · width], if asked for

    const Program &program_of(int64_t row) const { return programs[program ? program[row] : slot[row]]; }
};

// The drafts of a step, one per row, with the distributions that they are drawn from.
struct Proposals {
    // in: the noise is that of (the slot's key, begin, stream); the row's methods see the row's own position
    const int64_t *begin, *stream;  // [R]
    // out
    float *const *q;       // [R], each [vocab]; unchanged if the status is not kOk
    int32_t *const *note;  // [R], the note of each q: Written (draw.h); read and written
    int64_t *token_ids;    // [R], −1: no token
    int32_t *status;       // [R]: a Status, or kFallsBack
};

// Check every index in the rows, and write flags and top. Throws FieldError (base/error.h).
void check(StepRows &rows);
// Sample a checked step. A request whose program the kernels do not support gets kFallsBack.
void sample(const Step &step);
// Draw one draft from each row of a checked step. The step's own drafts and rules are ignored.
void propose(const Step &step, const Proposals &to);

}  // namespace tailrace
