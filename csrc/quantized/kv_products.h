// Attention over keys and values in codes of int8: scores, softmax and weighted sums by dot products of eight bits.
//
// Queries and weights become two codes of seven bits each, number ≈ scale · (128 · high + low). So their rounding is small
// beside that of the cache's codes. The integer sums are exact, and the float part has one order. So the result has the
// same bits on every instruction set.
//
// Layout. Keys of 16 positions: [dim / 4][16][4] bytes, so that one load has four dimensions of 16 positions. Values of 16
// positions: [4][dim][4] bytes, four positions side by side.
#pragma once
#include <cstdint>

namespace tailrace {

constexpr int kCodedRows = 16;       // query rows at a time
constexpr int kCodedPositions = 64;  // positions of a chunk

// Return how many numbers of a key lie side by side: four, or two if four don't divide their number.
constexpr int64_t key_quad(int64_t dim) { return dim % 4 ? 2 : 4; }

// Query rows as codes. |high| ≤ 127, |low| ≤ 64.
struct QueryCodes {
    int8_t *high, *low;  // [rows][dim]
    float *scale;        // [rows]; NaN if the row is not finite
    int32_t *start;      // [rows][2]: −128 · Σ high, −128 · Σ low

    QueryCodes from(int row, int64_t dim) const { return {high + row * dim, low + row * dim, scale + row, start + 2 * row}; }
};

// A chunk's keys and values, sixteen positions each. The positions behind `groups` are hidden; their pointers are valid.
struct CodedChunk {
    const uint8_t *keys[4], *values[4];
    const float *key_scales[4], *value_scales[4];
    int groups;
    const uint8_t *next_keys[4], *next_values[4];  // what is read next: to be fetched meanwhile
    bool fetch;                                    // whether these rows fetch it
};

// The weights of query rows as codes from 0 to 127, and what stands beside them.
struct WeightCodes {
    alignas(64) uint8_t high[kCodedRows * kCodedPositions];
    alignas(64) uint8_t low[kCodedRows * kCodedPositions];
    alignas(64) float scale[kCodedRows];  // a weight is scale · (128 · high + low); NaN if a weight is NaN
    alignas(64) float decay[kCodedRows];  // the factor of the row's former sums
};

// Write the codes of a query row [dim] to the first row of `to`.
void code_query(const float *query, int64_t dim, const QueryCodes &to);

// s[r][64] = query · key, of at most kCodedRows rows.
void score_codes(int rows, const QueryCodes &queries, const CodedChunk &chunk, int64_t dim, float *s);

// Scale and mask the scores s [rows][64], and do a step of the online softmax: update each row's maximum and sum, and
// write the weights times their values' scales to `to`. seen: per row a bit per position that the row sees.
void soften_codes(const float *s, int rows, const uint64_t *seen, float scale, const CodedChunk &chunk, float *max,
                  float *sum, WeightCodes &to);

// out[r][dim] = out · decay + Σ weight · value.
void weigh_codes(int rows, const WeightCodes &weights, const CodedChunk &chunk, int64_t dim, float *out);

}  // namespace tailrace
