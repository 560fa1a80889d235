#include "sample/counts.h"

#include <algorithm>

namespace tailrace {

int64_t Counts::place(uint32_t id) const { return std::lower_bound(ids.begin(), ids.end(), id) - ids.begin(); }

std::pair<uint32_t, uint32_t> Counts::of(uint32_t id) const {
    const int64_t at = place(id);
    if (at == static_cast<int64_t>(ids.size()) || ids[at] != id) return {0, 0};
    return {repeated[at], counted[at]};
}

void Counts::add(uint32_t id, uint32_t repeats, uint32_t counts) {
    if (repeats == 0 && counts == 0) return;
    const int64_t at = place(id);
    if (at == static_cast<int64_t>(ids.size()) || ids[at] != id) {
        ids.insert(ids.begin() + at, id);
        repeated.insert(repeated.begin() + at, 0);
        counted.insert(counted.begin() + at, 0);
    }
    repeated[at] += repeats;
    counted[at] += counts;
}

void Counts::drop(uint32_t id, uint32_t repeats, uint32_t counts) {
    const int64_t at = place(id);
    if (at == static_cast<int64_t>(ids.size()) || ids[at] != id) return;
    repeated[at] -= std::min(repeated[at], repeats);
    counted[at] -= std::min(counted[at], counts);
    if (repeated[at] || counted[at]) return;
    ids.erase(ids.begin() + at);
    repeated.erase(repeated.begin() + at);
    counted.erase(counted.begin() + at);
}

void Counts::extend(const int64_t *tokens, int64_t n, uint32_t repeats, uint32_t counts) {
    if (repeats == 0 && counts == 0) return;
    std::vector<uint32_t> sorted(tokens, tokens + n);
    std::sort(sorted.begin(), sorted.end());
    Counts merged;
    size_t old = 0;
    const auto take_old = [&] {
        merged.ids.push_back(ids[old]);
        merged.repeated.push_back(repeated[old]);
        merged.counted.push_back(counted[old]);
        ++old;
    };
    for (size_t i = 0; i < sorted.size();) {
        const uint32_t id = sorted[i];
        size_t end = i;
        while (end < sorted.size() && sorted[end] == id) ++end;
        while (old < ids.size() && ids[old] < id) take_old();
        if (old < ids.size() && ids[old] == id) take_old();
        else {
            merged.ids.push_back(id);
            merged.repeated.push_back(0);
            merged.counted.push_back(0);
        }
        merged.repeated.back() += repeats * static_cast<uint32_t>(end - i);
        merged.counted.back() += counts * static_cast<uint32_t>(end - i);
        i = end;
    }
    while (old < ids.size()) take_old();
    *this = std::move(merged);
}

}  // namespace tailrace
