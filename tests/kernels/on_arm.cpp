// Products of quantized weights on ARM: those of the dot products of eight bits against the portable loop, bit for bit,
// over all types, widths and numbers of rows. Run by test_on_arm.py, on ARM or in an emulator of it.
#include "kernels.h"
#include "quantized/product.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

using namespace tailrace;

namespace {

std::mt19937 generator(7);

// Random blocks whose scales are finite: float16 and float32 factors of usual size wherever they may stand.
std::vector<uint8_t> blocks(const Format &f, int64_t n, int64_t k) {
    std::vector<uint8_t> raw(static_cast<size_t>(n * (k / f.block) * f.bytes));
    for (uint8_t &byte : raw) byte = static_cast<uint8_t>(generator());
    const uint16_t half = 0x2800;  // 2^-5
    const float single = 0.03125f;
    for (int64_t b = 0; b < n * (k / f.block); ++b) {
        uint8_t *at = raw.data() + b * f.bytes;
        if (f.type == 39) at[0] = static_cast<uint8_t>(118 + generator() % 6);
        else if (f.type == 14 || f.type == 11) std::memcpy(at + f.bytes - 2, &half, 2);
        else if (has_single(f)) std::memcpy(at, &single, 4);
        else std::memcpy(at, &half, 2);
        if (f.type == 3 || f.type == 7 || f.type == 12 || f.type == 13) std::memcpy(at + 2, &half, 2);
    }
    return raw;
}

}  // namespace

int main(int argc, char **) {
    const int types[] = {2, 3, 6, 7, 8, 11, 12, 13, 14, 20, 23, 39, 1000, 1001, 1002, 1003};
    int compared = 0, different = 0;
    if (best_quantized_set() != 1) return std::puts("no dot products here"), 2;
    for (const int type : types) {
        const Format &f = *format_of(type);
        for (const int64_t k : {int64_t{256}, int64_t{768}, int64_t{288}}) {
            if (k % f.block) continue;
            const int64_t n = 150;
            const std::vector<uint8_t> raw = blocks(f, n, k);
            std::vector<uint8_t> packed(static_cast<size_t>(quantized_bytes(type, n, k)));
            if (!pack_quantized(raw.data(), type, n, k, packed.data())) return std::puts("not packed"), 2;
            for (const int64_t m : {1, 2, 3, 4, 5, 16, 23, 64}) {
                std::vector<float> x(static_cast<size_t>(m * k)), found(static_cast<size_t>(m * n)), expected = found;
                std::normal_distribution<float> normal;
                for (float &value : x) value = normal(generator);
                use_at_most(1);
                quantized_linear(x.data(), Type::f32, m, k, k, packed.data(), type, nullptr, n, found.data());
                if (argc > 1) x[5] *= 1.5f;  // the planted fault
                use_at_most(0);
                quantized_linear(x.data(), Type::f32, m, k, k, packed.data(), type, nullptr, n, expected.data());
                ++compared;
                different += std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) != 0;
            }
        }
    }
    std::printf("%d compared, %d different\n", compared, different);
    return different != 0;
}
