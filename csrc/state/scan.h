// The calls of scans along sequences. Contracts are in src/tailrace/kernels/__init__.py.
// A token's arithmetic is the same in a prompt and in a decode step, so its bits do not depend on cuts or neighbours.
#pragma once
#include "kernels.h"
#include "state/ring.h"

namespace tailrace {

constexpr int64_t kColumns = 32;  // columns of a state that a task computes: the block stays in the L1 cache

// Rows of a tensor [T, …]: `stride` numbers lie between tokens.
struct Rows {
    const void *data;
    Type type;
    int64_t stride;
};

struct HeadScan {
    Rows query, key, value;                         // [T, key_heads, key_dim] twice, [T, heads, value_dim]
    const float *decay, *factor, *skip;             // logarithms [T, heads] or [T, heads, key_dim]; [T, heads]; [heads] or null
    int64_t heads, key_heads, key_dim, value_dim;
    float scale;
    bool delta, normalize, per_channel;
    float *memory;  // [entries, heads, key_dim, value_dim]
    void *out;      // [T, heads, value_dim]
    Type out_type;
    Ring ring;
};

struct ChannelScan {
    Rows x, b, c;                     // [T, channels], [T, states] twice
    const float *step, *rate;         // [T, channels], [states, channels]
    int64_t channels, states;
    float *memory;  // [entries, states, channels]
    float *out;     // [T, channels]
    Ring ring;
};

struct Convolution {
    Rows x;              // [T, channels]
    const void *weight;  // [channels, width]
    const void *bias;    // [channels] or null
    int64_t channels, width;
    bool silu;
    void *memory;  // [entries, width − 1, channels]
    void *out;     // [T, channels]
    Ring ring;
};

void scan_heads(const HeadScan &call);
void scan_channels(const ChannelScan &call);
void convolve(const Convolution &call);

}  // namespace tailrace
