// The products by Intel's tiles (AMX), for a tile of rows.
#include "base/tiles.h"
#include "quantized/product.h"

#include <initializer_list>

namespace tailrace {

#if TAILRACE_AMX
#define TAILRACE_TILES __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq")))

namespace {

// The start of the shifted sums of 16 outputs.
alignas(64) const int32_t kShifts[16] = {kShift, kShift, kShift, kShift, kShift, kShift, kShift, kShift,
                                         kShift, kShift, kShift, kShift, kShift, kShift, kShift, kShift};

// The sums of a tile of rows, 16 outputs and a block. Two sets of tile registers take turns; each set has the sums, the
// rows' 32 inputs and the codes. The numbers of tile registers must be literals.
#define TAILRACE_SUMS(NAME, SUMS, ROWS, CODES)                                                        \
    template <bool Shifted> TAILRACE_TILES inline void NAME(const int8_t *q, const uint8_t *codes) { \
        if (Shifted) _tile_loadd(SUMS, kShifts, 0);                                                   \
        else _tile_zero(SUMS);                                                                        \
        _tile_loadd(ROWS, q, kBlock);                                                                 \
        _tile_loadd(CODES, codes, 4 * kPack);                                                         \
        _tile_dpbssd(SUMS, ROWS, CODES);                                                              \
    }
TAILRACE_SUMS(sums_even, 0, 2, 4)
TAILRACE_SUMS(sums_odd, 1, 3, 5)
#undef TAILRACE_SUMS

// A block of the 16 outputs from j · 16 on. All blocks of these outputs come before the next 16 outputs.
struct Item {
    int64_t block;
    int j;
    Item next(int64_t blocks) const { return block + 1 < blocks ? Item{block + 1, j} : Item{0, j + 1}; }
};

// Add an item's sums, times the scales, to all[r], the 16 outputs of row r. The first block reads them from acc, the
// last block writes them to acc. Meanwhile the next weights are fetched from memory.
template <bool Min, bool Shifted>
TAILRACE_TILES inline void add_amx(const Product &p, Item item, const int32_t *sums, __m512 *all, float *acc) {
    const int64_t b = item.block, place = ActivationRow(*p.x, p.row).place(p.first + b);
    const int j = item.j;
    const float *scale = p.x->scale + place, *total = p.x->total + place;
    if (b == 0)
#pragma GCC unroll 16
        for (int r = 0; r < kTile; ++r) all[r] = _mm512_loadu_ps(acc + r * kPack + 16 * j);
    fetch_next(p, b, j, 4);
    const __m512 w = _mm512_load_ps(p.w->scales + b * kPack + 16 * j), back = _mm512_mul_ps(w, _mm512_set1_ps(-kShiftFloat));
#pragma GCC unroll 16
    for (int r = 0; r < kTile; ++r) {
        const __m512i sum = _mm512_load_si512(sums + 16 * r);
        all[r] = _mm512_fmadd_ps(scaled<Shifted>(sum, w, back), _mm512_set1_ps(scale[r]), all[r]);
    }
    if constexpr (Min) {
        const __m512 min = _mm512_load_ps(p.w->mins + b * kPack + 16 * j);
#pragma GCC unroll 16
        for (int r = 0; r < kTile; ++r) all[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(total[r]), all[r]);
    }
    if (b + 1 == p.count)
#pragma GCC unroll 16
        for (int r = 0; r < kTile; ++r) _mm512_storeu_ps(acc + r * kPack + 16 * j, all[r]);
}

// The next two items are multiplied while this item's sums are added. A tile is stored after the loads of the previous
// sums, because these loads would wait for the store.
template <bool Min, bool Shifted> TAILRACE_TILES void tiles_amx(const Product &p, float *acc) {
    const ActivationRow at(*p.x, p.row);
    alignas(64) int32_t even[kTile * 16], odd[kTile * 16];
    __m512 all[kTile];
    const int64_t count = p.count, items = 4 * count;
    Item done{0, 0}, ahead = done.next(count);  // added next; multiplied next
    sums_even<Shifted>(at.q(p.first), p.codes);
    sums_odd<Shifted>(at.q(p.first + ahead.block), p.codes + ahead.block * p.stride + 64 * ahead.j);
    _tile_stored(0, even, 64);
    for (int64_t i = 0; i < items; i += 2) {
        if (i + 2 < items) {
            ahead = ahead.next(count);
            sums_even<Shifted>(at.q(p.first + ahead.block), p.codes + ahead.block * p.stride + 64 * ahead.j);
        }
        add_amx<Min, Shifted>(p, done, even, all, acc);
        done = done.next(count);
        _tile_stored(1, odd, 64);
        if (i + 2 < items) {
            ahead = ahead.next(count);
            sums_odd<Shifted>(at.q(p.first + ahead.block), p.codes + ahead.block * p.stride + 64 * ahead.j);
        }
        add_amx<Min, Shifted>(p, done, odd, all, acc);
        done = done.next(count);
        if (i + 2 < items) _tile_stored(0, even, 64);
    }
}

}  // namespace

bool has_amx() { return tiles_of_this_machine().int8; }

TAILRACE_TILES void begin_amx() {
    TileConfig config;
    for (int tile : {0, 1}) config.rows[tile] = kTile, config.bytes[tile] = 64;
    for (int tile : {2, 3}) config.rows[tile] = kTile, config.bytes[tile] = kBlock;
    for (int tile : {4, 5}) config.rows[tile] = kBlock / 4, config.bytes[tile] = 64;
    tiles_read_memory();
    _tile_loadconfig(&config);
}

TAILRACE_TILES void end_amx() { _tile_release(); }

void product_amx(const Product &p, int, float *acc) {
    if (p.shifted) p.min ? tiles_amx<true, true>(p, acc) : tiles_amx<false, true>(p, acc);
    else p.min ? tiles_amx<true, false>(p, acc) : tiles_amx<false, false>(p, acc);
}
#else
bool has_amx() { return false; }
void begin_amx() {}
void end_amx() {}
void product_amx(const Product &, int, float *) {}
#endif

}  // namespace tailrace
