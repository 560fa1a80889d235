// What the portable loops of kv_products.cpp and those by AVX-512 VNNI have in common.
#pragma once
#include <limits>

#include "quantized/kv_products.h"

namespace tailrace {

constexpr float kMostWeight = 127 * 128 + 127;  // the largest code of a weight
constexpr float kLeastWhole = 0x1p-100f;        // rows that are all below this count as zeros

// The scale of a row's weights, and the factor that makes codes of them.
struct WeightScale {
    float scale, by;
};
inline WeightScale scale_of_weights(float top) {
    if (top < kLeastWhole) return {0.0f, 0.0f};
    if (!(top < std::numeric_limits<float>::infinity())) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
    return {top / kMostWeight, kMostWeight / top};
}

// The dimensions [from, dim) of rows of `dim` values.
struct ValuePart {
    int64_t from, dim;
};
void weigh_portable(int rows, const WeightCodes &weights, const CodedChunk &chunk, ValuePart part, float *out);

// Whether the machine has AVX-512 VNNI, and no test has turned AVX-512 off.
bool has_kv_vnni();
void score_vnni(int rows, const QueryCodes &queries, const CodedChunk &chunk, int64_t dim, float *s);  // dim % 4 == 0
void soften_vnni(const float *s, int rows, const uint64_t *seen, float scale, const CodedChunk &chunk, float *max,
                 float *sum, WeightCodes &to);
void weigh_vnni(int rows, const WeightCodes &weights, const CodedChunk &chunk, int64_t dim, float *out);

}  // namespace tailrace
