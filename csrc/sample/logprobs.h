// Reports on a drawn token: its log-probability, its rank and the likeliest tokens.
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

// Report on the model's row: log-softmax of the unedited logits at temperature 1. Uses `space`'s candidates.
void report_raw(const Row &row, const Scan &scan, int64_t token, const Report &out, Workspace &space);
// Report on the refined row: log-softmax over the candidates. `mass`: Σ e^x over all of them, collected or not.
void report_processed(const Candidates &candidates, double mass, int64_t vocab, int64_t token, const Report &out, Workspace &space);

}  // namespace tailrace
