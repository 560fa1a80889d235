// Attention of a flat batch of query tokens over a block-paged KV cache: decodes and causal prefill chunks in one call.
//
// Layout. Keys are transposed within a block. One load holds 16 positions of a pair of dimensions, so scores come out
// side by side, without horizontal sums. Values are stored in pairs of positions, so that the weighted sum takes two
// positions per multiplication (vdpbf16ps). float32 has the same order without pairs. Codes of float8
// (quantized/kv_codes.h) have the order of the dtype that they replace, codes of int8 that of quantized/kv_products.h.
//
// Codes of int8 are multiplied as they are. Codes of float8 are widened once per chunk and tile, into the nearest cache,
// where every row of the tile reads them. A key's scale multiplies its score, and a value's scale multiplies its weight,
// so widening rounds nothing.
//
// Invariance. Positions are walked in chunks of 64 and partitions of 512, counted from the sequence's start. Partitions
// are merged in order, and a masked position adds exactly 0. So a token's result depends only on its own sequence, and
// not on other sequences, on how the prompt was chunked, or on the number of threads. Chunks of which nothing is
// selected are skipped, which changes no bit. (Online softmax: FlashAttention-2,
// arXiv 2307.08691. Fixed partitions: as in flash-decoding.)
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/pool.h"
#include "kernels.h"
#include "model/attention_coded.h"

namespace tailrace {
namespace {

std::vector<AttentionTile> tiles(const Attention &c, int size) {
    std::vector<AttentionTile> list;
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

// Call `run` with what walks over the cache: the walk itself, or the one over codes of int8.
template <typename T, typename Run> void walk_by(const AttentionWalk<T> &walk, const Run &run) {
    walk.c.code == KvCode::int8 ? run(CodedWalk<T>(walk)) : run(walk);
}

template <typename T> void whole(const Attention &c, const std::vector<AttentionTile> &list) {
    const int64_t count = static_cast<int64_t>(list.size());
    Pool::instance().run(count, [&](int64_t i) {
        thread_local RunningSoftmax total, one;
        const AttentionTile &tile = list[count - 1 - i];  // the longest tiles first, which are a prefill's last ones
        const AttentionWalk<T> walk(c, tile);
        total.clear(tile.rows, c.value_dim);
        walk_by(walk, [&](const auto &by) {
            by.part(0, total);
            for (int64_t p = 1; p < tile.parts; ++p) {
                one.clear(tile.rows, c.value_dim);
                by.part(p, one);
                merge_softmax(total, one, tile.rows, c.value_dim);
            }
        });
        walk.finish(total);
    });
}

// Make every partition a task, for few tiles and long contexts. The partitions are merged in order afterwards.
template <typename T> void split(const Attention &c, const std::vector<AttentionTile> &list) {
    std::vector<std::pair<size_t, int64_t>> work;
    std::vector<RunningSoftmax> states;
    for (size_t i = 0; i < list.size(); ++i)
        for (int64_t p = 0; p < list[i].parts; ++p) {
            work.emplace_back(i, p);
            states.emplace_back().clear(list[i].rows, c.value_dim);
        }
    Pool::instance().run(static_cast<int64_t>(work.size()), [&](int64_t w) {
        walk_by(AttentionWalk<T>(c, list[work[w].first]), [&](const auto &by) { by.part(work[w].second, states[w]); });
    });
    size_t w = 0;
    for (const AttentionTile &tile : list) {
        RunningSoftmax &total = states[w++];
        for (int64_t p = 1; p < tile.parts; ++p) merge_softmax(total, states[w++], tile.rows, c.value_dim);
        AttentionWalk<T>(c, tile).finish(total);
    }
}

template <typename T> void run(const Attention &c) {
    // Wide tiles read less memory, and narrow tiles give every thread work. The result is the same.
    const size_t enough = 4 * static_cast<size_t>(Pool::instance().size());
    std::vector<AttentionTile> list = tiles(c, kQueryRows);
    if (list.size() < enough) list = tiles(c, sizeof(T) == 2 && attention_tiles_serve(c.head_dim, c.value_dim) ? kTileRows : kRegisterRows);
    int64_t parts = 0, all = 0;
    for (const AttentionTile &tile : list) parts = std::max(parts, tile.parts), all += tile.parts;
    const bool uneven = parts * Pool::instance().size() > all;  // one long sequence beside short ones
    (list.size() < enough || uneven) && parts > 1 ? split<T>(c, list) : whole<T>(c, list);
}

}  // namespace

void attention(const Attention &call, Type type) {
    const int32_t *start = call.query_start;
    require(start[0] == 0 && start[call.sequences] == call.tokens, "query_start",
            "query_start must go from 0 to the number of tokens", start[call.sequences]);
    for (int64_t s = 0; s < call.sequences; ++s) {
        const int64_t tokens = start[s + 1] - start[s], length = call.kv_len[s];
        require(tokens >= 0, "query_start", "query_start must not fall", start[s + 1]);
        require(length >= tokens && length <= call.table_width * call.block_size, "kv_len",
                "kv_len must be at least the sequence's query tokens and fit its block table", length);
        for (int64_t b = 0; b * call.block_size < length; ++b) {
            const int32_t block = call.tables[s * call.table_width + b];
            require(block >= 0 && block < call.blocks, "block_tables", "block_tables must name blocks of the cache", block);
        }
    }
    for (int64_t s = 0; call.selected != nullptr && s < call.sequences; ++s)
        require(call.kv_len[s] <= call.selected_words * kChunk, "selected", "selected must have a bit for each position",
                call.kv_len[s]);
    type == Type::f32 ? run<float>(call) : run<bf16>(call);
}

}  // namespace tailrace
