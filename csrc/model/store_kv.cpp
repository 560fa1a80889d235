// New keys and values into the cache, as numbers or codes. attention.cpp says how the cache is laid out.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/pool.h"
#include "base/simd.h"
#include "kernels.h"
#include "quantized/kv_codes.h"
#include "quantized/kv_products.h"

namespace tailrace {
namespace {

// Write the codes or numbers of one head of one token into the cache. pair: how many of its numbers lie side by side, or
// of the positions' values.
template <typename T> void place_key(const T *from, int64_t dim, int64_t at, int64_t pair, T *keys) {
    T *to = keys + at / 16 * 16 * dim + at % 16 * pair;
    if (pair == 4)
        for (int64_t d = 0; d < dim; d += 4) std::memcpy(to + d * 16, from + d, 4 * sizeof(T));
    else if (pair == 2)
        for (int64_t d = 0; d < dim; d += 2) std::memcpy(to + d * 16, from + d, 2 * sizeof(T));
    else
        for (int64_t d = 0; d < dim; ++d) to[d * 16] = from[d];
}
#if TAILRACE_X86
// Write every other number of `to`. The numbers between are another token's, which another thread may be writing.
TAILRACE_AVX512 void every_other(const bf16 *from, int64_t dim, bf16 *to) {
    for (int64_t d = 0; d < dim; d += 16) {
        const int64_t count = std::min<int64_t>(16, dim - d);
        const __m256i numbers = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << count) - 1), from + d);
        _mm512_mask_storeu_epi16(to + 2 * d, 0x55555555u >> (32 - 2 * count), _mm512_cvtepu16_epi32(numbers));
    }
}
#endif
template <typename T> void place_value(const T *from, int64_t dim, int64_t at, int64_t pair, T *values) {
    T *to = values + at / pair * pair * dim + at % pair;
#if TAILRACE_X86
    if constexpr (std::is_same_v<T, bf16>)
        if (pair == 2 && has_avx512()) return every_other(from, dim, to);
#endif
    for (int64_t d = 0; d < dim; ++d) to[d * pair] = from[d];
}

template <typename T> void store(const Store &c) {
    constexpr int64_t pair = sizeof(T) == 2 ? 2 : 1;
    const bool dots = c.code == KvCode::int8;
    const int64_t key_pair = dots ? key_quad(c.head_dim) : pair, value_pair = dots ? 4 : pair;
    const int64_t widest = std::max(c.head_dim, c.value_dim);
    const auto token = [&](int64_t t) {
        thread_local std::vector<float> numbers;
        thread_local std::vector<uint8_t> codes;
        numbers.resize(static_cast<size_t>(widest)), codes.resize(static_cast<size_t>(widest));
        const auto coded = [&](const T *from, int64_t dim) {
            for (int64_t d = 0; d < dim; ++d) numbers[d] = to_float(from[d]);
            return encode(c.code, numbers.data(), dim, codes.data());
        };
        const int64_t block = c.slots[t] / c.block_size, in = c.slots[t] % c.block_size;
        for (int64_t h = 0; h < c.heads; ++h) {
            const int64_t at = (block * c.heads + h) * c.block_size + in;
            const T *k = static_cast<const T *>(c.key) + t * c.key_stride + h * c.head_dim;
            const T *v = static_cast<const T *>(c.value) + t * c.value_stride + h * c.value_dim;
            if (c.code == KvCode::none) {
                place_key(k, c.head_dim, at, pair, static_cast<T *>(c.keys));
                place_value(v, c.value_dim, at, pair, static_cast<T *>(c.values));
                continue;
            }
            c.scales[at] = coded(k, c.head_dim);
            place_key(codes.data(), c.head_dim, at, key_pair, static_cast<uint8_t *>(c.keys));
            c.scales[c.blocks * c.heads * c.block_size + at] = coded(v, c.value_dim);
            place_value(codes.data(), c.value_dim, at, value_pair, static_cast<uint8_t *>(c.values));
        }
    };
    // A task stores sixteen tokens: some microseconds of writes to memory outside the caches. The keys of 16 positions
    // share cache lines, so tasks of a prompt begin at multiples of 16.
    const int64_t before = c.tokens ? c.slots[0] % 16 : 0;
    Pool::instance().run((before + c.tokens + 15) / 16, [&](int64_t i) {
        for (int64_t t = std::max<int64_t>(0, 16 * i - before); t < std::min(c.tokens, 16 * (i + 1) - before); ++t) token(t);
    });
}

}  // namespace

void store_kv(const Store &call, Type type) {
    for (int64_t t = 0; t < call.tokens; ++t)
        require(call.slots[t] >= 0 && call.slots[t] < call.blocks * call.block_size, "slots",
                "slots must lie within the cache", call.slots[t]);
    type == Type::f32 ? store<float>(call) : store<bf16>(call);
}

}  // namespace tailrace
