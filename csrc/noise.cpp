// Gumbel noise from Philox4x32-10, a function of (key, position, token id, stream); layout in kernels/reference/noise.py.
#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace tailrace {
namespace {

// Output word 0 for a batch of ids; integer arithmetic only, so every build gives the same bits.
TAILRACE_CLONES void words(uint64_t key, uint64_t position, uint32_t stream, const int64_t *ids, int64_t n,
                           uint32_t *out) {
    for (int64_t i = 0; i < n; ++i) {
        uint32_t c0 = static_cast<uint32_t>(ids[i]), c1 = stream;
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
        out[i] = c0;
    }
}

}  // namespace

void gumbel(int64_t key, int64_t position, int64_t stream, const int64_t *ids, int64_t n, float *out) {
    constexpr int64_t kBatch = 256;
    uint32_t bits[kBatch];
    for (int64_t at = 0; at < n; at += kBatch) {
        const int64_t count = n - at < kBatch ? n - at : kBatch;
        words(static_cast<uint64_t>(key), static_cast<uint64_t>(position), static_cast<uint32_t>(stream), ids + at,
              count, bits);
        for (int64_t i = 0; i < count; ++i) {
            const double v = (bits[i] + 0.5) * 0x1p-32;
            out[at + i] = static_cast<float>(-std::log(-std::log1p(-v)));
        }
    }
}

}  // namespace tailrace
