// Attention of a flat batch of query tokens over a block-paged KV cache: decodes and causal prefill chunks in one call.
//
// Layout. Keys lie transposed within a block, so that one load holds 16 positions of a pair of dimensions and scores
// come out side by side, without horizontal sums; values lie in pairs of positions, so that the weighted sum takes two
// positions per multiplication (vdpbf16ps). Floats use the same order without the pairing, and so do codes of eight bits
// (kv_codes.h), with the pairing of the numbers that they stand for.
//
// Codes are widened once per chunk and tile, into the nearest cache; every row of the tile reads them there. A key's
// scale multiplies its score, a value's scale its weight, so that sums are taken of numbers that nothing has rounded.
//
// Invariance. Positions are walked in chunks of 64 and partitions of 512 counted from the sequence's start, partitions
// are merged in order, and a masked position adds exactly 0. So a token's result depends on its own sequence alone: not
// on its neighbours, not on how the prompt was chunked, not on the number of threads. (FlashAttention-2's online
// softmax, arXiv 2307.08691; fixed partitions as in flash-decoding.)
#include "attention_tiles.h"
#include "kernels.h"
#include "kv_codes.h"
#include "lines.h"
#include "pool.h"
#include "simd.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace tailrace {
namespace {

constexpr int kRows = 6;        // query rows (token × head of a KV group) whose accumulators fit the registers
constexpr int kMost = std::max(kRows, kTileRows);  // query rows at a time, in registers or by tiles
constexpr int kTile = 48;       // query rows that share a chunk of keys and values while it is in the nearest cache
constexpr int kChunk = 64;      // positions per step of the online softmax
constexpr int64_t kPart = 512;  // positions per partition
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269504088896341f;  // scores are kept in units of log 2: exp becomes 2^x

struct Tile {
    int64_t sequence, head, row;  // first row; row = token · group + member
    int rows;
    int64_t parts;  // partitions up to the last position that it sees
};

// What a pass over some positions leaves per row: running maximum, sum of weights, weighted sum of values.
struct State {
    float max[kTile], sum[kTile];
    std::vector<float> out;  // [rows, Dv], and what tiles write behind the last row
    void clear(int rows, int64_t dim) {
        std::fill(max, max + rows, kNone);
        std::fill(sum, sum + rows, 0.0f);
        const size_t size = static_cast<size_t>((rows + kTileRows - 1) / kTileRows * kTileRows * dim);
        if (out.size() < size) out.resize(size);
        std::fill(out.begin(), out.begin() + rows * dim, 0.0f);
    }
};

// Adds `part` to `total`, both relative to their own maxima.
void merge(State &total, const State &part, int rows, int64_t dim) {
    for (int r = 0; r < rows; ++r) {
        if (part.sum[r] == 0.0f) continue;  // it saw no position; a NaN sum is not 0 and is kept
        const float max = std::max(total.max[r], part.max[r]);
        const float a = total.max[r] == kNone ? 0.0f : fast_exp2(total.max[r] - max);
        const float b = fast_exp2(part.max[r] - max);
        total.max[r] = max;
        total.sum[r] = total.sum[r] * a + part.sum[r] * b;
        float *to = total.out.data() + r * dim;
        const float *from = part.out.data() + r * dim;
        for (int64_t d = 0; d < dim; ++d) to[d] = to[d] * a + from[d] * b;
    }
}

// ---- scores: s[r][j] = q_r · k_j for 16 positions; keys points at [D/pair][stride] of this head, offset to position
// 0.

#if TAILRACE_X86
template <int R>
TAILRACE_BF16 void scores_tile(const bf16 *const *q, const bf16 *const *keys, int64_t dim, int64_t stride, float *s) {
    __m512 acc[R][4];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) acc[r][j] = _mm512_setzero_ps();
    const bf16 *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
    for (int64_t d = 0; d < dim; d += 2) {
        const __m512bh w0 = (__m512bh)_mm512_loadu_si512(k0), w1 = (__m512bh)_mm512_loadu_si512(k1);
        const __m512bh w2 = (__m512bh)_mm512_loadu_si512(k2), w3 = (__m512bh)_mm512_loadu_si512(k3);
        k0 += stride, k1 += stride, k2 += stride, k3 += stride;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, q[r] + d, 4);
            const __m512bh b = (__m512bh)_mm512_set1_epi32(pair);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, b);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, b);
            acc[r][2] = _mm512_dpbf16_ps(acc[r][2], w2, b);
            acc[r][3] = _mm512_dpbf16_ps(acc[r][3], w3, b);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) _mm512_storeu_ps(s + r * kChunk + 16 * j, acc[r][j]);
}

// out[r][0 … 16·W) += Σ_pairs p[r][pair] · v[pair]; values[i] points at pair i's dimensions.
template <int R, int W>
TAILRACE_BF16 void values_tile(const bf16 *p, const bf16 *const *values, int pairs, int64_t at, int64_t dim,
                               float *out) {
    __m512 acc[R][W];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < W; ++j) acc[r][j] = _mm512_loadu_ps(out + r * dim + at + 16 * j);
    for (int i = 0; i < pairs; ++i) {
        const bf16 *v = values[i] + 2 * at;
        __m512bh w[W];
        for (int j = 0; j < W; ++j) w[j] = (__m512bh)_mm512_loadu_si512(v + 32 * j);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, p + r * kChunk + 2 * i, 4);
            const __m512bh b = (__m512bh)_mm512_set1_epi32(pair);
            for (int j = 0; j < W; ++j) acc[r][j] = _mm512_dpbf16_ps(acc[r][j], w[j], b);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < W; ++j) _mm512_storeu_ps(out + r * dim + at + 16 * j, acc[r][j]);
}

template <int R>
TAILRACE_BF16 void values_rows(const bf16 *p, const bf16 *const *values, int pairs, int64_t dim, float *out) {
    int64_t at = 0;
    for (; at + 64 <= dim; at += 64) values_tile<R, 4>(p, values, pairs, at, dim, out);
    for (; at + 16 <= dim; at += 16) values_tile<R, 1>(p, values, pairs, at, dim, out);
}

// What rows see of a chunk: positions [low, high) of it.
struct Seen {
    int low[kMost], high[kMost];
    uint64_t bits(int r) const {
        const uint64_t all = ~uint64_t{0};
        return (high[r] < kChunk ? ~(all << high[r]) : all) & (low[r] < kChunk ? all << low[r] : 0);
    }
};

// `soften` below for all rows and bf16 weights, four registers at a time, and the rows' sums of values so far times what
// it returns there. In passes over the rows: a row's steps wait for each other, and those of several do not.
TAILRACE_BF16 void soften_bf16(float *s, bf16 *p, int rows, const Seen &seen, float scale, float *max, float *sum,
                               const float *times, float *out, int64_t dim) {
    static_assert(kMost <= 16);
    alignas(64) float shifts[16], decays[16], tops[16];
    for (int r = 0; r < rows; ++r) {
        float *row = s + r * kChunk;
        __m512 x[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) x[j] = _mm512_mul_ps(_mm512_loadu_ps(row + 16 * j), _mm512_set1_ps(scale));
        if (seen.low[r] > 0 || seen.high[r] < kChunk) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j)
                x[j] = _mm512_mask_mov_ps(_mm512_set1_ps(kNone), static_cast<__mmask16>(seen.bits(r) >> (16 * j)), x[j]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) _mm512_storeu_ps(row + 16 * j, x[j]);
        const __m512 widest = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
        tops[r] = std::max(max[r], _mm512_reduce_max_ps(widest));
    }
    const __mmask16 there = static_cast<__mmask16>((1u << rows) - 1);
    const __m512 none = _mm512_set1_ps(kNone), before = _mm512_maskz_loadu_ps(there, max);
    const __m512 top = _mm512_maskz_load_ps(there, tops);
    const __m512 shift = _mm512_mask_mov_ps(top, _mm512_cmp_ps_mask(top, none, _CMP_EQ_OQ), _mm512_setzero_ps());
    const __mmask16 begun = _mm512_cmp_ps_mask(before, none, _CMP_NEQ_UQ);
    _mm512_store_ps(shifts, shift);
    _mm512_store_ps(decays, _mm512_maskz_mov_ps(begun, fast_exp2(_mm512_sub_ps(before, shift))));
    for (int r = 0; r < rows; ++r) {
        const __m512 by = _mm512_set1_ps(shifts[r]), decay = _mm512_set1_ps(decays[r]);
        __m512 x[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) x[j] = fast_exp2(_mm512_sub_ps(_mm512_loadu_ps(s + r * kChunk + 16 * j), by));
        const float total = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3])));
        if (times != nullptr) {  // what hidden positions have for a scale may be NaN
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j)
                x[j] = _mm512_maskz_mul_ps(static_cast<__mmask16>(seen.bits(r) >> (16 * j)), x[j], _mm512_loadu_ps(times + 16 * j));
        }
        _mm512_storeu_si512(p + r * kChunk, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
        _mm512_storeu_si512(p + r * kChunk + 32, (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]));
        sum[r] = sum[r] * decays[r] + total;
        max[r] = tops[r];
        for (int64_t d = 0; d < dim; d += 16) {
            const __mmask16 inside = static_cast<__mmask16>((1u << std::min<int64_t>(16, dim - d)) - 1);
            float *at = out + r * dim + d;
            _mm512_mask_storeu_ps(at, inside, _mm512_mul_ps(_mm512_maskz_loadu_ps(inside, at), decay));
        }
    }
}

#define TAILRACE_BY_ROWS(CALL)      \
    switch (rows) {                 \
        case 1: CALL(1); break;     \
        case 2: CALL(2); break;     \
        case 3: CALL(3); break;     \
        case 4: CALL(4); break;     \
        case 5: CALL(5); break;     \
        default: CALL(6); break;    \
    }
#endif

TAILRACE_CLONES void scores_bf16(int rows, const bf16 *const *q, const bf16 *const *keys, int64_t dim, int64_t stride,
                                 float *s) {
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < 4; ++c) {
            float acc[16] = {};
            const bf16 *k = keys[c];
            for (int64_t d = 0; d < dim; d += 2, k += stride) {
                const float even = to_float(q[r][d]), odd = to_float(q[r][d + 1]);
                for (int j = 0; j < 16; ++j) acc[j] += to_float(k[2 * j]) * even + to_float(k[2 * j + 1]) * odd;
            }
            std::memcpy(s + r * kChunk + 16 * c, acc, sizeof acc);
        }
}

TAILRACE_CLONES void scores_f32(int rows, const float *const *q, const float *const *keys, int64_t dim, int64_t stride,
                                float *s) {
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < 4; ++c) {
            float acc[16] = {};
            const float *k = keys[c];
            for (int64_t d = 0; d < dim; ++d, k += stride) {
                const float value = q[r][d];
                for (int j = 0; j < 16; ++j) acc[j] += k[j] * value;
            }
            std::memcpy(s + r * kChunk + 16 * c, acc, sizeof acc);
        }
}

TAILRACE_CLONES void values_bf16(int rows, const bf16 *p, const bf16 *const *values, int pairs, int64_t dim,
                                 float *out) {
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < pairs; ++i) {
            const float even = to_float(p[r * kChunk + 2 * i]), odd = to_float(p[r * kChunk + 2 * i + 1]);
            const bf16 *v = values[i];
            for (int64_t d = 0; d < dim; ++d) out[r * dim + d] += even * to_float(v[2 * d]) + odd * to_float(v[2 * d + 1]);
        }
}

TAILRACE_CLONES void values_f32(int rows, const float *p, const float *const *values, int positions, int64_t dim,
                                float *out) {
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < positions; ++i) {
            const float weight = p[r * kChunk + i];
            const float *v = values[i];
            for (int64_t d = 0; d < dim; ++d) out[r * dim + d] += weight * v[d];
        }
}

// Scale and mask one row's chunk, then its online-softmax step; the weights go to s and, as the values' type, to p.
// Visible are positions [low, high) of the chunk. Returns the factor by which the row's sums so far are to be
// multiplied.
TAILRACE_CLONES float soften(float *s, int low, int high, float scale, float *max, float *sum) {
    for (int j = 0; j < kChunk; ++j) s[j] = (j >= low && j < high) ? s[j] * scale : kNone;
    float part[16];
    for (int j = 0; j < 16; ++j) part[j] = s[j];
    for (int i = 16; i < kChunk; i += 16)
        for (int j = 0; j < 16; ++j) part[j] = s[i + j] > part[j] ? s[i + j] : part[j];
    float top = *max;
    for (int j = 0; j < 16; ++j) top = part[j] > top ? part[j] : top;
    const float shift = top == kNone ? 0.0f : top;
    for (int j = 0; j < kChunk; ++j) s[j] = fast_exp2(s[j] - shift);
    for (int j = 0; j < 16; ++j) part[j] = 0.0f;
    for (int i = 0; i < kChunk; i += 16)
        for (int j = 0; j < 16; ++j) part[j] += s[i + j];
    float total = 0.0f;
    for (int j = 0; j < 16; ++j) total += part[j];
    const float decay = *max == kNone ? 0.0f : fast_exp2(*max - shift);
    *sum = *sum * decay + total;
    *max = top;
    return decay;
}

TAILRACE_CLONES void to_pairs(const float *s, bf16 *p) {
    for (int j = 0; j < kChunk; ++j) p[j] = to_bf16(s[j]);
}

TAILRACE_CLONES void multiply(float *x, int64_t n, float by) {
    for (int64_t i = 0; i < n; ++i) x[i] *= by;
}

TAILRACE_CLONES void multiply(float *x, int from, int to, const float *by) {
    for (int i = from; i < to; ++i) x[i] *= by[i];
}

// `soften` for all rows, then their weights by `times`, where it is not null, as p, and their sums so far as it says.
template <typename T>
void soften(float *s, T *p, int rows, const Seen &seen, float scale, float *max, float *sum, const float *times,
            float *out, int64_t dim) {
#if TAILRACE_X86
    if constexpr (sizeof(T) == 2)
        if (has_bf16()) return soften_bf16(s, p, rows, seen, scale, max, sum, times, out, dim);
#endif
    for (int r = 0; r < rows; ++r, s += kChunk, p += kChunk, out += dim) {
        const float decay = soften(s, seen.low[r], seen.high[r], scale, max + r, sum + r);
        if (times != nullptr) multiply(s, seen.low[r], seen.high[r], times);
        if constexpr (sizeof(T) == 2) to_pairs(s, p);
        else std::memcpy(p, s, kChunk * sizeof(float));
        if (decay != 1.0f) multiply(out, dim, decay);
    }
}

inline void scores(int rows, const bf16 *const *q, const bf16 *const *keys, int64_t dim, int64_t stride, float *s) {
#if TAILRACE_X86
    if (has_bf16()) {
#define CALL(R) scores_tile<R>(q, keys, dim, stride, s)
        TAILRACE_BY_ROWS(CALL)
#undef CALL
        return;
    }
#endif
    scores_bf16(rows, q, keys, dim, stride, s);
}
inline void scores(int rows, const float *const *q, const float *const *keys, int64_t dim, int64_t stride, float *s) {
    scores_f32(rows, q, keys, dim, stride, s);
}

inline void weigh(int rows, const bf16 *p, const bf16 *const *values, int count, int64_t dim, float *out) {
#if TAILRACE_X86
    if (has_bf16() && dim % 16 == 0) {
#define CALL(R) values_rows<R>(p, values, count, dim, out)
        TAILRACE_BY_ROWS(CALL)
#undef CALL
        return;
    }
#endif
    values_bf16(rows, p, values, count, dim, out);
}
inline void weigh(int rows, const float *p, const float *const *values, int count, int64_t dim, float *out) {
    values_f32(rows, p, values, count, dim, out);
}

template <typename T> struct Walk {
    static constexpr int64_t pair = sizeof(T) == 2 ? 2 : 1;
    const Attention &c;
    const Tile &tile;
    int64_t group, length, first_token;
    float scale;
    bool tiled;
    const T *q[kTile];
    int64_t low[kTile], high[kTile];  // visible positions of each row; both ascend

    Walk(const Attention &call, const Tile &t) : c(call), tile(t), group(call.heads_q / call.heads_kv) {
        length = c.kv_len[t.sequence];
        tiled = pair == 2 && attention_tiles_serve(c.head_dim, c.value_dim);
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

    int64_t query_head(int r) const { return tile.head * group + (tile.row + r) % group; }

    int64_t offset(int r, int64_t token_stride, int64_t dim) const {
        return (first_token + (tile.row + r) / group) * token_stride + query_head(r) * dim;
    }

    // Positions of all heads before this head's part of the block.
    int64_t block_base(int64_t position) const {
        const int64_t block = c.tables[tile.sequence * c.table_width + position / c.block_size];
        return (block * c.heads_kv + tile.head) * c.block_size;
    }

    // A chunk of positions as the rows of the tile see it. groups: values of 16 positions each; units: pairs of them.
    struct Chunk {
        int64_t base;
        const T *keys[4], *groups[4], *units[kChunk];
        int count, num_units;
        float scales[2][kChunk];  // of keys and of values, where these are codes
    };

    // Numbers that `chunk` may keep aside: a chunk's keys and values, or 16 positions' values.
    size_t spare_size() const {
        return c.code == KvCode::none ? 16 * c.value_dim : kChunk * (c.head_dim + c.value_dim);
    }

    // Positions [base, end) of one chunk for every row of the tile that sees some of them. Behind the spare numbers are
    // the tile's queries, one behind the other, if they go by tiles.
    void chunk(int64_t base, int64_t end, T *spare, State &state) const {
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
            T *aside = spare;  // where this part's values may lie
            if (c.code != KvCode::none) {
                T *to = spare + 16 * i * (c.head_dim + c.value_dim);
                at.keys[i] = to, value = aside = to + 16 * c.head_dim;
                fetch(place, to, at.scales[0] + 16 * i, at.scales[1] + 16 * i);
            }
            const int written = std::min(16, at.count - 16 * i);
            // what is not written yet may be NaN, which a zero weight must not be multiplied with
            if (pair == 2 && (tiled ? written < 16 : written % 2 && c.code == KvCode::none))
                value = only(value, written, aside);
            at.groups[i] = value;
            for (int j = 0; j < written; j += pair, value += pair * c.value_dim) at.units[at.num_units++] = value;
        }
        if (!tiled) prefetch(base + kChunk, end);
        const int step = tiled ? kTileRows : kRows;
        for (int r = 0; r < tile.rows; r += step) {
            const int rows = std::min(step, tile.rows - r);
            if (high[r + rows - 1] > base && low[r] < base + kChunk)
                some(at, r, rows, spare + spare_size() + r * c.head_dim, state);
        }
    }

    // Few tiles wait for memory at a time, so the next chunk's keys and values are on their way before they are loaded.
    // Processors with AMX see such streams themselves, and are slower by a tenth with this.
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

    // Values of 16 positions, of which some are written, with zeros for the others. They may lie there already.
    const T *only(const T *values, int written, T *to) const {
        const int64_t whole = written / 2 * 2 * c.value_dim, half = whole + written % 2 * 2 * c.value_dim;
        std::copy(values, values + whole, to);
        for (int64_t d = whole; d < half; d += 2) to[d] = values[d], to[d + 1] = T{0};
        std::fill(to + half, to + 16 * c.value_dim, T{0});
        return to;
    }

    // Sixteen positions of codes: keys, then values to `to`, and their scales.
    void fetch(int64_t at, T *to, float *key_scales, float *value_scales) const {
        widen(c.code, static_cast<const uint8_t *>(c.keys) + at * c.head_dim, 16 * c.head_dim, to);
        widen(c.code, static_cast<const uint8_t *>(c.values) + at * c.value_dim, 16 * c.value_dim, to + 16 * c.head_dim);
        std::memcpy(key_scales, c.scales + at, 16 * sizeof(float));
        std::memcpy(value_scales, c.scales + c.blocks * c.heads_kv * c.block_size + at, 16 * sizeof(float));
    }

    // At most kMost rows, from r on, whose queries lie one behind the other if they go by tiles.
    void some(const Chunk &at, int r, int rows, const T *queries, State &state) const {
        alignas(64) float s[kMost * kChunk];
        alignas(64) T p[kMost * kChunk];
        float *out = state.out.data() + r * c.value_dim;
        const bool coded = c.code != KvCode::none;
        score(at, r, rows, queries, s);
        if (coded)
            for (int i = 0; i < rows; ++i) multiply(s + i * kChunk, 0, kChunk, at.scales[0]);
        if (c.softcap != 0.0f)
            for (int i = 0; i < rows * kChunk; ++i) s[i] = c.softcap * std::tanh(s[i] * c.scale / c.softcap);
        Seen seen;
        for (int i = 0; i < rows; ++i) {
            seen.low[i] = static_cast<int>(std::clamp<int64_t>(low[r + i] - at.base, 0, kChunk));
            seen.high[i] = static_cast<int>(std::clamp<int64_t>(high[r + i] - at.base, 0, kChunk));
        }
        soften(s, p, rows, seen, scale, &state.max[r], &state.sum[r], coded ? at.scales[1] : nullptr, out, c.value_dim);
        if constexpr (pair == 2)
            if (tiled) return weigh_by_tiles(p, at.groups, (at.count + 15) / 16, c.value_dim, out);
        weigh(rows, p, at.units, at.num_units, c.value_dim, out);
    }

    void score(const Chunk &at, int r, int rows, const T *queries, float *s) const {
        if constexpr (pair == 2)
            if (tiled) return scores_by_tiles(queries, at.keys, c.head_dim, s);
        scores(rows, q + r, at.keys, c.head_dim, 16 * pair, s);
    }

    void part(int64_t index, State &state) const {
        const int64_t seen = high[tile.rows - 1], end = std::min((index + 1) * kPart, seen);
        thread_local Lines<T> held;
        const size_t queries = tiled ? (kTile + kTileRows) * c.head_dim : 0;
        if (held.size() < spare_size() + queries) held.resize(spare_size() + queries);
        T *spare = held.data();
        if (tiled) {
            for (int r = 0; r < tile.rows; ++r) std::copy(q[r], q[r] + c.head_dim, spare + spare_size() + r * c.head_dim);
            begin_attention_tiles(std::min(kTileRows, tile.rows));
        }
        for (int64_t base = std::max(index * kPart, low[0] / kChunk * kChunk); base < end; base += kChunk)
            chunk(base, seen, spare, state);
        if (tiled) end_attention_tiles();
    }

    void finish(const State &total) const {
        for (int r = 0; r < tile.rows; ++r) {
            T *out = static_cast<T *>(c.out) + offset(r, c.heads_q * c.value_dim, c.value_dim);
            float sum = total.sum[r], part = 1.0f;
            if (c.sinks != nullptr && total.max[r] != kNone) {  // the sink takes its share of the weights, and has no value
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

std::vector<Tile> tiles(const Attention &c, int size) {
    std::vector<Tile> list;
    const int64_t group = c.heads_q / c.heads_kv;
    for (int64_t s = 0; s < c.sequences; ++s) {
        const int64_t tokens = c.query_start[s + 1] - c.query_start[s], rows = tokens * group;
        for (int64_t h = 0; h < c.heads_kv; ++h)
            for (int64_t r = 0; r < rows; r += size) {
                const int count = static_cast<int>(std::min<int64_t>(size, rows - r));
                const int64_t seen = c.kv_len[s] - tokens + (r + count - 1) / group + 1;
                list.push_back({s, h, r, count, (seen + kPart - 1) / kPart});
            }
    }
    return list;
}

template <typename T> void whole(const Attention &c, const std::vector<Tile> &list) {
    const int64_t count = static_cast<int64_t>(list.size());
    Pool::instance().run(count, [&](int64_t i) {
        thread_local State total, one;
        const Tile &tile = list[count - 1 - i];  // a prefill's last tiles are its longest: they go first
        const Walk<T> walk(c, tile);
        total.clear(tile.rows, c.value_dim);
        walk.part(0, total);
        for (int64_t p = 1; p < tile.parts; ++p) {
            one.clear(tile.rows, c.value_dim);
            walk.part(p, one);
            merge(total, one, tile.rows, c.value_dim);
        }
        walk.finish(total);
    });
}

// Few tiles and long contexts: every partition is a task of its own, merged in order afterwards.
template <typename T> void split(const Attention &c, const std::vector<Tile> &list) {
    std::vector<std::pair<size_t, int64_t>> work;
    std::vector<State> states;
    for (size_t i = 0; i < list.size(); ++i)
        for (int64_t p = 0; p < list[i].parts; ++p) {
            work.emplace_back(i, p);
            states.emplace_back().clear(list[i].rows, c.value_dim);
        }
    Pool::instance().run(static_cast<int64_t>(work.size()), [&](int64_t w) {
        Walk<T>(c, list[work[w].first]).part(work[w].second, states[w]);
    });
    size_t w = 0;
    for (const Tile &tile : list) {
        State &total = states[w++];
        for (int64_t p = 1; p < tile.parts; ++p) merge(total, states[w++], tile.rows, c.value_dim);
        Walk<T>(c, tile).finish(total);
    }
}

template <typename T> void run(const Attention &c) {
    // Wide tiles read less, narrow ones give every thread some; the result is the same.
    const size_t enough = 4 * static_cast<size_t>(Pool::instance().size());
    std::vector<Tile> list = tiles(c, kTile);
    if (list.size() < enough) list = tiles(c, sizeof(T) == 2 && attention_tiles_serve(c.head_dim, c.value_dim) ? kTileRows : kRows);
    int64_t parts = 0;
    for (const Tile &tile : list) parts = std::max(parts, tile.parts);
    list.size() < enough && parts > 1 ? split<T>(c, list) : whole<T>(c, list);
}

// Writes the codes or numbers of one head of one token into its places: keys and values lie by 16 positions.
template <typename T> void place_key(const T *from, int64_t dim, int64_t at, int64_t pair, T *keys) {
    T *to = keys + at / 16 * 16 * dim + at % 16 * pair;
    if (pair == 2)
        for (int64_t d = 0; d < dim; d += 2) std::memcpy(to + d * 16, from + d, 2 * sizeof(T));
    else
        for (int64_t d = 0; d < dim; ++d) to[d * 16] = from[d];
}
#if TAILRACE_X86
// Every other number of `to`; those between are another token's, which another thread may be writing.
TAILRACE_AVX512 void every_other(const bf16 *from, int64_t dim, bf16 *to) {
    for (int64_t d = 0; d < dim; d += 16) {
        const int64_t count = std::min<int64_t>(16, dim - d);
        const __m256i numbers = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << count) - 1), from + d);
        _mm512_mask_storeu_epi16(to + 2 * d, 0x55555555u >> (32 - 2 * count), _mm512_cvtepu16_epi32(numbers));
    }
}
#endif
template <typename T> void place_value(const T *from, int64_t dim, int64_t at, int64_t pair, T *values) {
    T *to = values + at / pair * pair * dim + at % pair;
#if TAILRACE_X86
    if constexpr (std::is_same_v<T, bf16>)
        if (pair == 2 && has_avx512()) return every_other(from, dim, to);
#endif
    for (int64_t d = 0; d < dim; ++d) to[d * pair] = from[d];
}

template <typename T> void store(const Store &c) {
    constexpr int64_t pair = sizeof(T) == 2 ? 2 : 1;
    const int64_t widest = std::max(c.head_dim, c.value_dim);
    const auto token = [&](int64_t t) {
        thread_local std::vector<float> numbers;
        thread_local std::vector<uint8_t> codes;
        numbers.resize(static_cast<size_t>(widest)), codes.resize(static_cast<size_t>(widest));
        const auto coded = [&](const T *from, int64_t dim) {
            for (int64_t d = 0; d < dim; ++d) numbers[d] = to_float(from[d]);
            return encode(c.code, numbers.data(), dim, codes.data());
        };
        const int64_t block = c.slots[t] / c.block_size, in = c.slots[t] % c.block_size;
        for (int64_t h = 0; h < c.heads; ++h) {
            const int64_t at = (block * c.heads + h) * c.block_size + in;
            const T *k = static_cast<const T *>(c.key) + t * c.key_stride + h * c.head_dim;
            const T *v = static_cast<const T *>(c.value) + t * c.value_stride + h * c.value_dim;
            if (c.code == KvCode::none) {
                place_key(k, c.head_dim, at, pair, static_cast<T *>(c.keys));
                place_value(v, c.value_dim, at, pair, static_cast<T *>(c.values));
                continue;
            }
            c.scales[at] = coded(k, c.head_dim);
            place_key(codes.data(), c.head_dim, at, pair, static_cast<uint8_t *>(c.keys));
            c.scales[c.blocks * c.heads * c.block_size + at] = coded(v, c.value_dim);
            place_value(codes.data(), c.value_dim, at, pair, static_cast<uint8_t *>(c.values));
        }
    };
    // Sixteen at a time, some microseconds of writes to memory that no cache has. The keys of 16 positions share cache
    // lines, so a prompt's are cut between them.
    const int64_t before = c.tokens ? c.slots[0] % 16 : 0;
    Pool::instance().run((before + c.tokens + 15) / 16, [&](int64_t i) {
        for (int64_t t = std::max<int64_t>(0, 16 * i - before); t < std::min(c.tokens, 16 * (i + 1) - before); ++t) token(t);
    });
}

void require(bool holds, const char *what, int64_t got) {
    if (!holds) throw std::invalid_argument(std::string(what) + ", got " + std::to_string(got));
}

}  // namespace

void store_kv(const Store &call, Type type) {
    for (int64_t t = 0; t < call.tokens; ++t)
        require(call.slots[t] >= 0 && call.slots[t] < call.blocks * call.block_size, "slots must lie within the cache",
                call.slots[t]);
    type == Type::f32 ? store<float>(call) : store<bf16>(call);
}

void attention(const Attention &call, Type type) {
    const int32_t *start = call.query_start;
    require(start[0] == 0 && start[call.sequences] == call.tokens, "query_start must go from 0 to the number of tokens",
            start[call.sequences]);
    for (int64_t s = 0; s < call.sequences; ++s) {
        const int64_t tokens = start[s + 1] - start[s], length = call.kv_len[s];
        require(tokens >= 0, "query_start must not fall", start[s + 1]);
        require(length >= tokens && length <= call.table_width * call.block_size,
                "kv_len must be at least the sequence's query tokens and fit its block table", length);
        for (int64_t b = 0; b * call.block_size < length; ++b) {
            const int32_t block = call.tables[s * call.table_width + b];
            require(block >= 0 && block < call.blocks, "block_tables must name blocks of the cache", block);
        }
    }
    type == Type::f32 ? run<float>(call) : run<bf16>(call);
}

}  // namespace tailrace
