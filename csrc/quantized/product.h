// The products of packed weights with rows of activations in int8, one function per instruction set. All return the
// same bits: sums of integers are exact, and the float part is the same fused multiply-adds in the same order.
#pragma once
#include "quantized/blocks.h"

namespace tailrace {

// Rows of activations as int8, in tiles of 16 rows. In a block of a row, x ≈ scale · q with |q| ≤ 127.
struct Activations {
    int8_t *q;       // [tile][block][16][32]
    float *scale;    // [tile][block][16]
    float *total;    // [tile][block][16]: scale · Σ q, the factor of the block's minimum
    int32_t *start;  // [tile][block][2][16]: begin − offset · Σ q of each half; without halves, [0] is of the block
    int64_t blocks;
    int32_t begin = 0;  // 0, or kShift
};

// One row of activations, which finds the data of a block.
struct ActivationRow {
    const Activations &x;
    int64_t tile, lane;
    ActivationRow(const Activations &all, int64_t row) : x(all), tile(row / kTile), lane(row % kTile) {}
    const int8_t *q(int64_t block) const { return x.q + ((tile * x.blocks + block) * kTile + lane) * kBlock; }
    int64_t place(int64_t block) const { return (tile * x.blocks + block) * kTile + lane; }
    float scale(int64_t block) const { return x.scale[place(block)]; }
    float total(int64_t block) const { return x.total[place(block)]; }
    const int32_t *start(int64_t block, int half) const {
        return x.start + ((tile * x.blocks + block) * 2 + half) * kTile + lane;
    }
};

// The arguments of a function that adds the products of rows and blocks to acc [rows][64], in float32. Every function
// computes, block after block,
//   acc = fma(float(Σ q · code) · scale_w, scale_x, acc), then, with minimums, acc = fma(min, total, acc).
struct Product {
    const uint8_t *codes;       // of the first block: widened, or as the weights are packed
    int64_t stride;             // bytes from a block's codes to the next one's
    const Widened *w;           // scales and minimums
    const Activations *x;
    int64_t row, first, count;  // the first row, the first block, the number of blocks
    bool twice, min;            // two halves per block; minimums
    bool nibbles;               // codes are packed, two in a byte; for product_vnni and product_neon
    bool shifted;               // sums begin at kShift (in product_vnni by Activations::begin)
    bool halves;                // scales (and minimums) are read as float16, as they are packed; only for product_vnni
    const uint8_t *packed;      // the first block: its scales, then its codes
    uintptr_t next;             // address of the weights to be read next; it may lie behind the last panel
    int64_t next_bytes;         // how many of these bytes to fetch per block; 0: all have been fetched
};

// Fetch a block's share of the next weights from memory, or one of `parts` parts of that share, while block b is
// multiplied. The first reader of these weights would wait otherwise. The target is the second cache: the first one has
// few misses under way at a time, and the multiplication needs these.
inline void fetch_next(const Product &p, int64_t b, int64_t part = 0, int64_t parts = 1) {
    const uintptr_t from = p.next + static_cast<uintptr_t>(b * p.next_bytes);
    const int64_t lines = p.next_bytes / 64;
    for (int64_t line = part * lines / parts; line < (part + 1) * lines / parts; ++line)
        __builtin_prefetch(reinterpret_cast<const void *>(from + static_cast<uintptr_t>(line * 64)), 0, 2);
}

#if TAILRACE_X86
// A sum times a scale. `back` is −c · scale, which removes the shift.
template <bool Shifted> TAILRACE_AVX512 inline __m512 scaled(__m512i sum, __m512 w, __m512 back) {
    return Shifted ? _mm512_fmadd_ps(_mm512_castsi512_ps(sum), w, back) : _mm512_mul_ps(_mm512_cvtepi32_ps(sum), w);
}
#endif

void product_portable(const Product &p, int rows, float *acc);
// product_avx2 and product_vnni are defined only on x86, product_neon and has_dot only on ARM.
void product_avx2(const Product &p, int rows, float *acc);    // codes unsigned
void product_vnni(const Product &p, int rows, float *acc);    // 1 to 4 rows of one tile
void product_amx(const Product &p, int rows, float *acc);     // codes with a sign; a tile of rows
void product_neon(const Product &p, int rows, float *acc);    // codes with a sign; 1 to 4 rows of one tile
bool has_dot();                                               // dot products of eight bits
// The tile registers of this thread are set up before product_amx and released after it.
bool has_amx();
void begin_amx();
void end_amx();

}  // namespace tailrace
