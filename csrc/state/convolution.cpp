// Causal convolutions of a few tokens per channel, with the tokens before the batch in memory.
#include "base/pool.h"
#include "state/arithmetic.h"

namespace tailrace {
namespace {

constexpr int64_t kTile = 32;       // tokens of a task
constexpr int64_t kChannels = 512;  // channels of a task

// The channels that a task computes.
struct Part {
    int64_t channel, count;
};

template <typename T> TAILRACE_INLINE float widen(T x) {
    if constexpr (sizeof(T) == 4) {
        return x;
    } else {
        const uint32_t bits = static_cast<uint32_t>(x) << 16;
        float out;
        std::memcpy(&out, &bits, 4);
        return out;
    }
}
TAILRACE_INLINE void narrow(float x, float &to) { to = x; }
TAILRACE_INLINE void narrow(float x, bf16 &to) { to = to_bf16(x); }

// Return the input `offset` tokens after the sequence's first one. A negative offset is in memory; null stands for
// zeros before position 0.
template <typename T>
TAILRACE_INLINE const T *find_input(const Convolution &call, int64_t i, int64_t offset, int64_t channel) {
    if (offset >= 0)
        return static_cast<const T *>(call.x.data) + (call.ring.starts[i] + offset) * call.x.stride + channel;
    if (call.ring.first[i] == 0) return nullptr;
    const int64_t row = call.ring.entry(i, 0) * (call.width - 1) + call.width - 1 + offset;
    return static_cast<const T *>(call.memory) + row * call.channels + channel;
}

// taps: [width][kChannels], then the bias [kChannels], then a sum [kChannels].
template <typename T> TAILRACE_INLINE void convolve_token(const Convolution &call, int64_t i, int64_t token, Part part,
                                                          float *taps) {
    float *bias = taps + call.width * kChannels, *sum = bias + kChannels;
    for (int64_t c = 0; c < part.count; ++c) sum[c] = 0.0f;
    for (int64_t k = 0; k < call.width; ++k) {
        const T *input = find_input<T>(call, i, token - call.ring.starts[i] - (call.width - 1) + k, part.channel);
        const float *tap = taps + k * kChannels;
        if (input)
            for (int64_t c = 0; c < part.count; ++c) sum[c] += widen(input[c]) * tap[c];
    }
    T *out = static_cast<T *>(call.out) + token * call.channels + part.channel;
    for (int64_t c = 0; c < part.count; ++c) narrow(sum[c] + bias[c], out[c]);
    if (!call.silu) return;
    for (int64_t c = 0; c < part.count; ++c) {
        const float x = widen(out[c]);
        narrow(x / (1.0f + exponential_of(-x)), out[c]);
    }
}

template <typename T>
TAILRACE_INLINE void convolve_part(const Convolution &call, int64_t first, int64_t last, Part part, float *taps) {
    const T *weight = static_cast<const T *>(call.weight) + part.channel * call.width;
    const T *given = static_cast<const T *>(call.bias);
    for (int64_t c = 0; c < part.count; ++c)
        for (int64_t k = 0; k < call.width; ++k) taps[k * kChannels + c] = widen(weight[c * call.width + k]);
    for (int64_t c = 0; c < part.count; ++c)
        taps[call.width * kChannels + c] = given ? widen(given[part.channel + c]) : 0.0f;
    const int64_t *starts = call.ring.starts;
    int64_t i = std::upper_bound(starts, starts + call.ring.sequences + 1, first) - starts - 1;
    for (int64_t token = first; token < last; ++token) {
        while (token >= starts[i + 1]) ++i;
        convolve_token<T>(call, i, token, part, taps);
    }
}

TAILRACE_CLONES void convolve_bf16(const Convolution &call, int64_t first, int64_t last, Part part, float *taps) {
    convolve_part<bf16>(call, first, last, part, taps);
}
TAILRACE_CLONES void convolve_f32(const Convolution &call, int64_t first, int64_t last, Part part, float *taps) {
    convolve_part<float>(call, first, last, part, taps);
}

// Write the inputs before each of the sequence's last positions. The inputs from memory are copied first, because the
// ring's entry may be overwritten.
template <typename T> void keep_inputs(const Convolution &call, int64_t i) {
    const int64_t back = call.width - 1, channels = call.channels, count = call.ring.count(i);
    std::vector<T> earlier(static_cast<size_t>(std::max<int64_t>(back * channels, 1)), T{});
    for (int64_t k = 0; k < back; ++k)
        if (const T *input = find_input<T>(call, i, k - back, 0))
            std::copy_n(input, channels, earlier.data() + k * channels);
    for (int64_t j = std::max<int64_t>(0, count - call.ring.rows); j < count; ++j) {
        T *to = static_cast<T *>(call.memory) + call.ring.entry(i, j + 1) * back * channels;
        for (int64_t k = 0; k < back; ++k) {
            const int64_t offset = j + 1 - back + k;
            const T *input = offset >= 0 ? find_input<T>(call, i, offset, 0) : earlier.data() + (offset + back) * channels;
            std::copy_n(input, channels, to + k * channels);
        }
    }
}

template <typename T, typename F> void convolve_all(const Convolution &call, F &&work) {
    const int64_t tokens = call.ring.starts[call.ring.sequences];
    const int64_t parts = (call.channels + kChannels - 1) / kChannels, tiles = (tokens + kTile - 1) / kTile;
    Pool::instance().run(tiles * parts, [&](int64_t task) {
        const int64_t channel = task % parts * kChannels, first = task / parts * kTile;
        const Part part{channel, std::min(kChannels, call.channels - channel)};
        work(call, first, std::min(tokens, first + kTile), part, borrow_floats((call.width + 2) * kChannels));
    });
    Pool::instance().run(call.ring.sequences, [&](int64_t i) { keep_inputs<T>(call, i); });
}

}  // namespace

void convolve(const Convolution &call) {
    if (call.x.type == Type::f32)
        convolve_all<float>(call, convolve_f32);
    else
        convolve_all<bf16>(call, convolve_bf16);
}

}  // namespace tailrace
