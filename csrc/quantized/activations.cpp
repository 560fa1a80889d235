// Rows of activations → int8 and what stands beside the codes (product.h).
#include "base/exact.h"
#include "base/pool.h"
#include "base/simd.h"
#include "quantized/call.h"

#include <algorithm>

namespace tailrace {

namespace {

constexpr int64_t kBlocksAtOnce = 128;  // of activations that a thread makes int8 at a time, of all rows together

// Blocks [from, end).
struct Span {
    int64_t from, end;
};

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

// A part of the work of making a call's rows int8: some blocks of a tile of rows. Rows of a tile share cache lines, so
// that threads which took rows of one tile each would wait for each other's writes.
struct Part {
    const Call *call;
    int64_t first;  // row
    Span blocks;
};

template <typename T> void quantize_part(const Part &part, [[maybe_unused]] Set set) {
    const Call &c = *part.call;
    for (int64_t row = part.first; row < std::min(c.m, part.first + kTile); ++row) {
        const T *x = static_cast<const T *>(c.x) + row * c.x_stride;
#if TAILRACE_X86
        if (set >= kVnni) {
            quantize_avx512(x, *c.f, c.rows, row, part.blocks);
            continue;
        }
#endif
        if constexpr (sizeof(T) == 4) quantize_f32(x, *c.f, c.rows, row, part.blocks);
        else quantize_bf16(x, *c.f, c.rows, row, part.blocks);
    }
}

template <typename T> void quantize_all(const std::vector<Call> &calls, Set set) {
    thread_local std::vector<Part> parts;
    parts.clear();
    for (const Call &c : calls) {
        const int64_t blocks = c.rows.blocks, each = std::max<int64_t>(kSuper, kBlocksAtOnce / std::min(c.m, kTile));
        for (int64_t first = 0; first < c.m; first += kTile)
            for (int64_t from = 0; from < blocks; from += each)
                parts.push_back({&c, first, {from, std::min(blocks, from + each)}});
    }
    const std::vector<Part> &all = parts;  // the other threads have lists of their own
    if (all.size() < 3)
        for (const Part &part : all) quantize_part<T>(part, set);
    else Pool::instance().run(static_cast<int64_t>(all.size()), [&](int64_t i) {
        quantize_part<T>(all[static_cast<size_t>(i)], set);
    });
}

}  // namespace

void quantize_rows(const std::vector<Call> &calls, Type type, Set set) {
    type == Type::f32 ? quantize_all<float>(calls, set) : quantize_all<bf16>(calls, set);
}

}  // namespace tailrace
