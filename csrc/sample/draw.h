// Draws: by Gumbel-max from candidates, or from a row that was not fully collected; by one uniform number from written
// probabilities.
#pragma once
#include "sample/candidates.h"

namespace tailrace {

constexpr int64_t kNobody = -1;
constexpr int64_t kFew = 256;  // for so few candidates, all noise is computed

// The largest x + noise of the offered tokens, ties to the smaller id.
struct Best {
    const Noise &noise;
    int64_t excluded;
    float *scratch;  // the noise of the offered tokens
    float score = kNone;
    int64_t id = kNobody;

    void offer(const uint32_t *ids, const float *x, int64_t n, bool known_hot = false);
};

// Write the hot ids, ascending. Return their number.
int64_t ids_of(const Hot &hot, uint32_t *ids);

// Copy the hot candidates to space.other_ids and other_x. Return their number.
int64_t hot_among(const Candidates &candidates, const Noise &noise, Workspace &space);

// Return the argmax of x + noise, ties to the smaller id, without `excluded`. `x` need not be sorted; ids ascend.
int64_t draw(const Candidates &candidates, const Noise &noise, int64_t excluded, Workspace &space);

// Return the same over a whole row that only a temperature refines: x = (l − max) / temperature. `candidates` holds the
// tokens down to `floor` (a logit). scan.hot must be filled. The function may collect deeper.
int64_t draw_all(const Row &row, const Scan &scan, double temperature, float floor, Candidates &candidates, const Noise &noise,
                 int64_t excluded, Workspace &space);

// A distribution that is written out. Filling a row with zeros costs as much as a draw. So the ids of few entries are
// noted, and only these entries are zeroed when the memory is used again.
constexpr int64_t kNoted = 1023;
struct Written {
    float *q;       // [vocab]
    int32_t *note;  // [1 + kNoted]: the number of entries that may not be 0, then their ids; −1: any entry
    int64_t vocab;

    void clear();
};
// Write the distribution of a row that only a temperature refines: e^((l − max) / temperature) / mass. Write the sum of
// each 256 entries to `sums`.
void write_row(const Row &row, const Scan &scan, double temperature, Written &to, float *sums);
// Write the distribution of candidates whose weights add up to `mass`. The weights become probabilities.
void write_candidates(Candidates &candidates, double mass, Written &to, float *sums);
// Write a one-hot distribution.
void write_token(int64_t token, Written &to);
// Return the entry at which u in (0, 1) lies in the mass of p [n]. `sums` are the sums of each 256. Some p must be > 0,
// and the returned entry's p is.
int64_t place_of(double u, const float *p, int64_t n, const float *sums);

}  // namespace tailrace
