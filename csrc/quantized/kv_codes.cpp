#include "quantized/kv_codes.h"

#include <array>
#include <limits>

namespace tailrace {
namespace {

constexpr float kLeast = 0x1p-100f;  // below it 448 / x may overflow

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// Codes below 8 have no leading one. The code that stands for NaN is never written.
inline float widened_fp8(uint8_t code) {
    const uint32_t size = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
    const uint32_t small = bits_of(static_cast<float>(static_cast<int32_t>(size)) * 0x1p-9f);
    return from_bits((size < 8 ? small : (size + (120u << 3)) << 20) | sign);
}

// |x| · by is at most 127, and half a rounding more.
TAILRACE_CLONES void encode_int8(const float *x, int64_t n, float by, uint8_t *codes) {
    for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(x[i] * by)));
}

// Ties to even; from the last place of numbers below 2^-6, which have no leading one, up to the first with one.
TAILRACE_CLONES void encode_fp8(const float *x, int64_t n, float by, uint8_t *codes) {
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t bits = bits_of(x[i] * by), size = bits & 0x7fffffffu;
        const uint32_t normal = ((size + 0x7ffffu + ((size >> 20) & 1u)) >> 20) - (120u << 3);
        const uint32_t small = static_cast<uint32_t>(static_cast<int32_t>(std::nearbyint(from_bits(size) * 512.0f)));
        codes[i] = static_cast<uint8_t>((from_bits(size) < 0x1p-6f ? small : normal) | ((bits >> 24) & 0x80u));
    }
}

// The largest magnitude, as its bits: those of NaN and infinity are above all others.
TAILRACE_CLONES uint32_t largest(const float *x, int64_t n) {
    uint32_t top = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t size = bits_of(x[i]) & 0x7fffffffu;
        top = size > top ? size : top;
    }
    return top;
}

TAILRACE_CLONES void widen_fp8(const uint8_t *codes, int64_t n, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = widened_fp8(codes[i]);
}
TAILRACE_CLONES void widen_fp8(const uint8_t *codes, int64_t n, bf16 *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<bf16>(bits_of(widened_fp8(codes[i])) >> 16);
}

#if TAILRACE_X86
#define TAILRACE_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")))

bool has_vbmi() {
    static const bool yes = __builtin_cpu_supports("avx512vbmi");
    return yes && has_avx512();
}

// Of the magnitudes 0 … 127, the low and the high bytes of their bfloat16.
struct Table {
    alignas(64) std::array<uint8_t, 128> low, high;
    Table() {
        for (int i = 0; i < 128; ++i) {
            const uint32_t bits = bits_of(widened_fp8(static_cast<uint8_t>(i)));
            low[i] = static_cast<uint8_t>(bits >> 16), high[i] = static_cast<uint8_t>(bits >> 24);
        }
    }
};

// Sixty-four codes at once: two look-ups among 128 bytes (vpermi2b), then the sign. n is a multiple of 16.
TAILRACE_VBMI void widen_vbmi(const uint8_t *codes, int64_t n, bf16 *out) {
    static const Table table;
    const __m512i low0 = _mm512_load_si512(table.low.data()), low1 = _mm512_load_si512(table.low.data() + 64);
    const __m512i high0 = _mm512_load_si512(table.high.data()), high1 = _mm512_load_si512(table.high.data() + 64);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // unpacking takes from each 128 bits by turns
    for (int64_t i = 0; i < n; i += 64) {
        const __mmask8 there = static_cast<__mmask8>(n - i >= 64 ? 0xff : (1 << ((n - i) / 8)) - 1);
        const __m512i x = _mm512_permutexvar_epi64(order, _mm512_maskz_loadu_epi64(there, codes + i));
        const __m512i low = _mm512_permutex2var_epi8(low0, x, low1);  // the look-up reads seven bits
        const __m512i high = _mm512_permutex2var_epi8(high0, x, high1);
        const __m512i top = _mm512_or_si512(high, _mm512_and_si512(x, sign));
        const __m512i first = _mm512_unpacklo_epi8(low, top), second = _mm512_unpackhi_epi8(low, top);
        if (there == 0xff) {
            _mm512_storeu_si512(out + i, first);
            _mm512_storeu_si512(out + i + 32, second);
        } else {
            const uint64_t words = (uint64_t{1} << (n - i)) - 1;
            _mm512_mask_storeu_epi16(out + i, static_cast<__mmask32>(words), first);
            _mm512_mask_storeu_epi16(out + i + 32, static_cast<__mmask32>(words >> 32), second);
        }
    }
}
#endif

}  // namespace

float encode(KvCode kind, const float *x, int64_t n, uint8_t *codes) {
    const uint32_t top = largest(x, n);
    const bool finite = top < 0x7f800000u;
    if (!finite || from_bits(top) < kLeast) {
        std::memset(codes, 0, static_cast<size_t>(n));
        return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    const float most = kind == KvCode::int8 ? 127.0f : 448.0f;
    (kind == KvCode::int8 ? encode_int8 : encode_fp8)(x, n, most / from_bits(top), codes);
    return from_bits(top) / most;
}

void widen_float8(const uint8_t *codes, int64_t n, bf16 *out) {
#if TAILRACE_X86
    if (has_vbmi() && n % 16 == 0) return widen_vbmi(codes, n, out);
#endif
    widen_fp8(codes, n, out);
}

void widen_float8(const uint8_t *codes, int64_t n, float *out) { widen_fp8(codes, n, out); }

}  // namespace tailrace
