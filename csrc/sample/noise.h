// Counter-based noise: Philox4x32-10 (Salmon et al., SC 2011) and Gumbel noise with a cheap bound made of it.
//
// Every (key, position, stream, token id) has its own noise. A token is "hot" with probability 2^-8; one bit of a word
// that sixteen ids share decides. Only hot tokens have u below 2^-8, so only they have noise above kMaxColdNoise. A
// draw can thus rule out almost every token of a row at one Philox call per sixteen, without computing its noise. Given
// its hot bit, a token's u is uniform below or above 2^-8 by a word of its own: together exactly uniform, with 40 bits
// at the fine end. The layout of the counters is in kernels/reference/noise.py, which computes the same bits.
#pragma once
#include <cstdint>
#include <cstring>

#include "sample/constants.h"

namespace tailrace {

constexpr int64_t kGroup = 16;         // ids that share a word of hot bits
constexpr float kMaxColdNoise = static_cast<float>(kColdNoise);  // the noise of a token that is not hot is at most 5.5433
constexpr float kMaxNoise = 28.43f;  // no noise is above 28.42; the rest is for rounding

struct Noise {
    uint64_t key;
    uint64_t position;
    uint32_t stream;
};

struct Words {
    uint32_t w0, w1, w2, w3;
};

__attribute__((always_inline)) inline Words philox(uint64_t key, uint32_t c0, uint32_t c1, uint64_t position) {
    uint32_t c2 = static_cast<uint32_t>(position), c3 = static_cast<uint32_t>(position >> 32);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
        const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
        const uint32_t n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(b);
        c3 = static_cast<uint32_t>(a);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
}

// Hot bits of the sixteen ids 16 · group … 16 · group + 15.
__attribute__((always_inline)) inline uint32_t hot_bits(const Noise &noise, uint32_t group) {
    const Words w = philox(noise.key, group, 2 * noise.stream + 1, noise.position);
    const uint32_t both = w.w0 & w.w1 & w.w2 & w.w3;
    return both & (both >> 16);  // eight halfwords in all; bits 16 … 31 are left zero by the shift's operand
}

// Groups with hot ids, ascending, and their bits. The arrays have room for sixteen more than there are groups.
struct Hot {
    uint32_t *group = nullptr, *bits = nullptr;
    int64_t n = 0;
};
// Appends those among n groups from `first` on.
void hot_groups(const Noise &noise, int64_t first, int64_t n, Hot &out);
// Noise of n ids, in any order. A noise that does not depend on how many are asked for, nor on the order.
void gumbel(const Noise &noise, const uint32_t *ids, int64_t n, float *out);
// The same where all ids are known to be hot.
void gumbel_hot(const Noise &noise, const uint32_t *ids, int64_t n, float *out);
// The ids' own words, of 32 random bits each.
void words(const Noise &noise, const uint32_t *ids, int64_t n, uint32_t *out);
// One uniform number in (0, 1) with 53 bits.
double uniform(const Noise &noise);

}  // namespace tailrace
