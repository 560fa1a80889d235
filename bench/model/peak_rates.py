"""Measure how many multiplications and additions per second this processor's threads reach in a loop of nothing else.
These rates bound the products of weights (see gguf.py). The loop is compiled for the machine that runs it. With AMX, it
multiplies tiles.

    python -m bench.peak_rates [--threads 2]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.lib.harness import cores, machine, write_json

SECONDS = 0.2
# So many sums do not wait for each other: more than the latency of any of these instructions times two ports.
SOURCE = """
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define SUMS 24
#else
#define SUMS 12
#endif
#define LOOP(type, zero, step)                                              \\
    type sums[SUMS];                                                        \\
    _Pragma("GCC unroll 24") for (int i = 0; i < SUMS; ++i) sums[i] = zero; \\
    for (int64_t round = 0; round < rounds; ++round)                        \\
        _Pragma("GCC unroll 24") for (int i = 0; i < SUMS; ++i) {           \\
            sums[i] = step;                                                 \\
            __asm__ volatile("" : "+v"(sums[i]), "+v"(a));                  \\
        }

#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
// Four tiles of sums, two of rows, two of weights, all of 16 rows of 64 bytes, which hold zeros.
static const struct __attribute__((aligned(64))) {
    uint8_t palette, rest[15];
    uint16_t bytes[16];
    uint8_t rows[16];
} config = {1, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
static int may_use_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#define TILES(product)                                                                    \
    _tile_loadconfig(&config);                                                            \
    for (int64_t round = 0; round < rounds; ++round) {                                    \
        product(0, 4, 6); product(1, 4, 7); product(2, 5, 6); product(3, 5, 7);           \
    }                                                                                     \
    _tile_release();
#endif

#if defined(__AMX_INT8__)
int64_t int8_per_round(void) { return may_use_tiles() ? 4 * 16 * 16 * 64 : 0; }
void int8_rounds(int64_t rounds) { TILES(_tile_dpbssd) }
#elif defined(__AVX512VNNI__)
int64_t int8_per_round(void) { return SUMS * 64; }
void int8_rounds(int64_t rounds) {
    __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(1);
    LOOP(__m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(sums[i], a, b))
}
#elif defined(__AVX2__)
int64_t int8_per_round(void) { return SUMS * 32; }
void int8_rounds(int64_t rounds) {
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(1), one = _mm256_set1_epi16(1);
    LOOP(__m256i, _mm256_setzero_si256(),
         _mm256_add_epi32(sums[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), one)))
}
#else
int64_t int8_per_round(void) { return 0; }
void int8_rounds(int64_t rounds) { (void)rounds; }
#endif

#if defined(__AMX_BF16__)
int64_t bf16_per_round(void) { return may_use_tiles() ? 4 * 16 * 16 * 32 : 0; }
void bf16_rounds(int64_t rounds) { TILES(_tile_dpbf16ps) }
#elif defined(__AVX512BF16__)
int64_t bf16_per_round(void) { return SUMS * 32; }
void bf16_rounds(int64_t rounds) {
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80);
    LOOP(__m512, _mm512_setzero_ps(), _mm512_dpbf16_ps(sums[i], a, a))
}
#elif defined(__AVX512F__)
int64_t bf16_per_round(void) { return SUMS * 16; }
void bf16_rounds(int64_t rounds) {
    __m512 a = _mm512_set1_ps(1.0f);
    LOOP(__m512, _mm512_setzero_ps(), _mm512_fmadd_ps(a, a, sums[i]))
}
#elif defined(__AVX2__) && defined(__FMA__)
int64_t bf16_per_round(void) { return SUMS * 8; }
void bf16_rounds(int64_t rounds) {
    __m256 a = _mm256_set1_ps(1.0f);
    LOOP(__m256, _mm256_setzero_ps(), _mm256_fmadd_ps(a, a, sums[i]))
}
#else
int64_t bf16_per_round(void) { return 0; }
void bf16_rounds(int64_t rounds) { (void)rounds; }
#endif
"""


def compiled() -> ctypes.CDLL:
    """The loops as a library. Raises OSError or CalledProcessError without a compiler that takes them."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "peak.c", Path(folder) / "peak.so"
        source.write_text(SOURCE)
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-march=native", "-shared", "-fPIC", source, "-o", library], check=True)
        return ctypes.CDLL(str(library))


def peak_rates(threads: int) -> dict[str, float]:
    """Both rates; 0 where there is no loop for one, or no compiler."""
    try:
        library = compiled()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no peak rates: {error}", file=sys.stderr)
        return {"int8": 0.0, "bf16": 0.0}
    return {kind: rate(library, kind, threads) for kind in ("int8", "bf16")}


def rate(library: ctypes.CDLL, kind: str, threads: int) -> float:
    """Multiplications with additions per second of all threads together, the best of three times. 0: no loop for it."""
    rounds_of: Callable[..., None] = getattr(library, f"{kind}_rounds")
    each = getattr(library, f"{kind}_per_round")()
    if not each:
        return 0.0
    rounds, best = 1 << 16, 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            while (taken := run(pool, rounds_of, rounds, threads)) < SECONDS:
                rounds *= 2
            best = max(best, threads * rounds * each / taken)
    return best


def run(pool: ThreadPoolExecutor, rounds_of: Callable[..., None], rounds: int, threads: int) -> float:
    """Seconds until every thread has done so many rounds."""
    start = time.perf_counter()
    list(pool.map(rounds_of, [ctypes.c_int64(rounds)] * threads))
    return time.perf_counter() - start


def main(argv: list[str] | None = None) -> int:
    """Print both rates, and write them if --json names a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.peak_rates", description=__doc__)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--json", type=Path, help="write the results here too")
    args = parser.parse_args(argv)
    rates = peak_rates(args.threads)
    for kind, found in rates.items():
        print(f"{kind}: {found / 1e9:.0f} · 10^9 per second, {args.threads} threads")
    if args.json:
        write_json(args.json, {"machine": machine(), "threads": args.threads, "per second": rates})
    return 0


if __name__ == "__main__":
    sys.exit(main())
