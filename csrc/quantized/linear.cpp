// y = x Wᵀ + b of quantized weights. Activations become int8 per row and 32 inputs, whatever the number of rows, and a
// row's products are added block after block: its result does not depend on its neighbours, bit for bit, nor on the
// instruction set (product.h). Only the blocking differs: a panel's blocks are read eight at a time, widened where the
// product does not take them as they are packed, and stay in the first cache while the rows pass by.
#include "base/exact.h"
#include "base/lines.h"
#include "base/pool.h"
#include "base/simd.h"
#include "quantized/product.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace tailrace {

namespace {

std::atomic<int> widest_set{3};

constexpr int64_t kRowsAtOnce = 256;  // their sums, [256][64] of float32, stay in the second cache
constexpr int kFewRows = 4;           // of a product, at most, but for AMX
constexpr int64_t kBlocksAtOnce = 128;  // of activations that a thread makes int8 at a time, of all rows together
constexpr int64_t kWholeCodes = 16;   // rows from which on nibbles are taken apart once, where AMX is (see panel)
constexpr int64_t kManyRows = 32;     // from here on a tile of 16 rows is faster than product_vnni

struct Call {
    const void *x;
    int64_t m, k, x_stride;
    const uint8_t *packed;
    const void *bias;
    int64_t n;
    void *y;
    const Format *f;
    Activations rows;
};

// Blocks [from, end).
struct Span {
    int64_t from, end;
};

enum Set : int { kPortable = 0, kNeon = 1, kAvx2 = 1, kVnni = 2, kAmx = 3 };  // no machine has both of 1

Set best_set() {
    Set best = kPortable;
#if TAILRACE_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = kAvx2;
    if (best == kAvx2 && supports_avx512() && __builtin_cpu_supports("avx512vnni")) best = has_amx() ? kAmx : kVnni;
#elif TAILRACE_NEON
    if (has_dot()) best = kNeon;
#endif
    return best;
}

// The best that tests have left.
Set widest_of_all() { return std::min(best_set(), static_cast<Set>(widest_set.load())); }

// What stands beside the codes of a row and a block: their scale, their sum times that, and what offsets take away.
TAILRACE_INLINE void place_block(const Activations &to, const Format &f, int64_t row, int64_t b, float largest,
                                 const int32_t sums[2]) {
    const int64_t tile = row / kTile, lane = row % kTile, place = (tile * to.blocks + b) * kTile + lane;
    const float scale = largest < 1e-30f ? 0.0f : largest / 127.0f;
    const bool two = halves(f) == 2;
    to.scale[place] = scale;
    to.total[place] = scale * static_cast<float>(sums[0] + sums[1]);
    int32_t *start = to.start + (tile * to.blocks + b) * 2 * kTile + lane;
    start[0] = to.begin - f.offset * (two ? sums[0] : sums[0] + sums[1]);
    start[kTile] = to.begin - f.offset * sums[1];
}

// One row of up to 32 inputs per block → q, scale, total and start. NaN and infinity make scale NaN or infinite, so
// that the row's results are no numbers either. A block below 1e-30 counts as zeros. Inlined, so that it is compiled for
// the instruction sets of its callers.
template <typename T>
TAILRACE_INLINE void quantize_block(const T *x, const Format &f, const Activations &to, int64_t row, int64_t b) {
    const int64_t tile = row / kTile, lane = row % kTile, place = (tile * to.blocks + b) * kTile + lane;
    int8_t *q = to.q + place * kBlock;
    float values[kBlock];
    uint32_t most = 0;
    for (int i = 0; i < kBlock; ++i) {
        values[i] = to_float(x[i]);
        uint32_t bits;
        std::memcpy(&bits, &values[i], 4);
        most = std::max(most, bits & 0x7fffffffu);  // NaN is above infinity here
    }
    float largest;
    std::memcpy(&largest, &most, 4);
    const float inverse = largest < 1e-30f ? 0.0f : 127.0f / largest;
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < kBlock; ++i) {
        const float shifted = values[i] * inverse + 12582912.0f;  // 1.5 · 2^23: rounds to the nearest, ties to even
        int32_t bits;
        std::memcpy(&bits, &shifted, 4);
        q[i] = static_cast<int8_t>(bits - 0x4b400000);
    }
    for (int i = 0; i < kBlock; ++i) sums[i / kSixteen] += q[i];
    place_block(to, f, row, b, largest, sums);
}

// Some blocks of a row, whose inputs begin at x.
TAILRACE_CLONES void quantize_bf16(const bf16 *x, const Format &f, const Activations &to, int64_t row, Span blocks) {
    for (int64_t b = blocks.from; b < blocks.end; ++b) quantize_block(x + b * kBlock, f, to, row, b);
}
TAILRACE_CLONES void quantize_f32(const float *x, const Format &f, const Activations &to, int64_t row, Span blocks) {
    for (int64_t b = blocks.from; b < blocks.end; ++b) quantize_block(x + b * kBlock, f, to, row, b);
}

#if TAILRACE_X86
TAILRACE_AVX512 inline __m512 sixteen_floats(const float *x) { return _mm512_loadu_ps(x); }
TAILRACE_AVX512 inline __m512 sixteen_floats(const bf16 *x) {
    return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)));
}

// The same operations.
template <typename T>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
void quantize_avx512(const T *x, const Format &f, const Activations &to, int64_t row, Span blocks) {
    const __m512i positive = _mm512_set1_epi32(0x7fffffff);
    x += blocks.from * kBlock;
    for (int64_t b = blocks.from; b < blocks.end; ++b, x += kBlock) {
        const __m512 values[2] = {sixteen_floats(x), sixteen_floats(x + kSixteen)};
        const __m512i first = _mm512_and_si512(_mm512_castps_si512(values[0]), positive);
        const __m512i second = _mm512_and_si512(_mm512_castps_si512(values[1]), positive);
        const uint32_t most = _mm512_reduce_max_epu32(_mm512_max_epu32(first, second));
        float largest;
        std::memcpy(&largest, &most, 4);
        const __m512 inverse = _mm512_set1_ps(largest < 1e-30f ? 0.0f : 127.0f / largest);
        int8_t *q = to.q + ((row / kTile * to.blocks + b) * kTile + row % kTile) * kBlock;
        __m128i low, high;
        for (int half = 0; half < 2; ++half) {
            const __m512 shifted = _mm512_add_ps(_mm512_mul_ps(values[half], inverse), _mm512_set1_ps(12582912.0f));
            const __m128i codes = _mm512_cvtepi32_epi8(_mm512_castps_si512(shifted));  // the lowest bytes
            _mm_storeu_si128(reinterpret_cast<__m128i *>(q + half * kSixteen), codes);
            (half ? high : low) = codes;
        }
        __m256i four = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), _mm256_set_m128i(high, low));
        four = _mm256_hadd_epi32(four, four);  // within each half
        four = _mm256_hadd_epi32(four, four);
        const int32_t sums[2] = {_mm256_extract_epi32(four, 0), _mm256_extract_epi32(four, 4)};
        place_block(to, f, row, b, largest, sums);
    }
}
#endif

// All rows, some blocks of a tile of rows at a time. Rows of a tile share cache lines, so that threads which took rows
// of one tile each would wait for each other's writes.
template <typename T> void quantize_rows(const Call &c, [[maybe_unused]] Set set) {
    const auto some = [&](int64_t row, Span blocks) {
        const T *x = static_cast<const T *>(c.x) + row * c.x_stride;
#if TAILRACE_X86
        if (set >= kVnni) return quantize_avx512(x, *c.f, c.rows, row, blocks);
#endif
        if constexpr (sizeof(T) == 4) quantize_f32(x, *c.f, c.rows, row, blocks);
        else quantize_bf16(x, *c.f, c.rows, row, blocks);
    };
    const int64_t blocks = c.rows.blocks, tiles = (c.m + kTile - 1) / kTile;
    const int64_t each = std::max<int64_t>(kSuper, kBlocksAtOnce / std::min(c.m, kTile));
    const int64_t parts = (blocks + each - 1) / each;
    const auto part = [&](int64_t i) {
        const int64_t first = i / parts * kTile, from = i % parts * each;
        for (int64_t r = first; r < std::min(c.m, first + kTile); ++r) some(r, {from, std::min(blocks, from + each)});
    };
    if (tiles * parts < 3)
        for (int64_t i = 0; i < tiles * parts; ++i) part(i);
    else Pool::instance().run(tiles * parts, part);
}

// Adds the products of the widened blocks to the sums of `count` rows from p.row on, where a tile begins. What comes next
// is fetched in parts, one beside each few rows: all of it at once would stand in the way of the first ones' loads. One
// row alone keeps up with memory without that, but for the processors that have AMX, which gain a fifth to a third by it.
void products(Product p, int64_t count, [[maybe_unused]] Set set, float *acc) {
    if (count == 1 && widest_of_all() != kAmx) p.next_bytes = 0;
    const int64_t each = set == kAmx ? kTile : kFewRows, calls = (count + each - 1) / each;
    int64_t left = p.next_bytes;
    p.next_bytes = (p.next_bytes / calls + 63) / 64 * 64;
    for (int64_t r = 0; r < count;) {
        int rows = static_cast<int>(std::min<int64_t>(count - r, kFewRows));
#if TAILRACE_X86
        if (set == kAmx) product_amx(p, rows = kTile, acc + r * kPack);
        else if (set == kVnni) product_vnni(p, rows, acc + r * kPack);
        else if (set == kAvx2) product_avx2(p, rows, acc + r * kPack);
        else
#elif TAILRACE_NEON
        if (set == kNeon) product_neon(p, rows, acc + r * kPack);
        else
#endif
            product_portable(p, rows, acc + r * kPack);
        r += rows;
        p.row += rows;
        p.next += static_cast<uintptr_t>(p.count * p.next_bytes);
        if ((left -= p.next_bytes) <= 0) p.next_bytes = 0;
    }
}

// One panel of 64 outputs for rows [from, from + count). Processors with AMX multiply by the two units that also take
// nibbles apart, so there they are taken apart once for many rows.
template <typename T> void panel(const Call &c, int64_t number, int64_t from, int64_t count, Set set) {
    thread_local Lines<float> sums;
    thread_local Widened w;
    const uint8_t *weights = c.packed + number * panel_bytes(*c.f, c.k);
    const int64_t width = std::min(kPack, c.n - number * kPack), blocks = c.k / kBlock;
    float bias[kPack] = {};
    if (c.bias)
        for (int64_t j = 0; j < width; ++j)  // −0 becomes 0: a sum of zeros may have either sign
            bias[j] = to_float(static_cast<const T *>(c.bias)[number * kPack + j]) + 0.0f;
    const int64_t rows = set == kAmx ? (count + kTile - 1) / kTile * kTile : count;
    sums.resize(static_cast<size_t>(rows * kPack));
    for (int64_t r = 0; r < rows; ++r) std::copy(bias, bias + kPack, sums.data() + r * kPack);
    const int64_t bytes = scale_bytes(*c.f) + code_bytes(*c.f);
    const bool neon = TAILRACE_NEON && set == kNeon;
    const bool whole = set == kVnni && widest_of_all() == kAmx && count >= kWholeCodes;
    const bool nibbles = (set == kVnni || neon) && c.f->codes == Codes::four && !whole;
    const bool packed = nibbles || (set != kAmx && c.f->codes == Codes::eight);
    const bool half = c.f->scales == Scales::half || c.f->scales == Scales::half_min;
    const bool shifted = can_shift(*c.f) && (set == kVnni || set == kAmx);
    const bool scales_packed = set == kVnni && packed && half;
    for (int64_t first = 0; first < blocks; first += kSuper) {
        const int64_t n = std::min(kSuper, blocks - first);
        const uint8_t *at = weights + block_at(*c.f, first);
        const uintptr_t next = reinterpret_cast<uintptr_t>(weights) + static_cast<uintptr_t>(block_at(*c.f, first + n));
        if (!scales_packed) widen_scales(*c.f, weights, first, n, w);
        if (!packed) widen_codes(*c.f, weights, first, n, set == kAmx || neon ? c.f->offset : 0, w);
        Product p{w.codes, kCell, &w, &c.rows, from, first, n, halves(*c.f) == 2, has_min(*c.f), nibbles,
                  shifted, scales_packed, at, next, bytes};
        if (packed) p.codes = at + scale_bytes(*c.f), p.stride = bytes;
        products(p, count, set, sums.data());
    }
    T *y = static_cast<T *>(c.y) + from * c.n + number * kPack;
    for (int64_t r = 0; r < count; ++r) {
        if constexpr (sizeof(T) == 4) std::copy_n(sums.data() + r * kPack, width, y + r * c.n);
        else round_row(sums.data() + r * kPack, width, y + r * c.n);
    }
}

// The instruction set for so many rows. Tiles are padded to 16 rows, and two short sums per block don't pay there.
Set set_for(const Format &f, int64_t m) {
    const Set best = widest_of_all();
    const int64_t padded = (m + kTile - 1) / kTile * kTile;
    const bool tiles = m >= kManyRows && padded * 5 <= m * 6 && halves(f) == 1;
    return best == kAmx && !tiles ? kVnni : best;
}

template <typename T> void run(Call c) {
    const Set set = set_for(*c.f, c.m);
    if (set == kVnni && can_shift(*c.f)) c.rows.begin = kShift;
    quantize_rows<T>(c, widest_of_all());
    for (int64_t from = 0; from < c.m; from += kRowsAtOnce) {
        const int64_t count = std::min(kRowsAtOnce, c.m - from);
        Pool::instance().sweep((c.n + kPack - 1) / kPack, [&](int64_t at, int64_t) {
            if (set == kAmx) begin_amx();
            panel<T>(c, at, from, count, set);
            if (set == kAmx) end_amx();
        });
    }
}

}  // namespace

void use_at_most(int set) { widest_set = set; }
int best_quantized_set() { return best_set(); }

void quantized_linear(const void *x, Type type, int64_t m, int64_t k, int64_t x_stride, const void *packed, int format,
                      const void *bias, int64_t n, void *y) {
    if (m == 0) return;
    thread_local Lines<int8_t> q;
    thread_local Lines<float> floats;
    thread_local Lines<int32_t> starts;
    const int64_t blocks = k / kBlock, places = (m + kTile - 1) / kTile * kTile * blocks;
    if (static_cast<int64_t>(q.size()) < places * kBlock) {
        floats.resize(static_cast<size_t>(places * 2));
        starts.resize(static_cast<size_t>(places * 2));
        q.resize(static_cast<size_t>(places * kBlock));  // the last: the others are there if it is
    }
    const Activations rows{q.data(), floats.data(), floats.data() + places, starts.data(), blocks};
    const Call call{x, m, k, x_stride, static_cast<const uint8_t *>(packed), bias, n, y, format_of(format), rows};
    type == Type::f32 ? run<float>(call) : run<bf16>(call);
}

}  // namespace tailrace
