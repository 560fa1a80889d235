// The products by AVX-512 VNNI, for 1 to 4 rows of one tile.
#include "quantized/product.h"

#if TAILRACE_X86
#define TAILRACE_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace tailrace {
namespace {

// The codes of a group of four inputs and of 16 outputs: bytes, or nibbles in the order of pack.cpp.
template <bool Nibbles> TAILRACE_VNNI inline __m512i codes_at(const uint8_t *codes, int group, int j) {
    if (!Nibbles) return _mm512_loadu_si512(codes + group * 256 + 64 * j);
    const __m512i two = _mm512_loadu_si512(codes + group % 4 * 256 + 64 * j);
    return _mm512_and_si512(group < 4 ? two : _mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
}

// The factors of a block's codes. half and half_min are float16, as they are packed; the others are widened. The sums
// of single and single_min are not shifted.
enum class Beside { single, single_min, scale, scale_min, two_scales, half, half_min };
constexpr bool is_half(Beside kind) { return kind == Beside::half || kind == Beside::half_min; }
constexpr bool has_min(Beside kind) {
    return kind == Beside::single_min || kind == Beside::scale_min || kind == Beside::half_min;
}
constexpr bool is_shifted(Beside kind) { return kind != Beside::single && kind != Beside::single_min; }

// The scales or minimums of 16 outputs.
template <bool Half> TAILRACE_VNNI inline __m512 sixteen(const void *from, int64_t at) {
    if (!Half) return _mm512_load_ps(static_cast<const float *>(from) + at);
    const uint16_t *halves = static_cast<const uint16_t *>(from) + at;
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(halves)));
}

template <int R, Beside Kind, bool Nibbles> TAILRACE_VNNI void rows_vnni(const Product &p, float *acc) {
    constexpr bool half_wide = is_half(Kind), min = has_min(Kind), shifted = is_shifted(Kind);
    constexpr bool kept = R <= 2;  // the registers hold the sums of all blocks
    constexpr int parts = Kind == Beside::two_scales ? 2 : 1, groups = kBlock / 4 / parts;
    const ActivationRow at(*p.x, p.row);
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

// The same for four rows and 32 outputs (R rows and J · 16 outputs) at a time, so that the sums of all blocks stay in
// registers. An input that is spread over a register serves J products: processors spread one input per cycle, and
// some do two multiplications per cycle.
template <int R, int J, Beside Kind, bool Nibbles> TAILRACE_VNNI void four_rows_vnni(const Product &p, float *acc) {
    constexpr bool half_wide = is_half(Kind), min = has_min(Kind), shifted = is_shifted(Kind);
    constexpr int parts = Kind == Beside::two_scales ? 2 : 1, groups = kBlock / 4 / parts;
    const ActivationRow at(*p.x, p.row);
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

}  // namespace

void product_vnni(const Product &p, int rows, float *acc) {
    p.nibbles ? product_of<true>(p, rows, acc) : product_of<false>(p, rows, acc);
}

}  // namespace tailrace
#endif
