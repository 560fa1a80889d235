// Large pages for the weights, which every step reads whole, and for keys and values: with pages of 4 KiB a new one
// comes every 64 cache lines, and on a virtual machine its address is looked up through two sets of page tables.
#include "kernels.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tailrace {

// Ask for large pages in memory that was never touched, wherever whole pages fit. Without large pages the results are
// the same, but slower. Each such piece is a mapping of its own, of which a process may have 65,530: small matrices,
// such as the thousands of a mixture's experts, do without.
void want_large_pages([[maybe_unused]] void *data, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
    constexpr int64_t kWorthIt = int64_t{8} << 20;
    constexpr uintptr_t kLarge = uintptr_t{1} << 21;  // of x86 and of Arm with pages of 4 KiB
    if (bytes < kWorthIt) return;
    const uintptr_t at = reinterpret_cast<uintptr_t>(data);
    const uintptr_t begin = (at + kLarge - 1) / kLarge * kLarge;
    const uintptr_t end = (at + static_cast<uintptr_t>(bytes)) / kLarge * kLarge;
    if (begin < end) madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace tailrace
