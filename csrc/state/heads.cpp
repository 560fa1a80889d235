// The scan of a matrix per head: the gated delta rule (arXiv 2412.06464), Kimi's with a decay per channel
// (arXiv 2510.26692), and Mamba 2 (arXiv 2405.21060).
//
// The columns of a state are independent. A task takes a block of columns of one head through all tokens of a sequence.
#include "base/pool.h"
#include "state/arithmetic.h"

namespace tailrace {
namespace {

// A block of columns, of a state in memory or of a scratch state.
struct Block {
    float *data;
    int64_t stride;
};

// What a token does to a head's state.
struct Token {
    const float *query, *key, *decay, *faded;  // [key_dim]; faded is key · decay
    const float *value;
    float *out;
    float factor, skip;
};

TAILRACE_INLINE void load(const float *from, float &to) { to = *from; }
TAILRACE_INLINE void load(const float *from, F16 &to) { to = load16<F16>(from); }
TAILRACE_INLINE void store(float *to, const float &from) { *to = from; }
TAILRACE_INLINE void store(float *to, const F16 &from) { store16(to, from); }

// Advance `Width` groups of columns from `from` to `to`, which may be one place. Sums over the rows have two parts, of
// even and of odd rows.
template <typename V, int Width>
TAILRACE_INLINE void advance(const HeadScan &call, const Token &token, const Block &from, const Block &to, int64_t at) {
    constexpr int64_t lanes = sizeof(V) / sizeof(float);
    const int64_t rows = call.key_dim, even = rows / 2 * 2;
    V update[Width], part[2][Width] = {}, out[2][Width] = {}, value[Width], state;
    const auto recall = [&](int64_t row, V(&sum)[Width]) __attribute__((always_inline)) {
        for (int w = 0; w < Width; ++w) {
            load(from.data + row * from.stride + at + w * lanes, state);
            sum[w] += state * token.faded[row];
        }
    };
    const auto renew = [&](int64_t row, V(&sum)[Width]) __attribute__((always_inline)) {
        for (int w = 0; w < Width; ++w) {
            load(from.data + row * from.stride + at + w * lanes, state);
            const V next = state * token.decay[row] + update[w] * token.key[row];
            store(to.data + row * to.stride + at + w * lanes, next);
            sum[w] += next * token.query[row];
        }
    };
    if (call.delta) {
        for (int64_t row = 0; row < even; row += 2) {
            recall(row, part[0]);
            recall(row + 1, part[1]);
        }
        if (even < rows) recall(even, part[0]);
    }
    for (int w = 0; w < Width; ++w) {
        load(token.value + at + w * lanes, value[w]);
        update[w] = (value[w] - (part[0][w] + part[1][w])) * token.factor;
    }
    for (int64_t row = 0; row < even; row += 2) {
        renew(row, out[0]);
        renew(row + 1, out[1]);
    }
    if (even < rows) renew(even, out[0]);
    for (int w = 0; w < Width; ++w)
        store(token.out + at + w * lanes, V((out[0][w] + out[1][w]) + value[w] * token.skip));
}

// Scale a row to length 1. Sixteen partial sums, as everywhere.
TAILRACE_INLINE void normalize_row(float *row, int64_t count) {
    float part[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (int64_t j = 0; j < kLanes; ++j) part[j] += row[i + j] * row[i + j];
    for (; i < count; ++i) part[0] += row[i] * row[i];
    float sum = 0.0f;
    for (int64_t j = 0; j < kLanes; ++j) sum += part[j];
    const float scale = 1.0f / std::sqrt(sum + 1e-6f);
    for (i = 0; i < count; ++i) row[i] *= scale;
}

// The rows of a token in this thread's memory, in this order: query, key, decay, faded.
TAILRACE_INLINE void read_token(const HeadScan &call, int64_t token, int64_t head, float *rows) {
    const int64_t dim = call.key_dim, from = head / (call.heads / call.key_heads) * dim;
    float *query = rows, *key = rows + dim, *decay = rows + 2 * dim, *faded = rows + 3 * dim;
    widen_row(call.query, token, from, dim, query);
    widen_row(call.key, token, from, dim, key);
    if (call.normalize) {
        normalize_row(query, dim);
        normalize_row(key, dim);
    }
    const int64_t place = token * call.heads + head;
    if (call.per_channel) {
        for (int64_t d = 0; d < dim; ++d) decay[d] = exponential_of(call.decay[place * dim + d]);
    } else {
        const float one = exponential_of(call.decay[place]);
        for (int64_t d = 0; d < dim; ++d) decay[d] = one;
    }
    for (int64_t d = 0; d < dim; ++d) {
        query[d] *= call.scale;
        faded[d] = key[d] * decay[d];
    }
}

TAILRACE_INLINE void write_columns(const HeadScan &call, int64_t at, int64_t count, const float *from) {
    if (call.out_type == Type::f32) {
        float *to = static_cast<float *>(call.out) + at;
        for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    } else {
        bf16 *to = static_cast<bf16 *>(call.out) + at;
        for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
    }
}

// Take `count` columns of a head's state through all tokens of sequence i.
TAILRACE_CLONES void walk_columns(const HeadScan &call, int64_t i, int64_t head, int64_t column, int64_t count,
                                  float *work) {
    const int64_t dim = call.key_dim, matrix = dim * call.value_dim;
    float *values = work, *results = work + kColumns, *rows = work + 2 * kColumns;
    const Block scratch{rows + 4 * dim, kColumns};
    const auto locate = [&](int64_t j) {
        return Block{call.memory + (call.ring.entry(i, j) * call.heads + head) * matrix + column, call.value_dim};
    };
    const bool fresh = call.ring.first[i] == 0;
    Block from = fresh ? scratch : locate(0);
    if (fresh) std::memset(scratch.data, 0, static_cast<size_t>(dim * kColumns) * sizeof(float));
    for (int64_t j = 0; j < call.ring.count(i); ++j) {
        const int64_t token = call.ring.starts[i] + j, place = token * call.heads + head;
        read_token(call, token, head, rows);
        widen_row(call.value, token, head * call.value_dim + column, count, values);
        const Token now{rows,   rows + dim, rows + 2 * dim,     rows + 3 * dim,
                        values, results,    call.factor[place], call.skip ? call.skip[head] : 0.0f};
        const Block to = call.ring.keeps(i, j) ? locate(j + 1) : scratch;
        int64_t at = 0;
        for (; at + 32 <= count; at += 32) advance<F16, 2>(call, now, from, to, at);
        for (; at + 16 <= count; at += 16) advance<F16, 1>(call, now, from, to, at);
        for (; at < count; ++at) advance<float, 1>(call, now, from, to, at);
        write_columns(call, place * call.value_dim + column, count, results);
        from = to;
    }
}

}  // namespace

void scan_heads(const HeadScan &call) {
    const int64_t blocks = (call.value_dim + kColumns - 1) / kColumns, tasks = call.heads * blocks;
    Pool::instance().run(call.ring.sequences * tasks, [&](int64_t task) {
        const int64_t head = task % tasks / blocks, column = task % blocks * kColumns;
        const int64_t count = std::min(kColumns, call.value_dim - column);
        float *work = borrow_floats(2 * kColumns + call.key_dim * (4 + kColumns));
        walk_columns(call, task / tasks, head, column, count, work);
    });
}

}  // namespace tailrace
