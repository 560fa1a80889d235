#include "sample/dry.h"

#include <algorithm>

namespace tailrace {

// Gusfield's Z algorithm on the reversed sequence: a known stretch gives the lengths within it.
void agreements(const int64_t *tokens, int64_t n, int64_t *out) {
    const auto from_end = [=](int64_t i) { return tokens[n - 1 - i]; };
    if (n > 0) out[n - 1] = n;
    int64_t left = 0, right = 0;  // the stretch that agrees with the beginning and reaches furthest
    for (int64_t i = 1; i < n; ++i) {
        int64_t z = i < right ? std::min(right - i, out[n - 1 - (i - left)]) : 0;
        while (i + z < n && from_end(z) == from_end(i + z)) ++z;
        out[n - 1 - i] = z;
        if (i + z > right) left = i, right = i + z;
    }
}

}  // namespace tailrace
