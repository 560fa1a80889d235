// The products of widened blocks with rows of int8, one function per instruction set. All give the same bits: sums of
// integers are exact, and the float part is the same fused multiply-adds in the same order (quantized.h).
#include "quantized.h"
#include "tiles.h"

#include <cmath>
#include <initializer_list>

namespace tailrace {
namespace {

// Where the data of a row and a block lie.
struct At {
    const Activations &x;
    int64_t tile, lane;
    At(const Activations &all, int64_t row) : x(all), tile(row / kTile), lane(row % kTile) {}
    const int8_t *q(int64_t block) const { return x.q + ((tile * x.blocks + block) * kTile + lane) * kBlock; }
    int64_t place(int64_t block) const { return (tile * x.blocks + block) * kTile + lane; }
    float scale(int64_t block) const { return x.scale[place(block)]; }
    float total(int64_t block) const { return x.total[place(block)]; }
    const int32_t *start(int64_t block, int half) const {
        return x.start + ((tile * x.blocks + block) * 2 + half) * kTile + lane;
    }
};

// Sums of k4 groups of four codes with q, over 64 outputs.
TAILRACE_CLONES void sums_portable(const uint8_t *codes, const int8_t *q, int groups, int32_t *sums) {
    for (int g = 0; g < groups; ++g, codes += 4 * kPack, q += 4)
        for (int j = 0; j < kPack; ++j)
            sums[j] += codes[4 * j] * q[0] + codes[4 * j + 1] * q[1] + codes[4 * j + 2] * q[2] + codes[4 * j + 3] * q[3];
}

#if TAILRACE_X86
__attribute__((target("avx2,fma"))) void sums_avx2(const uint8_t *codes, const int8_t *q, int groups, int32_t *sums) {
    // Two products of 8 bits and 7 bits fit into the 16 bits that vpmaddubsw adds them in, so the eighth bit of a code
    // goes by itself.
    const __m256i seven = _mm256_set1_epi8(127), one = _mm256_set1_epi8(1);
    const __m256i ones = _mm256_set1_epi16(1), eighth = _mm256_set1_epi16(128);
    for (int j = 0; j < kPack; j += 8) {
        __m256i *to = reinterpret_cast<__m256i *>(sums + j);
        __m256i sum = _mm256_load_si256(to);
        for (int g = 0; g < groups; ++g) {
            int32_t four;
            std::memcpy(&four, q + 4 * g, 4);
            const __m256i x = _mm256_set1_epi32(four);
            const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes + (g * kPack + j) * 4));
            const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(w, seven), x);
            const __m256i top = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w, 7), one), x);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, ones));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(top, eighth));
        }
        _mm256_store_si256(to, sum);
    }
}

__attribute__((target("avx2,fma"))) void add_avx2(const int32_t *sums, const float *scales, float by, float *acc) {
    const __m256 x = _mm256_set1_ps(by);
    for (int j = 0; j < kPack; j += 8) {
        const __m256 sum = _mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(sums + j)));
        const __m256 part = _mm256_mul_ps(sum, _mm256_load_ps(scales + j));
        _mm256_storeu_ps(acc + j, _mm256_fmadd_ps(part, x, _mm256_loadu_ps(acc + j)));
    }
}

__attribute__((target("avx2,fma"))) void add_min_avx2(const float *mins, float by, float *acc) {
    const __m256 x = _mm256_set1_ps(by);
    for (int j = 0; j < kPack; j += 8)
        _mm256_storeu_ps(acc + j, _mm256_fmadd_ps(_mm256_load_ps(mins + j), x, _mm256_loadu_ps(acc + j)));
}
#endif

void add_portable(const int32_t *sums, const float *scales, float by, float *acc) {
    for (int j = 0; j < kPack; ++j) acc[j] = std::fma(static_cast<float>(sums[j]) * scales[j], by, acc[j]);
}
void add_min_portable(const float *mins, float by, float *acc) {
    for (int j = 0; j < kPack; ++j) acc[j] = std::fma(mins[j], by, acc[j]);
}

using Sums = void (*)(const uint8_t *, const int8_t *, int, int32_t *);
using Add = void (*)(const int32_t *, const float *, float, float *);
using AddMin = void (*)(const float *, float, float *);

inline void each_row(const Product &p, int rows, float *acc, Sums sums_of, Add add, AddMin add_min) {
    const int parts = p.twice ? 2 : 1, groups = kBlock / 4 / parts;
    alignas(64) int32_t sums[kPack];
    for (int r = 0; r < rows; ++r, acc += kPack) {
        const At at(*p.x, p.row + r);
        for (int64_t b = 0; b < p.count; ++b) {
            const int64_t block = p.first + b;
            if (r == 0) fetch_next(p, b);
            for (int half = 0; half < parts; ++half) {
                const int32_t start = *at.start(block, half);
                for (int32_t &sum : sums) sum = start;
                sums_of(p.codes + b * p.stride + half * groups * 4 * kPack, at.q(block) + half * kSixteen, groups, sums);
                add(sums, p.w->scales + (b * parts + half) * kPack, at.scale(block), acc);
            }
            if (p.min) add_min(p.w->mins + b * kPack, at.total(block), acc);
        }
    }
}

#if TAILRACE_X86
#define TAILRACE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

// 64 codes of four inputs' group, of 16 outputs each: bytes, or nibbles as quantized_pack.cpp puts them.
template <bool Nibbles> TAILRACE_VNNI inline __m512i codes_at(const uint8_t *codes, int group, int j) {
    if (!Nibbles) return _mm512_loadu_si512(codes + group * 256 + 64 * j);
    const __m512i two = _mm512_loadu_si512(codes + group % 4 * 256 + 64 * j);
    return _mm512_and_si512(group < 4 ? two : _mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
}

// What stands beside a block's codes: widened, or float16 as it is packed. With `single` and `single_min`, which are
// widened, sums are not shifted.
enum class Beside { single, single_min, scale, scale_min, two_scales, half, half_min };
constexpr bool is_half(Beside kind) { return kind == Beside::half || kind == Beside::half_min; }
constexpr bool has_min(Beside kind) {
    return kind == Beside::single_min || kind == Beside::scale_min || kind == Beside::half_min;
}
constexpr bool is_shifted(Beside kind) { return kind != Beside::single && kind != Beside::single_min; }

// A sum times a scale; `back` is what the shift makes of it, with the other sign.
template <bool Shifted> TAILRACE_AVX512 inline __m512 scaled(__m512i sum, __m512 w, __m512 back) {
    return Shifted ? _mm512_fmadd_ps(_mm512_castsi512_ps(sum), w, back) : _mm512_mul_ps(_mm512_cvtepi32_ps(sum), w);
}

// Of 16 outputs.
template <bool Half> TAILRACE_VNNI inline __m512 sixteen(const void *from, int64_t at) {
    if (!Half) return _mm512_load_ps(static_cast<const float *>(from) + at);
    const uint16_t *halves = static_cast<const uint16_t *>(from) + at;
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(halves)));
}

template <int R, Beside Kind, bool Nibbles> TAILRACE_VNNI void rows_vnni(const Product &p, float *acc) {
    constexpr bool half_wide = is_half(Kind), min = has_min(Kind), shifted = is_shifted(Kind);
    constexpr bool kept = R <= 2;  // there are registers for the sums of all blocks
    constexpr int parts = Kind == Beside::two_scales ? 2 : 1, groups = kBlock / 4 / parts;
    const At at(*p.x, p.row);
    __m512 all[R][4];
#pragma GCC unroll 4
    for (int r = 0; r < R && kept; ++r)
        for (int j = 0; j < 4; ++j) all[r][j] = _mm512_loadu_ps(acc + r * kPack + 16 * j);
    for (int64_t b = 0; b < p.count; ++b) {
        fetch_next(p, b);
        const int8_t *q = at.q(p.first + b);
        const float *scale = p.x->scale + at.place(p.first + b), *total = p.x->total + at.place(p.first + b);
        const uint8_t *codes = p.codes + b * p.stride, *beside = half_wide ? p.packed + b * p.stride : nullptr;
        const void *scales = half_wide ? static_cast<const void *>(beside) : p.w->scales + b * parts * kPack;
        const void *mins = half_wide ? static_cast<const void *>(beside + 2 * kPack) : p.w->mins + b * kPack;
        for (int half = 0; half < parts; ++half) {
            const int32_t *start = at.start(p.first + b, half);
            __m512i sums[R][4];
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
                for (int j = 0; j < 4; ++j) sums[r][j] = _mm512_set1_epi32(start[r]);
#pragma GCC unroll 8
            for (int g = 0; g < groups; ++g) {
                const int group = half * groups + g;
                const __m512i w0 = codes_at<Nibbles>(codes, group, 0), w1 = codes_at<Nibbles>(codes, group, 1);
                const __m512i w2 = codes_at<Nibbles>(codes, group, 2), w3 = codes_at<Nibbles>(codes, group, 3);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) {
                    int32_t four;
                    std::memcpy(&four, q + r * kBlock + half * kSixteen + 4 * g, 4);
                    const __m512i x = _mm512_set1_epi32(four);
                    sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, x);
                    sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, x);
                    sums[r][2] = _mm512_dpbusd_epi32(sums[r][2], w2, x);
                    sums[r][3] = _mm512_dpbusd_epi32(sums[r][3], w3, x);
                }
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                const __m512 w = sixteen<half_wide>(scales, half * kPack + 16 * j);
                const __m512 back = _mm512_mul_ps(w, _mm512_set1_ps(-kShiftFloat));
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) {
                    float *to = acc + r * kPack + 16 * j;
                    const __m512 part = scaled<shifted>(sums[r][j], w, back);
                    __m512 sum = kept ? all[r][j] : _mm512_loadu_ps(to);
                    sum = _mm512_fmadd_ps(part, _mm512_set1_ps(scale[r]), sum);
                    if (min) sum = _mm512_fmadd_ps(sixteen<half_wide>(mins, 16 * j), _mm512_set1_ps(total[r]), sum);
                    if (kept) all[r][j] = sum;
                    else _mm512_storeu_ps(to, sum);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R && kept; ++r)
        for (int j = 0; j < 4; ++j) _mm512_storeu_ps(acc + r * kPack + 16 * j, all[r][j]);
}

// The same for four rows and 32 outputs (R rows and J · 16) at a time, so that the sums of all blocks stay in
// registers. An input that is spread over a register serves J products: processors spread one per cycle, and some
// multiply two.
template <int R, int J, Beside Kind, bool Nibbles> TAILRACE_VNNI void four_rows_vnni(const Product &p, float *acc) {
    constexpr bool half_wide = is_half(Kind), min = has_min(Kind), shifted = is_shifted(Kind);
    constexpr int parts = Kind == Beside::two_scales ? 2 : 1, groups = kBlock / 4 / parts;
    const At at(*p.x, p.row);
    const int64_t beside_stride = half_wide ? p.stride : 4 * parts * kPack, mins_stride = half_wide ? p.stride : 4 * kPack;
    for (int first = 0; first < 4; first += J, acc += 16 * J) {
        const int8_t *q = at.q(p.first);
        const int32_t *start = at.start(p.first, 0);
        const float *scale = p.x->scale + at.place(p.first), *total = p.x->total + at.place(p.first);
        const uint8_t *codes = p.codes + 64 * first;
        const uint8_t *scales = half_wide ? p.packed + 32 * first : reinterpret_cast<const uint8_t *>(p.w->scales + 16 * first);
        const uint8_t *mins = half_wide ? scales + 2 * kPack : reinterpret_cast<const uint8_t *>(p.w->mins + 16 * first);
        __m512 all[R][J];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int j = 0; j < J; ++j) all[r][j] = _mm512_loadu_ps(acc + r * kPack + 16 * j);
        for (int64_t b = 0; b < p.count; ++b) {
            if (first == 0) fetch_next(p, b);
#pragma GCC unroll 2
            for (int half = 0; half < parts; ++half) {
                __m512i sums[R][J];
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                    for (int j = 0; j < J; ++j) sums[r][j] = _mm512_set1_epi32(start[half * kTile + r]);
#pragma GCC unroll 8
                for (int g = 0; g < groups; ++g) {
                    __m512i w[J];
#pragma GCC unroll 4
                    for (int j = 0; j < J; ++j) w[j] = codes_at<Nibbles>(codes, half * groups + g, j);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) {
                        int32_t four;
                        std::memcpy(&four, q + r * kBlock + half * kSixteen + 4 * g, 4);
                        const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                        for (int j = 0; j < J; ++j) sums[r][j] = _mm512_dpbusd_epi32(sums[r][j], w[j], x);
                    }
                }
#pragma GCC unroll 4
                for (int j = 0; j < J; ++j) {
                    const __m512 w = sixteen<half_wide>(scales, half * kPack + 16 * j);
                    const __m512 back = _mm512_mul_ps(w, _mm512_set1_ps(-kShiftFloat));
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) {
                        const __m512 part = scaled<shifted>(sums[r][j], w, back);
                        all[r][j] = _mm512_fmadd_ps(part, _mm512_set1_ps(scale[r]), all[r][j]);
                    }
                    if (!min) continue;
                    const __m512 least = sixteen<half_wide>(mins, 16 * j);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) all[r][j] = _mm512_fmadd_ps(least, _mm512_set1_ps(total[r]), all[r][j]);
                }
            }
            q += kTile * kBlock, start += 2 * kTile, scale += kTile, total += kTile;
            codes += p.stride, scales += beside_stride, mins += mins_stride;
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int j = 0; j < J; ++j) _mm512_storeu_ps(acc + r * kPack + 16 * j, all[r][j]);
    }
}

template <Beside Kind, bool Nibbles> void some_vnni(const Product &p, int rows, float *acc) {
    switch (rows) {
        case 1: return rows_vnni<1, Kind, Nibbles>(p, acc);
        case 2: return rows_vnni<2, Kind, Nibbles>(p, acc);
        case 3: return rows_vnni<3, Kind, Nibbles>(p, acc);
        default: return four_rows_vnni<4, 2, Kind, Nibbles>(p, acc);
    }
}

template <bool Nibbles> void product_of(const Product &p, int rows, float *acc) {
    if (p.twice) return some_vnni<Beside::two_scales, Nibbles>(p, rows, acc);
    if (p.halves && p.min) return some_vnni<Beside::half_min, Nibbles>(p, rows, acc);
    if (p.halves) return some_vnni<Beside::half, Nibbles>(p, rows, acc);
    if (p.shifted && p.min) return some_vnni<Beside::scale_min, Nibbles>(p, rows, acc);
    if (p.shifted) return some_vnni<Beside::scale, Nibbles>(p, rows, acc);
    p.min ? some_vnni<Beside::single_min, Nibbles>(p, rows, acc) : some_vnni<Beside::single, Nibbles>(p, rows, acc);
}
#endif

#if TAILRACE_AMX
#define TAILRACE_TILES __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq")))

// What shifted sums begin with, of 16 outputs.
alignas(64) const int32_t kShifts[16] = {kShift, kShift, kShift, kShift, kShift, kShift, kShift, kShift,
                                         kShift, kShift, kShift, kShift, kShift, kShift, kShift, kShift};

// The sums of one tile of rows with 16 outputs, of a block, in one of two tiles by turns. Beside them are the rows' 32
// inputs and the codes. The numbers of tiles must be literals.
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

// A block of 16 outputs, j · 16 on; all blocks of 16 outputs come before the next ones.
struct Item {
    int64_t block;
    int j;
    Item next(int64_t blocks) const { return block + 1 < blocks ? Item{block + 1, j} : Item{0, j + 1}; }
};

// Adds an item's sums, times the scales, to all[r], which are the 16 outputs of row r: from acc with the first block, to
// acc with the last. The next bytes from memory are fetched beside it.
template <bool Min, bool Shifted>
TAILRACE_TILES inline void add_amx(const Product &p, Item item, const int32_t *sums, __m512 *all, float *acc) {
    const int64_t b = item.block, place = At(*p.x, p.row).place(p.first + b);
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

// The sums of the next two items are on their way while those of this one are added. A tile is stored behind the loads
// of the sums before it: these would wait for it.
template <bool Min, bool Shifted> TAILRACE_TILES void tiles_amx(const Product &p, float *acc) {
    const At at(*p.x, p.row);
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
#endif

}  // namespace

void product_portable(const Product &p, int rows, float *acc) {
    each_row(p, rows, acc, sums_portable, add_portable, add_min_portable);
}

#if TAILRACE_X86
void product_avx2(const Product &p, int rows, float *acc) {
    each_row(p, rows, acc, sums_avx2, add_avx2, add_min_avx2);
}

void product_vnni(const Product &p, int rows, float *acc) {
    p.nibbles ? product_of<true>(p, rows, acc) : product_of<false>(p, rows, acc);
}
#endif

#if TAILRACE_AMX
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
