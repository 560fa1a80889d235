#include "sample/survivors.h"

#include <algorithm>
#include <bit>

namespace tailrace {

void Survivors::read(const uint32_t *bits, int64_t words) {
    for (auto &ids : of) {
        ids.clear();
        for (int64_t w = 0; w < words; ++w)
            for (uint32_t word = bits[w]; word; word &= word - 1) ids.push_back(static_cast<int32_t>(w * 32 + std::countr_zero(word)));
        bits += words;
    }
}

int64_t Survivors::total() const {
    int64_t n = 0;
    for (const auto &ids : of) n += static_cast<int64_t>(ids.size());
    return n;
}

void Survivors::write(int32_t *ids, int64_t *offsets) const {
    int64_t n = 0;
    for (const auto &mine : of) {
        *offsets++ = n;
        std::copy(mine.begin(), mine.end(), ids + n);
        n += static_cast<int64_t>(mine.size());
    }
    *offsets = n;
}

}  // namespace tailrace
