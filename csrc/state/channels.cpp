// Mamba's selective scan (arXiv 2312.00752): a short state per channel, with a decay per number.
#include "base/pool.h"
#include "state/arithmetic.h"

namespace tailrace {
namespace {

// Copy `rows` rows of `count` numbers.
TAILRACE_INLINE void copy_rows(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                               int64_t count) {
    for (int64_t r = 0; r < rows; ++r)
        std::memcpy(to + r * to_stride, from + r * from_stride, static_cast<size_t>(count) * sizeof(float));
}

// Take a block of `count` channels through all tokens of sequence i. Channels beyond `count` compute with zeros.
TAILRACE_CLONES void walk_channels(const ChannelScan &call, int64_t i, int64_t channel, int64_t count, float *work) {
    const int64_t states = call.states;
    float x[kColumns] = {}, step[kColumns] = {}, out[kColumns];
    float *state = work, *rate = work + states * kColumns, *b = rate + states * kColumns, *c = b + states;
    const auto locate = [&](int64_t j) {
        return call.memory + call.ring.entry(i, j) * states * call.channels + channel;
    };
    std::memset(work, 0, static_cast<size_t>(2 * states * kColumns) * sizeof(float));
    copy_rows(call.rate + channel, call.channels, rate, kColumns, states, count);
    if (call.ring.first[i] > 0) copy_rows(locate(0), call.channels, state, kColumns, states, count);
    for (int64_t j = 0; j < call.ring.count(i); ++j) {
        const int64_t token = call.ring.starts[i] + j, at = token * call.channels + channel;
        widen_row(call.x, token, channel, count, x);
        widen_row(call.b, token, 0, states, b);
        widen_row(call.c, token, 0, states, c);
        for (int64_t l = 0; l < count; ++l) step[l] = call.step[at + l];
        for (int64_t l = 0; l < kColumns; ++l) {
            x[l] *= step[l];
            out[l] = 0.0f;
        }
        for (int64_t n = 0; n < states; ++n) {
            float *row = state + n * kColumns;
            const float *rates = rate + n * kColumns;
            for (int64_t l = 0; l < kColumns; ++l) {
                row[l] = row[l] * exponential_of(rates[l] * step[l]) + x[l] * b[n];
                out[l] += row[l] * c[n];
            }
        }
        std::memcpy(call.out + at, out, static_cast<size_t>(count) * sizeof(float));
        if (call.ring.keeps(i, j)) copy_rows(state, kColumns, locate(j + 1), call.channels, states, count);
    }
}

}  // namespace

void scan_channels(const ChannelScan &call) {
    const int64_t blocks = (call.channels + kColumns - 1) / kColumns;
    Pool::instance().run(call.ring.sequences * blocks, [&](int64_t task) {
        const int64_t channel = task % blocks * kColumns, count = std::min(kColumns, call.channels - channel);
        walk_channels(call, task / blocks, channel, count, borrow_floats(2 * call.states * (kColumns + 1)));
    });
}

}  // namespace tailrace
