// Blocks of a panel → codes of a byte each, and scales in float32.
#include "base/simd.h"
#include "quantized/blocks.h"

namespace tailrace {
namespace {

// Values of ggml's two tables of 4 bits, 128 added; those of MXFP4 are twice the numbers, its scale is half.
alignas(64) constexpr uint8_t kIq4[16] = {1,   24,  45,  63,  79,  93,  106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(64) constexpr uint8_t kMxfp4[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

// float16 → float32, exactly, subnormal ones too: the exponent's offset is a power of two that is multiplied.
inline float from_half(uint16_t half) {
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13, offset = (254u - 15u) << 23;
    float value, scale;
    std::memcpy(&value, &magnitude, 4);
    std::memcpy(&scale, &offset, 4);
    value *= scale;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits |= static_cast<uint32_t>(half & 0x8000) << 16;
    std::memcpy(&value, &bits, 4);
    return value;
}

TAILRACE_CLONES void widen_low(const uint8_t *low, int less, uint8_t *out) {
    for (int i = 0; i < kCell / 2; ++i) {
        out[i] = static_cast<uint8_t>((low[i] & 15) - less);
        out[i + kCell / 2] = static_cast<uint8_t>((low[i] >> 4) - less);
    }
}

// Shifts are constants once the loops over parts are unrolled.
TAILRACE_CLONES void widen_five(const uint8_t *low, int less, uint8_t *out) {
    const uint8_t *fifth = low + kCell / 2;
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part)
        for (int i = 0; i < 256; ++i) {
            const uint8_t four = low[part * 256 + i], bits = fifth[i];
            out[part * 256 + i] = static_cast<uint8_t>(((four & 15) | ((bits >> part & 1) << 4)) - less);
            out[part * 256 + i + 1024] = static_cast<uint8_t>(((four >> 4) | ((bits >> (part + 4) & 1) << 4)) - less);
        }
}

TAILRACE_CLONES void widen_six(const uint8_t *low, int less, uint8_t *out) {
    const uint8_t *high = low + kCell / 2;
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part)
        for (int i = 0; i < 512; ++i) {
            const uint8_t four = low[part * 512 + i], bits = high[i];
            out[part * 512 + i] = static_cast<uint8_t>(((four & 15) | ((bits >> (2 * part) & 3) << 4)) - less);
            out[part * 512 + i + 1024] = static_cast<uint8_t>(((four >> 4) | ((bits >> (2 * part + 4) & 3) << 4)) - less);
        }
}

TAILRACE_CLONES void widen_eight(const uint8_t *codes, int less, uint8_t *out) {
    for (int i = 0; i < kCell; ++i) out[i] = static_cast<uint8_t>(codes[i] - less);
}

void widen_table_plain(const uint8_t *low, const uint8_t *table, int less, uint8_t *out) {
    for (int i = 0; i < kCell / 2; ++i) {
        out[i] = static_cast<uint8_t>(table[low[i] & 15] - less);
        out[i + kCell / 2] = static_cast<uint8_t>(table[low[i] >> 4] - less);
    }
}

#if TAILRACE_X86
__attribute__((target("avx2"))) void widen_table_avx2(const uint8_t *low, const uint8_t *table, int less, uint8_t *out) {
    const __m256i four = _mm256_set1_epi8(15), take = _mm256_set1_epi8(static_cast<char>(less));
    const __m128i once = _mm_load_si128(reinterpret_cast<const __m128i *>(table));
    const __m256i values = _mm256_sub_epi8(_mm256_broadcastsi128_si256(once), take);
    for (int i = 0; i < kCell / 2; i += 32) {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(low + i));
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), four);
        _mm256_store_si256(reinterpret_cast<__m256i *>(out + i),
                           _mm256_shuffle_epi8(values, _mm256_and_si256(both, four)));
        _mm256_store_si256(reinterpret_cast<__m256i *>(out + i + kCell / 2), _mm256_shuffle_epi8(values, high));
    }
}
#endif

void widen_block(const Format &f, const uint8_t *from, int less, uint8_t *out) {
    const uint8_t *table = f.codes == Codes::iq4 ? kIq4 : kMxfp4;
    switch (f.codes) {
        case Codes::four: return widen_low(from, less, out);
        case Codes::five: return widen_five(from, less, out);
        case Codes::six: return widen_six(from, less, out);
        case Codes::eight: return widen_eight(from, less, out);
        default: break;
    }
#if TAILRACE_X86
    static const bool avx2 = __builtin_cpu_supports("avx2");
    if (avx2) return widen_table_avx2(from, table, less, out);
#endif
    widen_table_plain(from, table, less, out);
}

TAILRACE_CLONES void widen_halves_plain(const uint8_t *from, float *out) {
    for (int j = 0; j < kPack; ++j) {
        uint16_t half;
        std::memcpy(&half, from + 2 * j, 2);
        out[j] = from_half(half);
    }
}

#if TAILRACE_X86
__attribute__((target("avx512f"))) void widen_halves_avx512(const uint8_t *from, float *out) {
    for (int j = 0; j < kPack; j += 16)
        _mm512_storeu_ps(out + j, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + 2 * j))));
}
#endif

void widen_halves(const uint8_t *from, float *out) {
#if TAILRACE_X86
    static const bool avx512 = supports_avx512();
    if (avx512) return widen_halves_avx512(from, out);
#endif
    widen_halves_plain(from, out);
}

TAILRACE_CLONES void widen_powers(const uint8_t *from, float *out) {
    for (int j = 0; j < kPack; ++j) {
        bf16 power;
        std::memcpy(&power, from + 2 * j, 2);
        out[j] = to_float(power);
    }
}

TAILRACE_CLONES void widen_nested_min(const uint8_t *from, const float *factors, float *scales, float *mins) {
    for (int j = 0; j < kPack; ++j) {
        scales[j] = factors[j] * static_cast<float>(from[j]);
        mins[j] = -(factors[kPack + j] * static_cast<float>(from[kPack + j]));
    }
}

TAILRACE_CLONES void widen_nested(const uint8_t *from, const float *factors, float *scales) {
    for (int j = 0; j < kPack; ++j) {
        scales[j] = factors[j] * static_cast<float>(static_cast<int8_t>(from[j]));
        scales[kPack + j] = factors[j] * static_cast<float>(static_cast<int8_t>(from[kPack + j]));
    }
}

TAILRACE_CLONES void widen_zeros(const uint8_t *from, const float *scales, float *mins) {
    for (int j = 0; j < kPack; ++j) mins[j] = -(scales[j] * static_cast<float>(from[j]));
}

float half_at(const uint8_t *from) {
    uint16_t half;
    std::memcpy(&half, from, 2);
    return from_half(half);
}

// The code at one place of [k/4][64][4], where pack.cpp put it.
uint8_t code_at(const Format &f, const uint8_t *from, int64_t place) {
    if (f.codes == Codes::eight) return from[place];
    const uint8_t *high = from + kCell / 2;
    const int four = from[place % 1024] >> (place / 1024 * 4) & 15;
    switch (f.codes) {
        case Codes::five: return static_cast<uint8_t>(four | (high[place % 256] >> (place / 256) & 1) << 4);
        case Codes::six: return static_cast<uint8_t>(four | (high[place % 512] >> (place / 512 * 2) & 3) << 4);
        case Codes::iq4: return kIq4[four];
        case Codes::mxfp4: return kMxfp4[four];
        default: return static_cast<uint8_t>(four);
    }
}

// An output's scales of a block (of its halves; both are the same where there is one) and its minimum.
struct Scale {
    float of[2], min;
};
Scale scale_at(const Format &f, const uint8_t *at, const uint8_t *head, int64_t j) {
    float scale = 0.0f;
    bf16 power;
    switch (f.scales) {
        case Scales::nested: {
            const float factor = half_at(head + 2 * j);
            const int8_t first = static_cast<int8_t>(at[j]), second = static_cast<int8_t>(at[kPack + j]);
            return {{factor * static_cast<float>(first), factor * static_cast<float>(second)}, 0.0f};
        }
        case Scales::nested_min:
            scale = half_at(head + 2 * j) * static_cast<float>(at[j]);
            return {{scale, scale}, -(half_at(head + 2 * (kPack + j)) * static_cast<float>(at[kPack + j]))};
        case Scales::power:
            std::memcpy(&power, at + 2 * j, 2);
            scale = to_float(power);
            break;
        default:
            if (has_single(f)) std::memcpy(&scale, at + 4 * j, 4);
            else scale = half_at(at + 2 * j);
    }
    const float min = f.scales == Scales::half_min ? half_at(at + 2 * (kPack + j))
                      : has_zero(f) ? -(scale * static_cast<float>(at[(has_single(f) ? 4 : 2) * kPack + j])) : 0.0f;
    return {{scale, scale}, min};
}

}  // namespace

void widen_output(const Format &f, const uint8_t *panel, int64_t j, int64_t blocks, float *out) {
    for (int64_t b = 0; b < blocks; ++b, out += kBlock) {
        const uint8_t *at = panel + block_at(f, b);
        const Scale scale = scale_at(f, at, panel + head_at(f, b), j);
        for (int64_t i = 0; i < kBlock; ++i) {
            const int code = code_at(f, at + scale_bytes(f), (i / 4 * kPack + j) * 4 + i % 4) - f.offset;
            out[i] = static_cast<float>(code) * scale.of[i / kSixteen];
            if (has_min(f)) out[i] += scale.min;
        }
    }
}

void widen_scales(const Format &f, const uint8_t *panel, int64_t first, int64_t count, Widened &out) {
    alignas(64) float factors[2 * kPack];
    if (head_bytes(f)) {
        const uint8_t *head = panel + head_at(f, first);
        widen_halves(head, factors);
        if (f.scales == Scales::nested_min) widen_halves(head + 2 * kPack, factors + kPack);
    }
    for (int64_t b = 0; b < count; ++b) {
        const uint8_t *at = panel + block_at(f, first + b);
        float *scales = out.scales + b * halves(f) * kPack, *mins = out.mins + b * kPack;
        switch (f.scales) {
            case Scales::half_min: widen_halves(at + 2 * kPack, mins); [[fallthrough]];
            case Scales::half: widen_halves(at, scales); break;
            case Scales::power: widen_powers(at, scales); break;
            case Scales::nested_min: widen_nested_min(at, factors, scales, mins); break;
            case Scales::nested: widen_nested(at, factors, scales); break;
            case Scales::half_zero: widen_halves(at, scales); break;
            case Scales::single:
            case Scales::single_zero: std::memcpy(scales, at, 4 * kPack); break;
        }
        if (has_zero(f)) widen_zeros(at + scale_bytes(f) - kPack, scales, mins);
    }
}

void widen_codes(const Format &f, const uint8_t *panel, int64_t first, int64_t count, int less, Widened &out) {
    for (int64_t b = 0; b < count; ++b)
        widen_block(f, panel + block_at(f, first + b) + scale_bytes(f), less, out.codes + b * kCell);
}

}  // namespace tailrace
