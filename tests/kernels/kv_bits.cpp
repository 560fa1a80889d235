// Attention over codes of int8: writes the bytes of scores, maxima, sums, scales and weighted sums for random input, with
// values that are not finite among it. Run by test_kv_bits.py. An argument "best": by the widest instruction set; else by
// the portable loops, and "fault" plants one.
#include "base/simd.h"
#include "quantized/kv_codes.h"
#include "quantized/kv_products.h"

#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

using namespace tailrace;

namespace {

std::mt19937 generator(7);

template <typename T> void write(const std::vector<T> &from) { std::fwrite(from.data(), sizeof(T), from.size(), stdout); }

std::vector<float> normal(size_t count, float by) {
    std::vector<float> found(count);
    for (float &x : found) x = by * (static_cast<float>(generator() % 20001) - 10000.0f) / 4000.0f;
    return found;
}

std::vector<uint8_t> codes(size_t count) {
    std::vector<uint8_t> found(count);
    for (uint8_t &x : found) x = static_cast<uint8_t>(static_cast<int>(generator() % 255) - 127);
    return found;
}

void run(int rows, int64_t dim, int64_t value_dim, int groups, bool fault) {
    const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(dim);
    std::vector<int8_t> high(count), low(count);
    std::vector<float> scale(rows), max(rows, -std::numeric_limits<float>::infinity()), sum(rows), s(rows * kCodedPositions);
    std::vector<int32_t> start(2 * rows);
    std::vector<float> out(rows * value_dim);
    const std::vector<float> query = normal(count, 1.0f);
    const QueryCodes queries{high.data(), low.data(), scale.data(), start.data()};
    for (int r = 0; r < rows; ++r) code_query(query.data() + r * dim, dim, queries.from(r, dim));
    WeightCodes weights;
    for (int step = 0; step < 3; ++step) {
        const std::vector<uint8_t> keys = codes(kCodedPositions * dim), values = codes(kCodedPositions * value_dim);
        std::vector<float> key_scales = normal(kCodedPositions, 0.03f), value_scales = normal(kCodedPositions, 0.02f);
        for (float &x : value_scales) x = x < 0 ? -x : x;
        if (fault) key_scales[3] *= 1.01f;
        if (step == 2) value_scales[9] = std::numeric_limits<float>::quiet_NaN();
        CodedChunk at;
        at.groups = groups, at.fetch = step == 0;
        for (int i = 0; i < 4; ++i) {
            at.keys[i] = at.next_keys[i] = keys.data() + 16 * i * dim, at.key_scales[i] = key_scales.data() + 16 * i;
            at.values[i] = at.next_values[i] = values.data() + 16 * i * value_dim, at.value_scales[i] = value_scales.data() + 16 * i;
        }
        std::vector<uint64_t> seen(rows);
        for (uint64_t &bits : seen) bits = (uint64_t{generator()} << 32 | generator()) & ~uint64_t{0} >> (64 - 16 * groups);
        if (rows > 1) seen[1] &= ~(uint64_t{1} << 9);  // does not see what is not finite
        score_codes(rows, queries, at, dim, s.data());
        soften_codes(s.data(), rows, seen.data(), 0.2f, at, max.data(), sum.data(), weights);
        weigh_codes(rows, weights, at, value_dim, out.data());
        for (float &x : out)
            if (x != x) x = 1e30f;  // any NaN is as good as another
        write(s), write(max), write(sum), write(out);
    }
}

}  // namespace

int main(int argc, char **argv) {
    avx512_wanted = argc > 1 && std::strcmp(argv[1], "best") == 0;
    const bool fault = argc > 1 && std::strcmp(argv[1], "fault") == 0;
    for (const int rows : {1, 2, 3, 4, 7, 16})
        for (const int64_t dim : {64, 36, 66, 128})
            for (const int groups : {1, 3, 4}) run(rows, dim, dim == 36 ? 20 : dim, groups, fault);
}
