// Blocks of a file → packed panels, and rows of these widened again.
//
// The layouts of the blocks are those of ggml (github.com/ggml-org/ggml, ggml-common.h and gguf-py's quants.py). Those
// of our own (models/blocks.py writes them) are a scale, in float16 or float32, a zero point if there is one, and codes
// as Q4_0 and Q8_0 have them.
#include "base/pool.h"
#include "base/simd.h"
#include "quantized/blocks.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace tailrace {
namespace {

const Format kFormats[] = {
    {2, Codes::four, Scales::half, 8, 32, 18},          // Q4_0
    {3, Codes::four, Scales::half_min, 0, 32, 20},      // Q4_1
    {6, Codes::five, Scales::half, 16, 32, 22},         // Q5_0
    {7, Codes::five, Scales::half_min, 0, 32, 24},      // Q5_1
    {8, Codes::eight, Scales::half, 128, 32, 34},       // Q8_0
    {11, Codes::four, Scales::nested, 4, 256, 110},     // Q3_K
    {12, Codes::four, Scales::nested_min, 0, 256, 144},  // Q4_K
    {13, Codes::five, Scales::nested_min, 0, 256, 176},  // Q5_K
    {14, Codes::six, Scales::nested, 32, 256, 210},     // Q6_K
    {20, Codes::iq4, Scales::half, 128, 32, 18},        // IQ4_NL
    {23, Codes::iq4, Scales::nested, 128, 256, 136},    // IQ4_XS
    {39, Codes::mxfp4, Scales::power, 128, 32, 17},     // MXFP4
    {1000, Codes::four, Scales::half_zero, 0, 32, 19},
    {1001, Codes::four, Scales::single, 8, 32, 20},
    {1002, Codes::four, Scales::single_zero, 0, 32, 21},
    {1003, Codes::eight, Scales::single, 128, 32, 36},
};

// One block of the file: its codes in the order of its inputs, its head and, per 32 inputs, its scales as the panel
// keeps them.
struct Decoded {
    uint8_t codes[kSuper * kBlock];
    uint16_t head[2];
    uint8_t scales[kSuper][5];
};

uint16_t word(const uint8_t *at) {
    uint16_t out;
    std::memcpy(&out, at, 2);
    return out;
}

// n codes whose low nibbles come first, then their high ones
void nibbles(const uint8_t *from, int n, uint8_t *codes) {
    for (int i = 0; i < n; ++i) codes[i] = from[i] & 15, codes[i + n] = from[i] >> 4;
}

void decode_small(const Format &f, const uint8_t *raw, Decoded &out) {
    const int64_t bytes = f.scales == Scales::power ? 1 : scale_bytes(f) / kPack;
    std::memcpy(out.scales[0], raw, static_cast<size_t>(bytes));
    if (f.scales == Scales::power) {
        // a power e of MXFP4 is 2^(e − 128), whose lower half as a float32 is zero
        const uint32_t bits = raw[0] < 2 ? 0x00200000u << raw[0] : static_cast<uint32_t>(raw[0] - 1) << 23;
        const uint16_t scale = static_cast<uint16_t>(bits >> 16);
        std::memcpy(out.scales[0], &scale, 2);
    }
    const uint8_t *at = raw + bytes;
    if (f.codes == Codes::eight) {
        for (int i = 0; i < kBlock; ++i) out.codes[i] = static_cast<uint8_t>(at[i] + 128);
        return;
    }
    uint32_t fifth = 0;
    if (f.codes == Codes::five) {
        std::memcpy(&fifth, at, 4);
        at += 4;
    }
    nibbles(at, 16, out.codes);
    for (int i = 0; i < kBlock; ++i) out.codes[i] |= (fifth >> i & 1) << 4;
}

// Q4_K and Q5_K: scales and minimums have 6 bits, of which the last four have their upper 2 in the first four's bytes.
void decode_nested_min(const Format &f, const uint8_t *raw, Decoded &out) {
    out.head[0] = word(raw), out.head[1] = word(raw + 2);
    const uint8_t *s = raw + 4, *fifth = raw + 16, *low = raw + (f.codes == Codes::five ? 48 : 16);
    for (int b = 0; b < kSuper; ++b) {
        out.scales[b][0] = b < 4 ? s[b] & 63 : (s[b + 4] & 15) | (s[b - 4] >> 6 << 4);
        out.scales[b][1] = b < 4 ? s[b + 4] & 63 : (s[b + 4] >> 4) | (s[b] >> 6 << 4);
    }
    for (int pair = 0; pair < 4; ++pair) nibbles(low + 32 * pair, 32, out.codes + 64 * pair);
    if (f.codes == Codes::five)
        for (int i = 0; i < kSuper * kBlock; ++i) out.codes[i] |= (fifth[i % 32] >> (i / 32) & 1) << 4;
}

void decode_q6(const uint8_t *raw, Decoded &out) {
    const uint8_t *low = raw, *high = raw + 128;
    for (int i = 0; i < kSuper * kBlock; ++i) {
        const int half = i / 128, at = i % 128;
        const int nibble = low[64 * half + at % 64] >> (at / 64 * 4) & 15;
        out.codes[i] = static_cast<uint8_t>(nibble | (high[32 * half + at % 32] >> (at / 32 * 2) & 3) << 4);
    }
    for (int b = 0; b < kSuper; ++b) std::memcpy(out.scales[b], raw + 192 + 2 * b, 2);
    out.head[0] = word(raw + 208);
}

// Q3_K: 2 bits and a third one; scales of 6 bits, 32 above their value.
void decode_q3(const uint8_t *raw, Decoded &out) {
    const uint8_t *third = raw, *low = raw + 32, *s = raw + 96;
    for (int i = 0; i < kSuper * kBlock; ++i) {
        const int two = low[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        out.codes[i] = static_cast<uint8_t>(two | (third[i % 32] >> (i / 32) & 1) << 2);
    }
    for (int j = 0; j < 16; ++j) {
        const int nibble = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
        out.scales[j / 2][j % 2] = static_cast<uint8_t>((nibble | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32);
    }
    out.head[0] = word(raw + 108);
}

// IQ4_XS: codes as IQ4_NL, a scale of 6 bits per 32 inputs, 32 above its value.
void decode_iq4_xs(const uint8_t *raw, Decoded &out) {
    out.head[0] = word(raw);
    const uint16_t high = word(raw + 2);
    for (int b = 0; b < kSuper; ++b) {
        const int low = raw[4 + b / 2] >> (b % 2 * 4) & 15;
        out.scales[b][0] = out.scales[b][1] = static_cast<uint8_t>((low | (high >> (2 * b) & 3) << 4) - 32);
        nibbles(raw + 8 + 16 * b, 16, out.codes + kBlock * b);
    }
}

void decode(const Format &f, const uint8_t *raw, Decoded &out) {
    if (f.block == kBlock) return decode_small(f, raw, out);
    if (f.scales == Scales::nested_min) return decode_nested_min(f, raw, out);
    f.codes == Codes::six ? decode_q6(raw, out) : f.codes == Codes::iq4 ? decode_iq4_xs(raw, out) : decode_q3(raw, out);
}

// One block of 32 inputs of output j, into a panel: the code at place i of [k/4][64][4] has its low four bits in byte
// i mod 1024, its fifth in bit i / 256 of byte i mod 256 of the next plane, or its fifth and sixth in bits
// 2 · (i / 512) of byte i mod 512.
void put(const Format &f, const uint8_t *codes, const uint8_t *scales, int64_t j, uint8_t *at) {
    if (head_bytes(f)) {
        at[j] = scales[0], at[kPack + j] = scales[1];
    } else {
        const int64_t size = has_single(f) ? 4 : 2;
        std::memcpy(at + size * j, scales, static_cast<size_t>(size));
        if (f.scales == Scales::half_min) std::memcpy(at + 2 * kPack + 2 * j, scales + 2, 2);
        if (has_zero(f)) at[size * kPack + j] = scales[size];
    }
    uint8_t *low = at + scale_bytes(f), *high = low + kCell / 2;
    for (int64_t i = 0; i < kBlock; ++i) {
        const int64_t place = (i / 4 * kPack + j) * 4 + i % 4;
        const uint8_t code = codes[i];
        if (f.codes == Codes::eight) {
            low[place] = code;
            continue;
        }
        low[place % 1024] |= static_cast<uint8_t>((code & 15) << (place / 1024 * 4));
        if (f.codes == Codes::five) high[place % 256] |= static_cast<uint8_t>(code >> 4 << (place / 256));
        if (f.codes == Codes::six) high[place % 512] |= static_cast<uint8_t>(code >> 4 << (place / 512 * 2));
    }
}

bool finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }
// The numbers before the codes of a block without a head.
bool finite(const Format &f, const uint8_t *scales) {
    if (f.scales == Scales::power) return true;
    if (has_single(f)) return (word(scales + 2) & 0x7f80) != 0x7f80;
    return finite(word(scales)) && (f.scales != Scales::half_min || finite(word(scales + 2)));
}

// False where a scale is not finite.
bool pack_row(const Format &f, const uint8_t *raw, int64_t k, int64_t j, uint8_t *panel) {
    Decoded block;
    bool fine = true;
    for (int64_t i = 0; i < k; i += f.block, raw += f.bytes) {
        decode(f, raw, block);
        if (head_bytes(f)) {
            uint8_t *head = panel + head_at(f, i / kBlock);
            std::memcpy(head + 2 * j, &block.head[0], 2);
            fine &= finite(block.head[0]);
            if (f.scales == Scales::nested_min) {
                std::memcpy(head + 2 * kPack + 2 * j, &block.head[1], 2);
                fine &= finite(block.head[1]);
            }
        } else {
            fine &= finite(f, block.scales[0]);
        }
        for (int64_t b = 0; b < f.block / kBlock; ++b)
            put(f, block.codes + b * kBlock, block.scales[b], j, panel + block_at(f, i / kBlock + b));
    }
    return fine;
}

}  // namespace

const Format *format_of(int type) {
    for (const Format &f : kFormats)
        if (f.type == type) return &f;
    return nullptr;
}

bool is_quantized(int type) { return format_of(type) != nullptr; }

std::vector<std::tuple<int, int64_t, int64_t>> quantized_types() {
    std::vector<std::tuple<int, int64_t, int64_t>> all;
    for (const Format &f : kFormats) all.emplace_back(f.type, f.block, f.bytes);
    return all;
}

int64_t quantized_bytes(int type, int64_t n, int64_t k) {
    return (n + kPack - 1) / kPack * panel_bytes(*format_of(type), k);
}

bool pack_quantized(const void *raw, int type, int64_t n, int64_t k, void *packed) {
    const Format &f = *format_of(type);
    std::atomic<bool> fine{true};
    Pool::instance().run((n + kPack - 1) / kPack, [&](int64_t p) {
        uint8_t *panel = static_cast<uint8_t *>(packed) + p * panel_bytes(f, k);
        std::memset(panel, 0, static_cast<size_t>(panel_bytes(f, k)));  // rows beyond n: scales of zero
        for (int64_t j = 0; j < std::min(kPack, n - p * kPack); ++j) {
            const uint8_t *row = static_cast<const uint8_t *>(raw) + (p * kPack + j) * (k / f.block * f.bytes);
            if (!pack_row(f, row, k, j, panel)) fine = false;
        }
    });
    return fine;
}

void quantized_rows(const void *packed, int type, int64_t k, const int64_t *ids, int64_t count, Type to, void *out) {
    const Format &f = *format_of(type);
    Pool::instance().run(count, [&](int64_t r) {
        const uint8_t *panel = static_cast<const uint8_t *>(packed) + ids[r] / kPack * panel_bytes(f, k);
        thread_local std::vector<float> row;
        row.resize(static_cast<size_t>(k));
        float *values = to == Type::f32 ? static_cast<float *>(out) + r * k : row.data();
        widen_output(f, panel, ids[r] % kPack, k / kBlock, values);
        if (to != Type::f32)
            for (int64_t i = 0; i < k; ++i) static_cast<bf16 *>(out)[r * k + i] = to_bf16(values[i]);
    });
}

}  // namespace tailrace
