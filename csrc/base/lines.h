// Memory that begins with a cache line: a load across two of them takes twice as long.
#pragma once
#include <cstddef>
#include <new>
#include <vector>

namespace tailrace {

template <typename T> struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t kLine{64};
    LineAllocator() = default;
    template <typename U> LineAllocator(const LineAllocator<U> &) {}
    T *allocate(size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), kLine)); }
    void deallocate(T *at, size_t) { ::operator delete(at, kLine); }
    bool operator==(const LineAllocator &) const { return true; }
};
template <typename T> using Lines = std::vector<T, LineAllocator<T>>;

}  // namespace tailrace
