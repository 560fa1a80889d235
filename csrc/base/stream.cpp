// One streaming read of memory and nothing else: the floor that the sampler's benchmark measures against.
#include "base/simd.h"
#include "kernels.h"

namespace tailrace {
namespace {

TAILRACE_CLONES uint64_t fold_all(const uint64_t *words, int64_t n) {
    uint64_t lane[8] = {};
    for (int64_t i = 0; i + 64 <= n; i += 64) {
        for (int64_t line = 0; line < 64; line += 8) __builtin_prefetch(words + i + 512 + line);
        for (int64_t j = 0; j < 64; j += 8)
            for (int l = 0; l < 8; ++l) lane[l] |= words[i + j + l];
    }
    uint64_t all = 0;
    for (int l = 0; l < 8; ++l) all |= lane[l];
    return all;
}

}  // namespace

uint64_t stream(const void *data, int64_t bytes) { return fold_all(static_cast<const uint64_t *>(data), bytes / 8); }

}  // namespace tailrace
