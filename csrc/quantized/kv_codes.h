// Keys and values in eight bits: a code per number, and a float32 scale per head of a token. Number ≈ code · scale.
//
// A code depends on its own token's head alone, and its bits are the same on every instruction set. Codes of float8 are
// exact in bfloat16, so widening rounds nothing.
#pragma once
#include "base/simd.h"

namespace tailrace {

// none: numbers as they are. int8: whole numbers from −127 to 127. fp8: float8 e4m3 (4 bits of exponent, 3 of fraction,
// largest 448, no infinity; arXiv 2209.05433).
enum class KvCode : int { none = 0, int8 = 1, fp8 = 2 };

// Codes of x[0 … n), one head of one token; returns their scale: the largest magnitude over the largest code, rounded
// to nearest. Numbers all below 2^-100 become zeros. NaN or infinity among them makes the scale NaN: the token's
// attention is then NaN, as it is with numbers.
float encode(KvCode kind, const float *x, int64_t n, uint8_t *codes);

// codes[0 … n) of float8 as numbers, without their scale.
void widen_float8(const uint8_t *codes, int64_t n, bf16 *out);
void widen_float8(const uint8_t *codes, int64_t n, float *out);

}  // namespace tailrace
