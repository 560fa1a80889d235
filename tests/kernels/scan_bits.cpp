// Writes the results of the scans on random input, bit for bit: the same on every instruction set. Run by
// test_scan_bits.py, which compiles the program once per set.
#include "base/simd.h"
#include "state/scan.h"

#include <cstdio>
#include <random>
#include <vector>

using namespace tailrace;

namespace {

std::mt19937 generator(11);

// Random numbers of a normal shape, by integers alone: the same with every library.
std::vector<float> make_floats(int64_t count, float scale, float shift = 0.0f) {
    std::vector<float> made(static_cast<size_t>(count));
    for (float &x : made) {
        int64_t sum = 0;
        for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>(generator() >> 8) - (1 << 23);
        x = static_cast<float>(sum) * scale / static_cast<float>(1 << 23) + shift;
    }
    return made;
}

std::vector<bf16> narrow(const std::vector<float> &from) {
    std::vector<bf16> made;
    for (const float x : from) made.push_back(to_bf16(x));
    return made;
}

template <typename T> void write(const std::vector<T> &data) { std::fwrite(data.data(), sizeof(T), data.size(), stdout); }

const int64_t starts[] = {0, 7, 8, 30}, first[] = {0, 20, 9}, slots[] = {2, 0, 1};
const Ring ring{starts, first, slots, 3, 3};
constexpr int64_t tokens = 30, entries = 9;

void write_heads(int64_t key_dim, int64_t value_dim, bool delta, bool per_channel, float fault) {
    const int64_t heads = 4, groups = 2;
    const auto q = narrow(make_floats(tokens * groups * key_dim, 1.0f)), k = narrow(make_floats(tokens * groups * key_dim, 1.0f));
    const auto v = narrow(make_floats(tokens * heads * value_dim, 1.0f));
    auto decay = make_floats(tokens * heads * key_dim, 0.2f, -0.5f);
    decay[5] += fault;
    const auto factor = make_floats(tokens * heads, 0.2f, 0.5f), skip = make_floats(heads, 1.0f);
    auto memory = make_floats(entries * heads * key_dim * value_dim, 1.0f);
    std::vector<float> out(static_cast<size_t>(tokens * heads * value_dim));
    scan_heads({{q.data(), Type::bf16, groups * key_dim}, {k.data(), Type::bf16, groups * key_dim},
                {v.data(), Type::bf16, heads * value_dim}, decay.data(), factor.data(), skip.data(), heads, groups, key_dim,
                value_dim, 0.3f, delta, delta, per_channel, memory.data(), out.data(), Type::f32, ring});
    write(out);
    write(memory);
}

void write_channels(int64_t channels, int64_t states) {
    const auto x = make_floats(tokens * channels, 1.0f), b = make_floats(tokens * states, 1.0f), c = make_floats(tokens * states, 1.0f);
    const auto step = make_floats(tokens * channels, 0.2f, 0.6f), rate = make_floats(channels * states, 0.2f, -0.8f);
    auto memory = make_floats(entries * states * channels, 1.0f);
    std::vector<float> out(static_cast<size_t>(tokens * channels));
    scan_channels({{x.data(), Type::f32, channels}, {b.data(), Type::f32, states}, {c.data(), Type::f32, states},
                   step.data(), rate.data(), channels, states, memory.data(), out.data(), ring});
    write(out);
    write(memory);
}

void write_convolution(int64_t channels, int64_t width, bool silu) {
    const auto x = narrow(make_floats(tokens * channels, 2.0f)), weight = narrow(make_floats(channels * width, 1.0f));
    const auto bias = narrow(make_floats(channels, 1.0f));
    auto memory = narrow(make_floats(entries * (width - 1) * channels, 1.0f));
    std::vector<bf16> out(static_cast<size_t>(tokens * channels));
    convolve({{x.data(), Type::bf16, channels}, weight.data(), bias.data(), channels, width, silu, memory.data(),
              out.data(), ring});
    write(out);
    write(memory);
}

}  // namespace

int main(int argc, char **) {
    const float fault = argc > 1 ? 0.25f : 0.0f;  // a planted fault
    for (const int64_t key_dim : {1, 7, 16, 64})
        for (const int64_t value_dim : {1, 16, 37, 64})
            for (const int kind : {0, 1, 2, 3}) write_heads(key_dim, value_dim, kind & 1, kind & 2, fault);
    for (const int64_t channels : {5, 32, 71}) write_channels(channels, 16);
    for (const int64_t width : {1, 2, 4})
        for (const int64_t channels : {3, 512, 530}) write_convolution(channels, width, channels != 3);
}
