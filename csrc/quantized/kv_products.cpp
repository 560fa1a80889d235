// The portable loops of attention over codes (kv_products.h), and the choice of the instruction set.
#include "quantized/kv_products.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/exact.h"
#include "base/simd.h"
#include "quantized/kv_products_vnni.h"

namespace tailrace {
namespace {

constexpr float kMostQuery = 127 * 128;     // the largest code of a query
constexpr float kRound = 12582912.0f;       // 1.5 · 2^23: adding it rounds to the nearest integer, ties to even
constexpr int64_t kAtOnce = 64;             // dimensions

inline int32_t rounded(float x) {
    const float shifted = x + kRound;
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    return bits - 0x4b400000;
}

// Add the products of `count` groups of four codes, and of four codes of x, to the sums of n columns.
TAILRACE_CLONES void add_fours(const int8_t *codes, int64_t stride, const int8_t *x, int64_t count, int64_t n, int32_t *sums) {
    for (int64_t g = 0; g < count; ++g, codes += stride, x += 4)
        for (int64_t j = 0; j < n; ++j)
            sums[j] += codes[4 * j] * x[0] + codes[4 * j + 1] * x[1] + codes[4 * j + 2] * x[2] + codes[4 * j + 3] * x[3];
}

TAILRACE_CLONES void add_twos(const int8_t *codes, int64_t stride, const int8_t *x, int64_t count, int64_t n, int32_t *sums) {
    for (int64_t g = 0; g < count; ++g, codes += stride, x += 2)
        for (int64_t j = 0; j < n; ++j) sums[j] += codes[2 * j] * x[0] + codes[2 * j + 1] * x[1];
}

void score_portable(int rows, const QueryCodes &queries, const CodedChunk &chunk, int64_t dim, float *s) {
    const int64_t side = key_quad(dim);
    const auto add = side == 4 ? add_fours : add_twos;
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < 4; ++i) {
            int32_t high[16] = {}, low[16] = {};
            const int8_t *keys = reinterpret_cast<const int8_t *>(chunk.keys[i]);
            add(keys, 16 * side, queries.high + r * dim, dim / side, 16, high);
            add(keys, 16 * side, queries.low + r * dim, dim / side, 16, low);
            for (int j = 0; j < 16; ++j) {
                const float whole = static_cast<float>(high[j]) * 128.0f + static_cast<float>(low[j]);
                s[r * kCodedPositions + 16 * i + j] = whole * (chunk.key_scales[i][j] * queries.scale[r]);
            }
        }
}

// One row of soften_codes. x: its scores, which become weights.
TAILRACE_CLONES float soften_row(float *x, uint64_t seen, float scale, float *max, float *sum) {
    float part[16];
    for (int j = 0; j < kCodedPositions; ++j) x[j] = seen >> j & 1 ? x[j] * scale : kNone;
    for (int j = 0; j < 16; ++j) {
        const float a = x[j] > x[j + 16] ? x[j] : x[j + 16], b = x[j + 32] > x[j + 48] ? x[j + 32] : x[j + 48];
        part[j] = a > b ? a : b;
    }
    for (int width = 8; width; width /= 2)
        for (int j = 0; j < width; ++j) part[j] = part[j] > part[j + width] ? part[j] : part[j + width];
    const float top = *max > part[0] ? *max : part[0], shift = top == kNone ? 0.0f : top;
    for (int j = 0; j < kCodedPositions; ++j) {
        const float weight = power(x[j] - shift);
        x[j] = seen >> j & 1 ? weight : 0.0f;
    }
    for (int j = 0; j < 16; ++j) part[j] = (x[j] + x[j + 16]) + (x[j + 32] + x[j + 48]);
    for (int width = 8; width; width /= 2)
        for (int j = 0; j < width; ++j) part[j] += part[j + width];
    const float decay = *max == kNone ? 0.0f : power(*max - shift);
    *sum = __builtin_fmaf(*sum, decay, part[0]);
    *max = top;
    return decay;
}

// Multiply the weights by the scales of their values, and write them as codes. Return their scale.
TAILRACE_CLONES float code_weights(float *x, uint64_t seen, const float *const *scales, uint8_t *high, uint8_t *low) {
    uint32_t most = 0;
    for (int j = 0; j < kCodedPositions; ++j) {
        x[j] = seen >> j & 1 ? x[j] * scales[j / 16][j % 16] : 0.0f;  // the scale of a hidden position may be NaN
        uint32_t bits;
        std::memcpy(&bits, x + j, 4);
        most = std::max(most, bits & 0x7fffffffu);
    }
    float top;
    std::memcpy(&top, &most, 4);
    const float by = scale_of_weights(top).by;
    for (int j = 0; j < kCodedPositions; ++j) {
        const int32_t code = rounded(x[j] * by);
        high[j] = static_cast<uint8_t>(code >> 7 & 127), low[j] = static_cast<uint8_t>(code & 127);
    }
    return scale_of_weights(top).scale;
}

void soften_portable(const float *s, int rows, const uint64_t *seen, float scale, const CodedChunk &chunk, float *max,
                     float *sum, WeightCodes &to) {
    float x[kCodedPositions];
    for (int r = 0; r < rows; ++r) {
        std::memcpy(x, s + r * kCodedPositions, sizeof x);
        to.decay[r] = soften_row(x, seen[r], scale, max + r, sum + r);
        const int at = r * kCodedPositions;
        to.scale[r] = code_weights(x, seen[r], chunk.value_scales, to.high + at, to.low + at);
    }
}

}  // namespace

void weigh_portable(int rows, const WeightCodes &weights, const CodedChunk &chunk, ValuePart part, float *out) {
    for (int r = 0; r < rows; ++r)
        for (int64_t at = part.from; at < part.dim; at += kAtOnce) {
            const int64_t n = std::min(kAtOnce, part.dim - at);
            int32_t high[kAtOnce] = {}, low[kAtOnce] = {};
            for (int i = 0; i < chunk.groups; ++i) {
                const int8_t *values = reinterpret_cast<const int8_t *>(chunk.values[i]) + 4 * at;
                const int place = r * kCodedPositions + 16 * i;
                add_fours(values, 4 * part.dim, reinterpret_cast<const int8_t *>(weights.high) + place, 4, n, high);
                add_fours(values, 4 * part.dim, reinterpret_cast<const int8_t *>(weights.low) + place, 4, n, low);
            }
            for (int64_t d = 0; d < n; ++d) {
                const float whole = static_cast<float>(high[d]) * 128.0f + static_cast<float>(low[d]);
                float &to = out[r * part.dim + at + d];
                to = __builtin_fmaf(to, weights.decay[r], whole * weights.scale[r]);
            }
        }
}

void code_query(const float *query, int64_t dim, const QueryCodes &to) {
    uint32_t most = 0;
    for (int64_t d = 0; d < dim; ++d) {
        uint32_t bits;
        std::memcpy(&bits, query + d, 4);
        most = std::max(most, bits & 0x7fffffffu);
    }
    float top;
    std::memcpy(&top, &most, 4);
    const bool finite = most < 0x7f800000u, zero = top < kLeastWhole;
    const float by = finite && !zero ? kMostQuery / top : 0.0f;
    *to.scale = !finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0.0f : top / kMostQuery;
    to.start[0] = to.start[1] = 0;
    for (int64_t d = 0; d < dim; ++d) {
        const int32_t code = finite ? rounded(query[d] * by) : 0, high = (code + 64) >> 7;
        to.high[d] = static_cast<int8_t>(high), to.low[d] = static_cast<int8_t>(code - 128 * high);
        to.start[0] -= 128 * high, to.start[1] -= 128 * (code - 128 * high);
    }
}

void score_codes(int rows, const QueryCodes &queries, const CodedChunk &chunk, int64_t dim, float *s) {
    has_kv_vnni() && dim % 4 == 0 ? score_vnni(rows, queries, chunk, dim, s) : score_portable(rows, queries, chunk, dim, s);
}

void soften_codes(const float *s, int rows, const uint64_t *seen, float scale, const CodedChunk &chunk, float *max,
                  float *sum, WeightCodes &to) {
    (has_kv_vnni() ? soften_vnni : soften_portable)(s, rows, seen, scale, chunk, max, sum, to);
}

void weigh_codes(int rows, const WeightCodes &weights, const CodedChunk &chunk, int64_t dim, float *out) {
    has_kv_vnni() ? weigh_vnni(rows, weights, chunk, dim, out) : weigh_portable(rows, weights, chunk, {0, dim}, out);
}

}  // namespace tailrace
