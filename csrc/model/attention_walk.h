// The walk of a tile of query rows over the positions that they see. attention.cpp says how the cache is laid out.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/lines.h"
#include "kernels.h"
#include "model/attention_chunk.h"
#include "quantized/kv_codes.h"

namespace tailrace {

constexpr int64_t kPart = 512;  // positions per partition

// Query rows of one sequence and one KV head that walk over the positions together.
struct AttentionTile {
    int64_t sequence, head, row;  // row: the first one; row = token · group + member
    int rows;
    int64_t parts;  // number of partitions up to the last visible position
};

// The state of the online softmax after some positions: per row the maximum, the sum of weights, the weighted sum of
// values.
struct RunningSoftmax {
    float max[kQueryRows], sum[kQueryRows];
    std::vector<float> out;  // [rows, Dv], and room for what tiles write behind the last row
    void clear(int rows, int64_t dim) {
        std::fill(max, max + rows, kMasked);
        std::fill(sum, sum + rows, 0.0f);
        const size_t size = static_cast<size_t>((rows + kTileRows - 1) / kTileRows * kTileRows * dim);
        if (out.size() < size) out.resize(size);
        std::fill(out.begin(), out.begin() + rows * dim, 0.0f);
    }
};

// Add `part` to `total`; each is relative to its own maxima.
inline void merge_softmax(RunningSoftmax &total, const RunningSoftmax &part, int rows, int64_t dim) {
    for (int r = 0; r < rows; ++r) {
        if (part.sum[r] == 0.0f) continue;  // the row saw no position; a NaN sum is not 0 and is kept
        const float max = std::max(total.max[r], part.max[r]);
        const float a = total.max[r] == kMasked ? 0.0f : fast_exp2(total.max[r] - max);
        const float b = fast_exp2(part.max[r] - max);
        total.max[r] = max;
        total.sum[r] = total.sum[r] * a + part.sum[r] * b;
        float *to = total.out.data() + r * dim;
        const float *from = part.out.data() + r * dim;
        for (int64_t d = 0; d < dim; ++d) to[d] = to[d] * a + from[d] * b;
    }
}

// The walk of one tile. T: the dtype of queries, bf16 or float.
template <typename T> struct AttentionWalk {
    static constexpr int64_t pair = sizeof(T) == 2 ? 2 : 1;
    const Attention &c;
    const AttentionTile &tile;
    int64_t group, length, first_token;
    float scale;
    bool tiled;
    const T *q[kQueryRows];
    int64_t low[kQueryRows], high[kQueryRows];  // row r sees positions [low[r], high[r]); both ascend

    AttentionWalk(const Attention &call, const AttentionTile &t) : c(call), tile(t), group(call.heads_q / call.heads_kv) {
        length = c.kv_len[t.sequence];
        tiled = pair == 2 && c.code != KvCode::int8 && attention_tiles_serve(c.head_dim, c.value_dim);
        first_token = c.query_start[t.sequence];
        scale = c.softcap != 0.0f ? kLog2e : c.scale * kLog2e;
        const int64_t tokens = c.query_start[t.sequence + 1] - first_token;
        for (int r = 0; r < t.rows; ++r) {
            q[r] = static_cast<const T *>(c.query) + offset(r, c.query_stride, c.head_dim);
            const int64_t position = length - tokens + (t.row + r) / group;
            high[r] = position + 1;
            low[r] = c.window > 0 ? std::max<int64_t>(0, position + 1 - c.window) : 0;
            if (c.chunk > 0) low[r] = std::max(low[r], position - position % c.chunk);
        }
    }

    // The bits of the chunk of positions from `base` on that row r may see.
    uint64_t selected(int r, int64_t base) const {
        if (c.selected == nullptr) return kAll;
        const int64_t token = first_token + (tile.row + r) / group, head = c.selected_heads == 1 ? 0 : tile.head;
        return c.selected[(token * c.selected_heads + head) * c.selected_words + base / kChunk];
    }

    // Return whether some of these rows may see one of the positions [base, base + kChunk).
    bool any(int r, int rows, int64_t base) const {
        if (high[r + rows - 1] <= base || low[r] >= base + kChunk) return false;
        uint64_t bits = 0;
        for (int i = r; i < r + rows; ++i) bits |= selected(i, base);
        return bits != 0;
    }

    int64_t query_head(int r) const { return tile.head * group + (tile.row + r) % group; }

    int64_t offset(int r, int64_t token_stride, int64_t dim) const {
        return (first_token + (tile.row + r) / group) * token_stride + query_head(r) * dim;
    }

    // Return the number of positions, of all heads, before this head's part of the block.
    int64_t block_base(int64_t position) const {
        const int64_t block = c.tables[tile.sequence * c.table_width + position / c.block_size];
        return (block * c.heads_kv + tile.head) * c.block_size;
    }

    // The keys and values of a chunk of positions. groups: values of 16 positions each. units: values of a position, or
    // of a pair of positions in bf16.
    struct Chunk {
        int64_t base;
        const T *keys[4], *groups[4], *units[kChunk];
        int count, num_units;
        const T *next_keys[4], *next_groups[4];  // of the next chunk: to be fetched while this one is multiplied
        bool fetch;                              // whether the rows that come now fetch it
        float scales[2][kChunk];  // of keys and of values, if these are codes
    };

    // Return how many numbers `chunk` may copy: a chunk's widened keys and values, or 16 positions' values.
    size_t spare_size() const {
        return c.code == KvCode::none ? 16 * c.value_dim : kChunk * (c.head_dim + c.value_dim);
    }

    // Attend to the positions [base, end) of one chunk, for every row of the tile that sees some of them. With AMX tiles,
    // the tile's queries lie behind the spare numbers, side by side.
    void chunk(int64_t base, int64_t end, T *spare, RunningSoftmax &state) const {
        Chunk at;
        at.base = base;
        at.count = static_cast<int>(std::min<int64_t>(kChunk, end - base));
        at.num_units = 0;
        for (int i = 0; i < 4; ++i) {
            if (16 * i >= at.count) {  // any valid address is fine: those scores are masked
                at.keys[i] = at.keys[0];
                continue;
            }
            const int64_t position = base + 16 * i, place = block_base(position) + position % c.block_size;
            at.keys[i] = static_cast<const T *>(c.keys) + place * c.head_dim;
            const T *value = static_cast<const T *>(c.values) + place * c.value_dim;
            T *aside = spare;  // room for these values
            if (c.code != KvCode::none) {
                T *to = spare + 16 * i * (c.head_dim + c.value_dim);
                at.keys[i] = to, value = aside = to + 16 * c.head_dim;
                fetch(place, to, at.scales[0] + 16 * i, at.scales[1] + 16 * i);
            }
            const int written = std::min(16, at.count - 16 * i);
            // values that are not written yet may be NaN, and 0 · NaN is NaN
            if (pair == 2 && (tiled ? written < 16 : written % 2 && c.code == KvCode::none))
                value = only(value, written, aside);
            at.groups[i] = value;
            for (int j = 0; j < written; j += pair, value += pair * c.value_dim) at.units[at.num_units++] = value;
        }
        at.fetch = spread() && base + kChunk < end;
        if (at.fetch) point_at_next(base + kChunk, end, at);
        else if (!tiled) prefetch(base + kChunk, end);
        const int step = tiled ? kTileRows : kRegisterRows;
        for (int r = 0; r < tile.rows; r += step) {
            const int rows = std::min(step, tile.rows - r);
            if (!any(r, rows, base)) continue;
            some(at, r, rows, spare + spare_size() + r * c.head_dim, state);
            at.fetch = false;
        }
    }

    // Whether the products fetch the next chunk beside this one's loads.
    bool spread() const { return pair == 2 && !tiled && c.code == KvCode::none && has_bf16(); }

    void point_at_next(int64_t base, int64_t end, Chunk &at) const {
        for (int i = 0; i < 4; ++i) {
            const int64_t position = std::min(base + 16 * i, (end - 1) / 16 * 16);
            const int64_t place = block_base(position) + position % c.block_size;
            at.next_keys[i] = static_cast<const T *>(c.keys) + place * c.head_dim;
            at.next_groups[i] = static_cast<const T *>(c.values) + place * c.value_dim;
        }
    }

    // Prefetch the next chunk's keys and values. Few tiles wait for memory at a time, so without this each load would
    // wait. Processors with AMX detect such streams themselves, and prefetching makes them slower by a tenth.
    void prefetch(int64_t base, int64_t end) const {
        for (int64_t position = base; position < std::min(base + kChunk, end); position += 16) {
            const int64_t place = block_base(position) + position % c.block_size;
            const int64_t each = c.code == KvCode::none ? sizeof(T) : 1;  // bytes
            const char *keys = static_cast<const char *>(c.keys) + place * c.head_dim * each;
            const char *values = static_cast<const char *>(c.values) + place * c.value_dim * each;
            for (int64_t at = 0; at < 16 * c.head_dim * each; at += 64) __builtin_prefetch(keys + at, 0, 3);
            for (int64_t at = 0; at < 16 * c.value_dim * each; at += 64) __builtin_prefetch(values + at, 0, 3);
        }
    }

    // Copy the values of 16 positions to `to`, with zeros for the positions that are not written yet. The values may lie
    // there already.
    const T *only(const T *values, int written, T *to) const {
        const int64_t whole = written / 2 * 2 * c.value_dim, half = whole + written % 2 * 2 * c.value_dim;
        std::copy(values, values + whole, to);
        for (int64_t d = whole; d < half; d += 2) to[d] = values[d], to[d + 1] = T{0};
        std::fill(to + half, to + 16 * c.value_dim, T{0});
        return to;
    }

    // Widen the codes of sixteen positions to `to`, keys before values, and copy their scales.
    void fetch(int64_t at, T *to, float *key_scales, float *value_scales) const {
        widen_float8(static_cast<const uint8_t *>(c.keys) + at * c.head_dim, 16 * c.head_dim, to);
        widen_float8(static_cast<const uint8_t *>(c.values) + at * c.value_dim, 16 * c.value_dim, to + 16 * c.head_dim);
        std::memcpy(key_scales, c.scales + at, 16 * sizeof(float));
        std::memcpy(value_scales, c.scales + c.blocks * c.heads_kv * c.block_size + at, 16 * sizeof(float));
    }

    // Attend to a chunk for at most kMostRows rows, from r on. With AMX tiles, their queries lie side by side.
    void some(const Chunk &at, int r, int rows, const T *queries, RunningSoftmax &state) const {
        alignas(64) float s[kMostRows * kChunk];
        alignas(64) T p[kMostRows * kChunk];
        float *out = state.out.data() + r * c.value_dim;
        const bool coded = c.code != KvCode::none;
        score(at, r, rows, queries, s);
        if (coded)
            for (int i = 0; i < rows; ++i) multiply(s + i * kChunk, 0, kChunk, at.scales[0]);
        cap(s, rows);
        soften(s, p, rows, seen(r, rows, at.base), scale, &state.max[r], &state.sum[r], coded ? at.scales[1] : nullptr, out, c.value_dim);
        if constexpr (pair == 2)
            if (tiled) return weigh_by_tiles(p, at.groups, (at.count + 15) / 16, c.value_dim, out);
        weigh_by_registers(rows, p, at.units, at.fetch ? at.next_groups : nullptr, at.num_units, c.value_dim, out);
    }

    // Bound the scores of these rows, if the layer wants that.
    void cap(float *s, int rows) const {
        if (c.softcap != 0.0f)
            for (int i = 0; i < rows * kChunk; ++i) s[i] = c.softcap * std::tanh(s[i] * c.scale / c.softcap);
    }

    // What rows from r on see of the chunk of positions from `base`.
    Seen seen(int r, int rows, int64_t base) const {
        Seen found;
        for (int i = 0; i < rows; ++i) {
            found.low[i] = static_cast<int>(std::clamp<int64_t>(low[r + i] - base, 0, kChunk));
            found.high[i] = static_cast<int>(std::clamp<int64_t>(high[r + i] - base, 0, kChunk));
            found.selected[i] = selected(r + i, base);
        }
        return found;
    }

    // The first position of a partition's first chunk that a row may see.
    int64_t first_chunk(int64_t part) const { return std::max(part * kPart, low[0] / kChunk * kChunk); }

    void score(const Chunk &at, int r, int rows, const T *queries, float *s) const {
        if constexpr (pair == 2)
            if (tiled) return scores_by_tiles(queries, at.keys, c.head_dim, s);
        scores_by_registers(rows, q + r, at.keys, at.fetch ? at.next_keys : nullptr, c.head_dim, s);
    }

    void part(int64_t index, RunningSoftmax &state) const {
        const int64_t seen = high[tile.rows - 1], end = std::min((index + 1) * kPart, seen);
        thread_local Lines<T> held;
        const size_t queries = tiled ? (kQueryRows + kTileRows) * c.head_dim : 0;
        if (held.size() < spare_size() + queries) held.resize(spare_size() + queries);
        T *spare = held.data();
        if (tiled) {
            for (int r = 0; r < tile.rows; ++r) std::copy(q[r], q[r] + c.head_dim, spare + spare_size() + r * c.head_dim);
            begin_attention_tiles(std::min(kTileRows, tile.rows));
        }
        for (int64_t base = first_chunk(index); base < end; base += kChunk)
            if (any(0, tile.rows, base)) chunk(base, seen, spare, state);
        if (tiled) end_attention_tiles();
    }

    void finish(const RunningSoftmax &total) const {
        for (int r = 0; r < tile.rows; ++r) {
            T *out = static_cast<T *>(c.out) + offset(r, c.heads_q * c.value_dim, c.value_dim);
            float sum = total.sum[r], part = 1.0f;
            if (c.sinks != nullptr && total.max[r] != kMasked) {  // the sink has a weight, but no value
                const float sink = c.sinks[query_head(r)] * kLog2e, max = std::max(total.max[r], sink);
                part = fast_exp2(total.max[r] - max);
                sum = sum * part + fast_exp2(sink - max);
            }
            const float scale = sum > 0.0f ? part / sum : sum;
            const float *from = total.out.data() + r * c.value_dim;
            for (int64_t d = 0; d < c.value_dim; ++d) out[d] = from_float<T>(from[d] * scale);
        }
    }
};

}  // namespace tailrace
