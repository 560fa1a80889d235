// Weights in blocks of few bits, as GGUF files (and others) hold them, in an order of their own: docs/quantized.md.
//
// A panel is 64 outputs. A block is 32 inputs of a panel. All blocks of a panel follow each other, so that a call reads
// one stream. A block is its scales, then its codes in planes of bits; formats whose scales are products of two numbers
// (GGUF's K types) have a head per 8 blocks with the factor that these share. Nothing is rounded: a weight is
// (code − offset) · scale + minimum in float32, with the scale and the minimum that gguf.dequantize makes.
#pragma once
#include "base/simd.h"
#include "kernels.h"

namespace tailrace {

constexpr int64_t kBlock = 32;              // inputs that share a scale (or two, of 16 each)
constexpr int64_t kSuper = 8;               // blocks that share a head
constexpr int64_t kCell = kPack * kBlock;   // weights of a block of a panel
constexpr int64_t kTile = 16;               // rows of activations that lie together

enum class Codes : int { four, five, six, eight, iq4, mxfp4 };
// half: float16. half_min: scale and minimum as float16. nested_min: 8 bits each, times float16 of the head.
// nested: 8 bits with a sign for 16 inputs, times float16 of the head. power: the upper half of a float32.
// half_zero: float16 and a zero point, a byte that is taken from every code. single, single_zero: the same in float32.
enum class Scales : int { half, half_min, nested_min, nested, power, half_zero, single, single_zero };

// How a type of blocks is packed.
struct Format {
    int type;  // GGUF's number; tailrace's own types from 1000 on
    Codes codes;
    Scales scales;
    int offset;  // code minus value
    int64_t block, bytes;  // weights and bytes of a block in the file
};

// Return the format of a type, or null for an unknown type.
const Format *format_of(int type);

constexpr int kSixteen = 16;
inline int halves(const Format &f) { return f.scales == Scales::nested ? 2 : 1; }
inline bool has_zero(const Format &f) { return f.scales == Scales::half_zero || f.scales == Scales::single_zero; }
inline bool has_single(const Format &f) { return f.scales == Scales::single || f.scales == Scales::single_zero; }
// Sums of integers may be shifted: they begin at the bits of 1.5 · 2^23 = c, and are less than 2^22 in magnitude, so
// that as a float32 they are c + sum. Then fma(c + sum, scale, −c · scale) is float(sum) · scale, rounded once, without
// a conversion: c · scale is exact where 3 · scale is, that is, with at most 22 bits, as float16 and its products with
// a byte have.
constexpr int32_t kShift = 0x4b400000;
constexpr float kShiftFloat = 12582912.0f;
inline bool can_shift(const Format &f) { return !has_single(f) && f.scales != Scales::power; }
// A zero point is a minimum of −scale · zero point.
inline bool has_min(const Format &f) {
    return f.scales == Scales::half_min || f.scales == Scales::nested_min || has_zero(f);
}
inline int64_t head_bytes(const Format &f) {
    return f.scales == Scales::nested_min ? 4 * kPack : f.scales == Scales::nested ? 2 * kPack : 0;
}
// Of an output's block: its scale, then its minimum or zero point.
inline int64_t scale_bytes(const Format &f) {
    return ((f.scales == Scales::half_min || has_single(f) ? 4 : 2) + has_zero(f)) * kPack;
}
inline int64_t code_bytes(const Format &f) {
    const int bits = f.codes == Codes::five ? 5 : f.codes == Codes::six ? 6 : f.codes == Codes::eight ? 8 : 4;
    return kCell / 8 * bits;
}
inline int64_t panel_bytes(const Format &f, int64_t k) {
    const int64_t blocks = k / kBlock;
    return blocks * (scale_bytes(f) + code_bytes(f)) + (blocks + kSuper - 1) / kSuper * head_bytes(f);
}
// Return the address of a panel's block, which begins with its scales. Its head is head(f, panel, block).
inline int64_t block_at(const Format &f, int64_t block) {
    return block * (scale_bytes(f) + code_bytes(f)) + (block / kSuper + 1) * head_bytes(f);
}
inline int64_t head_at(const Format &f, int64_t block) { return block_at(f, block / kSuper * kSuper) - head_bytes(f); }

// A few blocks of a panel, widened. codes: [block][k/4][64][4], as vpdpbusd and AMX take them: unsigned, or with
// their sign. scales: [block][halves][64]; mins: [block][64].
struct Widened {
    alignas(64) uint8_t codes[kSuper * kCell];
    alignas(64) float scales[kSuper * 2 * kPack];
    alignas(64) float mins[kSuper * kPack];
};
// Of `count` blocks, which share a head. less: taken from every code (0, or the offset).
void widen_scales(const Format &f, const uint8_t *panel, int64_t first, int64_t count, Widened &out);
void widen_codes(const Format &f, const uint8_t *panel, int64_t first, int64_t count, int less, Widened &out);
// All weights of output j of a panel, in float32: `blocks` · 32 of them, the same bits.
void widen_output(const Format &f, const uint8_t *panel, int64_t j, int64_t blocks, float *out);

}  // namespace tailrace
