#include "model/attention_tiles.h"

#include "base/tiles.h"

#include <algorithm>

namespace tailrace {

#if TAILRACE_AMX
namespace {

constexpr int64_t kStep = 32;            // dimensions of a tile of queries
constexpr int64_t kPositions = 16;       // positions of a tile of keys, and of a tile of values
constexpr int64_t kChunkPositions = 64;  // positions of a row of p or s

}  // namespace

bool attention_tiles_serve(int64_t head_dim, int64_t value_dim) {
    return head_dim % kStep == 0 && value_dim % kPositions == 0 && has_bf16_tiles();
}

// Tiles: 0 to 3 sums, 4 and 5 queries and keys, 6 and 7 weights and values.
TAILRACE_BF16_TILES void begin_attention_tiles(int rows) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.bytes[tile] = 64, config.rows[tile] = static_cast<uint8_t>(rows);
    config.rows[5] = kStep / 2;
    config.bytes[6] = 2 * kPositions;
    config.rows[7] = kPositions / 2;
    tiles_read_memory();
    _tile_loadconfig(&config);
}

TAILRACE_BF16_TILES void end_attention_tiles() { _tile_release(); }

TAILRACE_BF16_TILES void scores_by_tiles(const bf16 *q, const bf16 *const *keys, int64_t dim, float *s) {
    tiles_read_memory();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < dim; d += kStep) {
        _tile_loadd(4, q + d, 2 * dim);
        _tile_loadd(5, keys[0] + d * kPositions, 4 * kPositions);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(5, keys[1] + d * kPositions, 4 * kPositions);
        _tile_dpbf16ps(1, 4, 5);
        _tile_loadd(5, keys[2] + d * kPositions, 4 * kPositions);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(5, keys[3] + d * kPositions, 4 * kPositions);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, s, 4 * kChunkPositions);
    _tile_stored(1, s + 16, 4 * kChunkPositions);
    _tile_stored(2, s + 32, 4 * kChunkPositions);
    _tile_stored(3, s + 48, 4 * kChunkPositions);
}

TAILRACE_BF16_TILES void weigh_by_tiles(const bf16 *p, const bf16 *const *values, int groups, int64_t dim, float *out) {
    tiles_read_memory();
    int64_t at = 0;
    for (; at + 64 <= dim; at += 64) {
        _tile_loadd(0, out + at, 4 * dim);
        _tile_loadd(1, out + at + 16, 4 * dim);
        _tile_loadd(2, out + at + 32, 4 * dim);
        _tile_loadd(3, out + at + 48, 4 * dim);
        for (int i = 0; i < groups; ++i) {
            const bf16 *v = values[i] + 2 * at;
            _tile_loadd(6, p + i * kPositions, 2 * kChunkPositions);
            _tile_loadd(7, v, 4 * dim);
            _tile_dpbf16ps(0, 6, 7);
            _tile_loadd(7, v + 32, 4 * dim);
            _tile_dpbf16ps(1, 6, 7);
            _tile_loadd(7, v + 64, 4 * dim);
            _tile_dpbf16ps(2, 6, 7);
            _tile_loadd(7, v + 96, 4 * dim);
            _tile_dpbf16ps(3, 6, 7);
        }
        _tile_stored(0, out + at, 4 * dim);
        _tile_stored(1, out + at + 16, 4 * dim);
        _tile_stored(2, out + at + 32, 4 * dim);
        _tile_stored(3, out + at + 48, 4 * dim);
    }
    for (; at < dim; at += 16) {
        _tile_loadd(0, out + at, 4 * dim);
        for (int i = 0; i < groups; ++i) {
            _tile_loadd(6, p + i * kPositions, 2 * kChunkPositions);
            _tile_loadd(7, values[i] + 2 * at, 4 * dim);
            _tile_dpbf16ps(0, 6, 7);
        }
        _tile_stored(0, out + at, 4 * dim);
    }
}
#else
bool attention_tiles_serve(int64_t, int64_t) { return false; }
void begin_attention_tiles(int) {}
void end_attention_tiles() {}
void scores_by_tiles(const bf16 *, const bf16 *const *, int64_t, float *) {}
void weigh_by_tiles(const bf16 *, const bf16 *const *, int, int64_t, float *) {}
#endif

}  // namespace tailrace
