// Scores and weighted sums of attention by Intel's tiles (AMX), sixteen query rows at a time. Each row's sums are taken
// in the same order whatever other rows are in its tile.
#pragma once
#include "base/simd.h"

namespace tailrace {

constexpr int kTileRows = 16;

// Whether the machine has tiles of bfloat16, and heads of these sizes fill them.
bool attention_tiles_serve(int64_t head_dim, int64_t value_dim);

// A thread's tiles, for at most `rows` rows at a time; both functions below read and write as many.
void begin_attention_tiles(int rows);
void end_attention_tiles();

// s[r][0 … 64) = q_r · k for four times 16 positions. q: [rows][dim]; keys: four of [dim/2][16][2].
void scores_by_tiles(const bf16 *q, const bf16 *const *keys, int64_t dim, float *s);
// out[r] += Σ p[r][i] · v_i for `groups` times 16 positions. p: [rows][64]; values: groups of [8][dim][2]; out: [rows][dim].
void weigh_by_tiles(const bf16 *p, const bf16 *const *values, int groups, int64_t dim, float *out);

}  // namespace tailrace
