// Intel's tile registers (AMX): whether this process may use them, and how a thread sets them up.
#pragma once
#include "base/simd.h"

#if TAILRACE_X86 && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TAILRACE_AMX 1
#else
#define TAILRACE_AMX 0
#endif

namespace tailrace {

inline bool tiles_wanted = true;  // of bfloat16; false only while tests compare

#if TAILRACE_AMX
// Before tiles or their configuration are loaded from what this function has written: GCC's intrinsics don't tell the
// compiler that they read memory.
inline void tiles_read_memory() { asm volatile("" ::: "memory"); }

// As _tile_loadconfig reads it: of each tile the bytes of a row, and the rows.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

struct Tiles {
    bool int8 = false, bf16 = false;
};

// What the CPU has, once the system has let this process use it.
inline Tiles tiles_of_this_machine() {
    static const Tiles found = [] {
        constexpr int kPermission = 0x1023, kTileData = 18;  // arch_prctl's ARCH_REQ_XCOMP_PERM, for the tiles' data
        unsigned a, b, c, d;
        Tiles tiles;
        if (!supports_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1)) return tiles;
        if (syscall(SYS_arch_prctl, kPermission, kTileData) != 0) return tiles;
        tiles.int8 = d >> 25 & 1, tiles.bf16 = d >> 22 & 1;
        return tiles;
    }();
    return found;
}

// The products of bfloat16 pairs by tiles.
#define TAILRACE_BF16_TILES \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
inline bool has_bf16_tiles() { return tiles_wanted && has_bf16() && tiles_of_this_machine().bf16; }
#endif

}  // namespace tailrace
