// The products by ARM's dot products of eight bits (ARMv8.2, FEAT_DotProd): both factors have a sign.
#include "quantized/product.h"

#if TAILRACE_NEON
#include <arm_neon.h>
#include <sys/auxv.h>

namespace tailrace {
namespace {

#if defined(__clang__)
#define TAILRACE_DOT __attribute__((target("dotprod")))
#else
#define TAILRACE_DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
constexpr int kVectors = 4;  // of four outputs each, at once

// Codes of four inputs' group, of four outputs: widened with a sign; or as they are packed, nibbles or bytes, the
// latter of 128 more than their value.
enum class Form { widened, nibbles, bytes };

template <Form Kind> TAILRACE_DOT inline int8x16_t codes_at(const uint8_t *codes, int group, int output) {
    const int64_t four = 4 * output;
    if (Kind == Form::widened) return vld1q_s8(reinterpret_cast<const int8_t *>(codes) + group * 4 * kPack + four);
    if (Kind == Form::bytes)
        return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(codes + group * 4 * kPack + four), vdupq_n_u8(128)));
    const uint8x16_t two = vld1q_u8(codes + group % 4 * 4 * kPack + four);
    return vreinterpretq_s8_u8(group < 4 ? vandq_u8(two, vdupq_n_u8(15)) : vshrq_n_u8(two, 4));
}

// vdotq_laneq_s32 with the lane as a constant of the template: a parameter is none for GCC without optimisation.
template <int Lane> TAILRACE_DOT inline int32x4_t dot(int32x4_t sum, int8x16_t codes, int8x16_t q) {
    return vdotq_laneq_s32(sum, codes, q, Lane);
}

// Four groups: the 16 inputs of q.
template <int R, Form Kind>
TAILRACE_DOT inline void sixteen_inputs(const uint8_t *codes, int half, int output, const int8_t *q,
                                        int32x4_t (&sums)[R][kVectors]) {
    int8x16_t x[R];
    for (int r = 0; r < R; ++r) x[r] = vld1q_s8(q + r * kBlock + half * kSixteen);
    for (int v = 0; v < kVectors; ++v) {
        const int at = output + 4 * v, first = half * 4;
        const int8x16_t w0 = codes_at<Kind>(codes, first, at), w1 = codes_at<Kind>(codes, first + 1, at);
        const int8x16_t w2 = codes_at<Kind>(codes, first + 2, at), w3 = codes_at<Kind>(codes, first + 3, at);
        for (int r = 0; r < R; ++r)
            sums[r][v] = dot<3>(dot<2>(dot<1>(dot<0>(sums[r][v], w0, x[r]), w1, x[r]), w2, x[r]), w3, x[r]);
    }
}

// 16 outputs after each other, so that the sums of all blocks stay in registers.
template <int R, Form Kind> TAILRACE_DOT void rows_neon(const Product &p, float *acc) {
    const Activations &all = *p.x;
    const int64_t tile = p.row / kTile, lane = p.row % kTile;
    const int parts = p.twice ? 2 : 1;
    for (int output = 0; output < kPack; output += 4 * kVectors) {
        float32x4_t to[R][kVectors];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < kVectors; ++v) to[r][v] = vld1q_f32(acc + r * kPack + output + 4 * v);
        for (int64_t b = 0; b < p.count; ++b) {
            if (output == 0) fetch_next(p, b);
            const int64_t place = (tile * all.blocks + p.first + b) * kTile + lane;
            const int8_t *q = all.q + place * kBlock;
            for (int part = 0; part < parts; ++part) {
                const int32_t *start = all.start + ((tile * all.blocks + p.first + b) * 2 + part) * kTile + lane;
                int32x4_t sums[R][kVectors];
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < kVectors; ++v) sums[r][v] = vdupq_n_s32(Kind == Form::nibbles ? start[r] : 0);
                const uint8_t *codes = p.codes + b * p.stride;
                sixteen_inputs<R, Kind>(codes, part, output, q, sums);
                if (!p.twice) sixteen_inputs<R, Kind>(codes, 1, output, q, sums);
                for (int v = 0; v < kVectors; ++v) {
                    const float32x4_t w = vld1q_f32(p.w->scales + (b * parts + part) * kPack + output + 4 * v);
                    for (int r = 0; r < R; ++r) {
                        const float32x4_t product = vmulq_f32(vcvtq_f32_s32(sums[r][v]), w);
                        to[r][v] = vfmaq_f32(to[r][v], product, vdupq_n_f32(all.scale[place + r]));
                    }
                }
            }
            if (!p.min) continue;
            for (int v = 0; v < kVectors; ++v) {
                const float32x4_t min = vld1q_f32(p.w->mins + b * kPack + output + 4 * v);
                for (int r = 0; r < R; ++r) to[r][v] = vfmaq_f32(to[r][v], min, vdupq_n_f32(all.total[place + r]));
            }
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < kVectors; ++v) vst1q_f32(acc + r * kPack + output + 4 * v, to[r][v]);
    }
}

template <Form Kind> void some_neon(const Product &p, int rows, float *acc) {
    switch (rows) {
        case 1: return rows_neon<1, Kind>(p, acc);
        case 2: return rows_neon<2, Kind>(p, acc);
        case 3: return rows_neon<3, Kind>(p, acc);
        default: return rows_neon<4, Kind>(p, acc);
    }
}

}  // namespace

bool has_dot() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }

void product_neon(const Product &p, int rows, float *acc) {
    if (p.nibbles) return some_neon<Form::nibbles>(p, rows, acc);
    p.stride == kCell ? some_neon<Form::widened>(p, rows, acc) : some_neon<Form::bytes>(p, rows, acc);
}

}  // namespace tailrace
#endif
