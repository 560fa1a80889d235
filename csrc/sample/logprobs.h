// What a drawn token's log-probability, rank and likeliest rivals were.
#pragma once
#include "sample/candidates.h"

namespace tailrace {

// Where one row's report goes. top_ids and top_logprobs have room for `top` entries.
struct Report {
    double *logprob;
    int64_t *rank;
    int64_t *top_ids;
    double *top_logprobs;
    int32_t top;
};

// Of the row as the model gave it: log-softmax of the unedited logits at temperature 1. Uses `space`'s candidates.
void report_raw(const Row &row, const Scan &scan, int64_t token, const Report &out, Workspace &space);
// Of what is drawn from: log-softmax over the candidates. `mass`: Σ e^x over them, the uncollected included.
void report_processed(const Candidates &candidates, double mass, int64_t vocab, int64_t token, const Report &out, Workspace &space);

}  // namespace tailrace
