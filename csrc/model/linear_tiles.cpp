// y = x Wᵀ + b in bfloat16 by Intel's tiles (AMX), for every number of rows. A tile holds 16 rows of 32 inputs, or 32
// inputs of 16 outputs, which lie in the packed weights as tdpbf16ps wants them. One instruction adds 32 products to
// each sum, those of the even inputs and those of the odd ones apart, whatever other rows are in the tile; and a row's
// sum takes the steps of k in order. So a row's result does not depend on its neighbours, bit for bit.
//
// Few rows: one tile of rows, four of outputs. More: two by two, so that each tile that is loaded is used twice.
#include "base/pool.h"
#include "base/tiles.h"
#include "model/linear.h"

#include <algorithm>

namespace tailrace {

#if TAILRACE_AMX
namespace {

constexpr int kRows = 16;           // of a tile
constexpr int64_t kStep = 32;       // inputs of a tile
constexpr int64_t kRowBytes = 256;  // of the packed weights: a pair of inputs for 64 outputs
constexpr int64_t kStepLines = 64;  // cache lines of a step's weights

// Tiles of 64 bytes a row, and of 16 rows but for those of `fewer`, a set of bits, which have `rows`.
TileConfig tiles_of(unsigned fewer, int64_t rows) {
    TileConfig made;
    for (int tile = 0; tile < 8; ++tile)
        made.rows[tile] = static_cast<uint8_t>(fewer >> tile & 1 ? rows : kRows), made.bytes[tile] = 64;
    return made;
}
constexpr unsigned kFew = 0b00011111;     // sums 0 to 3 and rows 4; 5 to 7 are weights
constexpr unsigned kSecond = 0b00101100;  // of rows 4 and 5 with sums 0 to 3 the second; 6 and 7 are weights

// What is prefetched while a pass runs: `lines` cache lines per step, from `at` on.
struct Ahead {
    const char *at;
    int64_t lines;
    void fetch(int64_t step) const {
        for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(at + (step * lines + line) * 64, 0, 2);
    }
};

struct Rows {
    const bf16 *x;
    int64_t stride, steps;
};

// Up to 16 rows with the 64 outputs of a block → out [16][64].
TAILRACE_BF16_TILES void pass_few(const Rows &rows, const bf16 *w, const float *bias, float *out, Ahead ahead) {
    const int64_t stride = rows.stride * 2;
    _tile_loadd(0, bias, 0);
    _tile_loadd(1, bias + 16, 0);
    _tile_loadd(2, bias + 32, 0);
    _tile_loadd(3, bias + 48, 0);
    for (int64_t step = 0; step < rows.steps; ++step, w += kStep * kPack) {
        _tile_loadd(4, rows.x + step * kStep, stride);
        _tile_loadd(5, w, kRowBytes);
        _tile_loadd(6, w + 32, kRowBytes);
        _tile_loadd(7, w + 64, kRowBytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(5, w + 96, kRowBytes);
        _tile_dpbf16ps(1, 4, 6);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 4, 5);
        ahead.fetch(step);
    }
    _tile_stored(0, out, 4 * kPack);
    _tile_stored(1, out + 16, 4 * kPack);
    _tile_stored(2, out + 32, 4 * kPack);
    _tile_stored(3, out + 48, 4 * kPack);
}

// 17 to 32 rows with 32 outputs of a block → out [32][64].
TAILRACE_BF16_TILES void pass_two(const Rows &rows, const bf16 *w, const float *bias, float *out, Ahead ahead) {
    const int64_t stride = rows.stride * 2;
    const bf16 *second = rows.x + kRows * rows.stride;
    _tile_loadd(0, bias, 0);
    _tile_loadd(1, bias + 16, 0);
    _tile_loadd(2, bias, 0);
    _tile_loadd(3, bias + 16, 0);
    for (int64_t step = 0; step < rows.steps; ++step, w += kStep * kPack) {
        _tile_loadd(4, rows.x + step * kStep, stride);
        _tile_loadd(6, w, kRowBytes);
        _tile_loadd(5, second + step * kStep, stride);
        _tile_loadd(7, w + 32, kRowBytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
        ahead.fetch(step);
    }
    _tile_stored(0, out, 4 * kPack);
    _tile_stored(1, out + 16, 4 * kPack);
    _tile_stored(2, out + kRows * kPack, 4 * kPack);
    _tile_stored(3, out + kRows * kPack + 16, 4 * kPack);
}

// Sums of a row → its outputs.
TAILRACE_BF16_TILES void write(const float *sums, int64_t width, bf16 *y) {
    for (int64_t j = 0; j < width; j += 16) {
        const __mmask16 there = static_cast<__mmask16>((1u << std::min<int64_t>(16, width - j)) - 1);
        _mm256_mask_storeu_epi16(y + j, there, (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(sums + j)));
    }
}

// One block of 64 outputs for all rows; `next` is the block that this thread will do next, or -1.
TAILRACE_BF16_TILES void block(const LinearCall &c, int64_t b, int64_t next) {
    const bf16 *w = static_cast<const bf16 *>(c.packed) + b * kPack * c.k;
    const int64_t width = std::min(kPack, c.n - b * kPack), steps = c.k / kStep;
    alignas(64) float bias[kPack] = {}, out[2 * kRows * kPack];
    if (c.bias)
        for (int64_t j = 0; j < width; ++j) bias[j] = to_float(static_cast<const bf16 *>(c.bias)[b * kPack + j]);
    const int64_t pairs = (c.m + 2 * kRows - 1) / (2 * kRows), last = c.m - (pairs - 1) * 2 * kRows;
    const int64_t passes = last > kRows ? 2 * pairs : 2 * pairs - 1;
    const int64_t fetching = std::min<int64_t>(passes, 4);  // passes that fetch the next block's weights
    const int64_t lines = next < 0 ? 0 : (kStepLines + fetching - 1) / fetching;
    const bf16 *following = static_cast<const bf16 *>(c.packed) + std::max<int64_t>(next, 0) * kPack * c.k;
    const char *ahead = reinterpret_cast<const char *>(following);
    int64_t pass = 0;
    const auto fetch = [&] {
        const int64_t first = pass++ * lines;
        return Ahead{ahead + first * steps * 64, std::clamp<int64_t>(kStepLines - first, 0, lines)};
    };
    const TileConfig whole = tiles_of(0, kRows);
    const TileConfig end = last > kRows ? tiles_of(kSecond, last - kRows) : tiles_of(kFew, last);
    tiles_read_memory();
    if (pairs > 1) _tile_loadconfig(&whole);
    for (int64_t pair = 0; pair < pairs; ++pair) {
        const int64_t r = pair * 2 * kRows, count = std::min<int64_t>(2 * kRows, c.m - r);
        if (pair + 1 == pairs) _tile_loadconfig(&end);
        const Rows rows{static_cast<const bf16 *>(c.x) + r * c.x_stride, c.x_stride, steps};
        if (count > kRows) {
            pass_two(rows, w, bias, out, fetch());
            pass_two(rows, w + 64, bias + 32, out + 32, fetch());
        } else {
            pass_few(rows, w, bias, out, fetch());
        }
        for (int64_t i = 0; i < count; ++i)
            write(out + i * kPack, width, static_cast<bf16 *>(c.y) + (r + i) * c.n + b * kPack);
    }
    _tile_release();
}

}  // namespace

bool tiles_serve(int64_t k) { return k % kStep == 0 && has_bf16_tiles(); }

void linear_tiles(const LinearCall &call) {
    if (call.m == 0) return;
    Pool::instance().sweep((call.n + kPack - 1) / kPack, [&](int64_t b, int64_t next) { block(call, b, next); });
}
#else
bool tiles_serve(int64_t) { return false; }
void linear_tiles(const LinearCall &) {}
#endif

}  // namespace tailrace
