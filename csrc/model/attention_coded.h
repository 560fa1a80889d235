// The walk of a tile of query rows over keys and values in codes of int8 (quantized/kv_products.h).
#pragma once
#include "model/attention_walk.h"
#include "quantized/kv_products.h"

namespace tailrace {

template <typename T> struct CodedWalk {
    const AttentionWalk<T> &walk;
    const Attention &c;
    QueryCodes queries;

    explicit CodedWalk(const AttentionWalk<T> &of) : walk(of), c(of.c) {
        thread_local Lines<int8_t> codes;
        thread_local std::vector<float> numbers;
        thread_local float scales[kQueryRows];
        thread_local int32_t starts[2 * kQueryRows];
        const int64_t size = kQueryRows * c.head_dim;
        if (static_cast<int64_t>(codes.size()) < 2 * size) codes.resize(2 * size);
        numbers.resize(static_cast<size_t>(c.head_dim));
        queries = {codes.data(), codes.data() + size, scales, starts};
        for (int r = 0; r < walk.tile.rows; ++r) {
            for (int64_t d = 0; d < c.head_dim; ++d) numbers[d] = to_float(walk.q[r][d]);
            code_query(numbers.data(), c.head_dim, queries.from(r, c.head_dim));
        }
    }

    void part(int64_t index, RunningSoftmax &state) const {
        const int64_t seen = walk.high[walk.tile.rows - 1], end = std::min((index + 1) * kPart, seen);
        for (int64_t base = walk.first_chunk(index); base < end; base += kChunk)
            if (walk.any(0, walk.tile.rows, base)) chunk(base, seen, state);
    }

    void chunk(int64_t base, int64_t end, RunningSoftmax &state) const {
        CodedChunk at;
        at.groups = static_cast<int>(std::min<int64_t>(4, (end - base + 15) / 16));
        for (int i = 0; i < 4; ++i) place_group(i < at.groups ? base + 16 * i : base, base + kChunk + 16 * i, end, i, at);
        at.fetch = base + kChunk < end;
        for (int r = 0; r < walk.tile.rows; r += kCodedRows) {
            const int rows = std::min(kCodedRows, walk.tile.rows - r);
            if (!walk.any(r, rows, base)) continue;
            some(at, base, r, rows, state);
            at.fetch = false;
        }
    }

    // Point at the 16 positions from `position` on, and at the 16 from `next` on if these are before `end`.
    void place_group(int64_t position, int64_t next, int64_t end, int i, CodedChunk &to) const {
        const int64_t place = walk.block_base(position) + position % c.block_size;
        const float *value_scales = c.scales + c.blocks * c.heads_kv * c.block_size;
        to.keys[i] = to.next_keys[i] = static_cast<const uint8_t *>(c.keys) + place * c.head_dim;
        to.values[i] = to.next_values[i] = static_cast<const uint8_t *>(c.values) + place * c.value_dim;
        to.key_scales[i] = c.scales + place;
        to.value_scales[i] = value_scales + place;
        if (next >= end) return;
        const int64_t then = walk.block_base(next) + next % c.block_size;
        to.next_keys[i] = static_cast<const uint8_t *>(c.keys) + then * c.head_dim;
        to.next_values[i] = static_cast<const uint8_t *>(c.values) + then * c.value_dim;
        __builtin_prefetch(c.scales + then);
        __builtin_prefetch(value_scales + then);
    }

    void some(const CodedChunk &at, int64_t base, int r, int rows, RunningSoftmax &state) const {
        alignas(64) float s[kCodedRows * kCodedPositions];
        uint64_t bits[kCodedRows];
        WeightCodes weights;
        score_codes(rows, queries.from(r, c.head_dim), at, c.head_dim, s);
        walk.cap(s, rows);
        const Seen seen = walk.seen(r, rows, base);
        for (int i = 0; i < rows; ++i) bits[i] = seen.bits(i);
        soften_codes(s, rows, bits, walk.scale, at, &state.max[r], &state.sum[r], weights);
        weigh_codes(rows, weights, at, c.value_dim, state.out.data() + r * c.value_dim);
    }
};

}  // namespace tailrace
