// Guided rows, combined while they are read: two rows are read and none is written. The law is sampling/guidance.py's.
#include "sample/row.h"

namespace tailrace {
namespace {

// Replace c by u + s · (c − u) in a block. Return whether all results are finite. Then c and u are finite too, because
// an infinity or NaN never becomes a finite number.
TAILRACE_INLINE bool combine(float *c, const float *u, float scale) {
    constexpr uint32_t kExponent = 0xff000000u;  // all exponent bits set, shifted left by one: NaN or an infinity
    const F16 s = all(scale);
    U16 most{};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
        const F16 theirs = load16<F16>(u + i), guided = theirs + s * (load16<F16>(c + i) - theirs);
        store16(c + i, guided);
        const U16 twice = (U16)guided << 1;
        most = twice > most ? twice : most;
    }
    uint32_t largest = 0;
    for (int64_t l = 0; l < kLanes; ++l) largest = most[l] > largest ? most[l] : largest;
    return largest < kExponent;
}

}  // namespace

float guided(float c, float u, float scale) {
    if (c != c || u != u) return std::numeric_limits<float>::quiet_NaN();
    if (c == kNone) return kNone;
    if (u == kNone) return scale > 1.0f ? c : kNone;
    return u + scale * (c - u);
}

TAILRACE_CLONES void read_guided(const Row &row, int64_t block, float *buffer) {
    alignas(64) float other[kBlock];
    const Row mine = plain(row, row.data), theirs = plain(row, row.companion);
    const float *u = read(theirs, block, other);
    if (const float *c = read(mine, block, buffer); c != buffer) std::memcpy(buffer, c, kBlock * sizeof(float));
    if (combine(buffer, u, row.scale)) return;
    const int64_t first = block * kBlock, n = std::min(kBlock, row.vocab - first);
    for (int64_t i = 0; i < n; ++i)
        buffer[i] = guided(logit_of(row, row.data, first + i), logit_of(row, row.companion, first + i), row.scale);
    std::fill(buffer + n, buffer + kBlock, kNone);
}

}  // namespace tailrace
