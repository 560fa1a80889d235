// Gumbel-max over candidates, and over what was not collected of a row; by one number, from probabilities that are
// written down.
#pragma once
#include "sample/candidates.h"

namespace tailrace {

constexpr int64_t kNobody = -1;
constexpr int64_t kFew = 256;  // for so few candidates, all noise is computed

// The largest x + noise of what was offered, ties to the smaller id.
struct Best {
    const Noise &noise;
    int64_t excluded;
    float *scratch;  // the noise of the offered tokens
    float score = kNone;
    int64_t id = kNobody;

    void offer(const uint32_t *ids, const float *x, int64_t n, bool known_hot = false);
};

// The hot ids, ascending; how many.
int64_t ids_of(const Hot &hot, uint32_t *ids);

// The candidates that are hot, put into space.other_ids and other_x; how many.
int64_t hot_among(const Candidates &candidates, const Noise &noise, Workspace &space);

// argmax of x + noise, ties to the smaller id, without `excluded`. `x` need not be sorted; ids ascend.
int64_t draw(const Candidates &candidates, const Noise &noise, int64_t excluded, Workspace &space);

// The same over the whole row where only (l − max) / temperature was asked for. `candidates` holds the row down to
// `floor` (a logit); scan.hot must be there. May collect deeper.
int64_t draw_all(const Row &row, const Scan &scan, double temperature, float floor, Candidates &candidates, const Noise &noise,
                 int64_t excluded, Workspace &space);

// A distribution written out. To fill all of a row with zeros would cost as much as to draw, so where it has few
// entries they are noted, and zeroed one by one when the memory is used again.
constexpr int64_t kNoted = 1023;
struct Written {
    float *q;       // [vocab]
    int32_t *note;  // [1 + kNoted]: how many entries may not be 0, and which; −1: any
    int64_t vocab;

    void clear();
};
// Of a row that only a temperature refines: e^((l − max) / temperature) / mass. The sum of each 256 goes to `sums`.
void write_row(const Row &row, const Scan &scan, double temperature, Written &to, float *sums);
// The same of candidates whose weights add up to `mass`; the weights become probabilities.
void write_candidates(Candidates &candidates, double mass, Written &to, float *sums);
// One-hot.
void write_token(int64_t token, Written &to);
// Where u in (0, 1) lies in the mass of p [n], of which `sums` are those of each 256. Its p is > 0; some p must be.
int64_t place_of(double u, const float *p, int64_t n, const float *sums);

}  // namespace tailrace
