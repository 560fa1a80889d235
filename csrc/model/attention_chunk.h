// Attention over one chunk of positions: the scores of query rows, their online softmax, the weighted sums of values.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/simd.h"
#include "model/attention_tiles.h"

namespace tailrace {

constexpr int kRegisterRows = 6;  // query rows (token × head of a KV group) whose sums fit the registers
constexpr int kMostRows = std::max(kRegisterRows, kTileRows);  // query rows at a time, in registers or in tiles
constexpr int kQueryRows = 48;  // query rows that share a chunk of keys and values in the nearest cache
constexpr int kChunk = 64;      // positions per step of the online softmax
constexpr float kMasked = -std::numeric_limits<float>::infinity();  // the score of a masked position
constexpr float kLog2e = 1.44269504088896341f;  // scores are in units of log 2, so that exp becomes 2^x

constexpr uint64_t kAll = ~uint64_t{0};  // all positions of a chunk

// The positions of a chunk that the rows see: row r sees those of [low[r], high[r]) that are selected, a bit each.
struct Seen {
    int low[kMostRows], high[kMostRows];
    uint64_t selected[kMostRows];
    uint64_t bits(int r) const {
        return (high[r] < kChunk ? ~(kAll << high[r]) : kAll) & (low[r] < kChunk ? kAll << low[r] : 0) & selected[r];
    }
};

// s[r][16 i + j] = q_r · k_j for the 16 positions of each of four groups of keys, and at most kRegisterRows rows. keys[i]
// points at a group's [dim / 2][16][2] in bf16, and [dim][16] in float. next: keys to be fetched meanwhile, or null. Fetched
// all at once, they would keep this chunk's loads waiting.
void scores_by_registers(int rows, const bf16 *const *q, const bf16 *const *keys, const bf16 *const *next, int64_t dim,
                         float *s);
void scores_by_registers(int rows, const float *const *q, const float *const *keys, const float *const *next, int64_t dim,
                         float *s);

// Scale and mask the scores s [rows][64], and do a step of the online softmax. Write the weights to p, multiplied by
// `times` unless that is null. Update each row's maximum and sum, and rescale its weighted sum of values in
// out [rows][dim] to the new maximum. T: bf16 or float.
template <typename T>
void soften(float *s, T *p, int rows, const Seen &seen, float scale, float *max, float *sum, const float *times,
            float *out, int64_t dim);

// out[r] += Σ p[r][i] · v_i. values[i] points at the dimensions of pair i of positions, and of position i in float. next: four
// groups of 16 positions' values to be fetched meanwhile, or null.
void weigh_by_registers(int rows, const bf16 *p, const bf16 *const *values, const bf16 *const *next, int count, int64_t dim,
                        float *out);
void weigh_by_registers(int rows, const float *p, const float *const *values, const float *const *next, int count,
                        int64_t dim, float *out);

// x[i] *= by[i] for from <= i < to.
void multiply(float *x, int from, int to, const float *by);

}  // namespace tailrace
