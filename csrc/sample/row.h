// One row of logits as the sampler sees it: read in blocks of 256 in its own dtype, edits applied on the way in.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/exact.h"
#include "base/simd.h"
#include "kernels.h"
#include "sample/noise.h"
#include "sample/program.h"

namespace tailrace {

constexpr int64_t kBlock = 256;
constexpr int64_t kBlockGroups = kBlock / kGroup;

struct Row {
    const void *data;
    Type type;
    int64_t vocab;
    const Edit *edits;
    int32_t num_edits;
    const void *companion = nullptr;  // the row from which `scale` guides this row away; null: none
    float scale = 1.0f;

    int64_t blocks() const { return (vocab + kBlock - 1) / kBlock; }
};

// The sorted ids that an edit other than a mask touches.
struct Touched {
    const uint32_t *ids;
    int64_t n;
};
inline Touched touched_by(const Edit &edit) {
    if (edit.kind != EditKind::penalty) return {static_cast<const uint32_t *>(edit.ids), edit.count};
    const Counts *counts = static_cast<const Counts *>(edit.ids);
    return {counts->ids.data(), static_cast<int64_t>(counts->ids.size())};
}

// The position in each edit's sorted ids while the blocks are walked in order.
struct Cursor {
    int64_t at[kMaxEdits + 1] = {};  // a mask may come before them
};

TAILRACE_INLINE float half_to_float(uint16_t bits) {
#if TAILRACE_NEON
    __fp16 half;  // GCC 12 has no _Float16 for C++ there
#else
    _Float16 half;
#endif
    std::memcpy(&half, &bits, 2);
    return static_cast<float>(half);
}

// Return a row at `data` with the dtype and size of `row`, without edits and companion.
inline Row plain(const Row &row, const void *data) { return {data, row.type, row.vocab, nullptr, 0}; }
// The combined logits of a guided row.
void read_guided(const Row &row, int64_t block, float *buffer);
float guided(float c, float u, float scale);

// 256 logits before the edits; a short last block is filled up with −inf. Returns where they are: `buffer`, or the row
// itself.
TAILRACE_INLINE const float *read(const Row &row, int64_t block, float *buffer) {
    if (row.companion) {
        read_guided(row, block, buffer);
        return buffer;
    }
    const int64_t first = block * kBlock, n = std::min(kBlock, row.vocab - first);
    if (n < kBlock)
        for (int64_t i = 0; i < kBlock; ++i) buffer[i] = kNone;
    if (row.type == Type::f32) {
        const float *x = static_cast<const float *>(row.data) + first;
        if (n == kBlock) return x;
        for (int64_t i = 0; i < n; ++i) buffer[i] = x[i];
        return buffer;
    }
    const uint16_t *x = static_cast<const uint16_t *>(row.data) + first;
    if (row.type == Type::bf16) {
        if (n == kBlock) {
            for (int64_t i = 0; i < kBlock; ++i) buffer[i] = to_float(x[i]);
            return buffer;
        }
        for (int64_t i = 0; i < n; ++i) buffer[i] = to_float(x[i]);
        return buffer;
    }
    for (int64_t i = 0; i < n; ++i) buffer[i] = half_to_float(x[i]);
    return buffer;
}

// Ask for a block that will be read soon: the processor's own prefetching stops at every page.
constexpr int64_t kAhead = 8;
TAILRACE_INLINE void ahead(const Row &row, int64_t block) {
    if ((block + 1) * kBlock > row.vocab) return;
    const int64_t bytes = (row.type == Type::f32 ? 4 : 2) * kBlock;
    const char *at = static_cast<const char *>(row.data) + block * bytes;
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + line);
    if (!row.companion) return;
    const char *other = static_cast<const char *>(row.companion) + block * bytes;
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(other + line);
}

// Up to sixteen entries of a penalty, from `from` on, applied to their logits in `value`: all lanes at once, no
// branches.
TAILRACE_INLINE void penalise(const Edit &edit, int64_t from, int64_t some, float *value) {
    const Counts &counts = *static_cast<const Counts *>(edit.ids);
    const F16 r = all(static_cast<float>(edit.a)), f = all(static_cast<float>(edit.b)), p = all(static_cast<float>(edit.c));
    uint32_t repeated[kLanes] = {}, counted[kLanes] = {};
    std::memcpy(repeated, counts.repeated.data() + from, static_cast<size_t>(some) * 4);
    std::memcpy(counted, counts.counted.data() + from, static_cast<size_t>(some) * 4);
    const F16 again = __builtin_convertvector(load16<U16>(repeated), F16), count = __builtin_convertvector(load16<U16>(counted), F16);
    const F16 v = load16<F16>(value);
    const F16 divided = v / r, multiplied = v * r, scaled = v > F16{} ? divided : multiplied;
    const F16 one = again > F16{} ? scaled : v, lowered = one - f * count - p;
    store16(value, count > F16{} ? lowered : one);
}

// One entry alone: the same operations.
TAILRACE_INLINE float penalised(float value, const Edit &edit, const Counts &counts, int64_t i) {
    const float r = static_cast<float>(edit.a);
    if (counts.repeated[i]) value = value > 0 ? value / r : value * r;
    if (counts.counted[i])
        value = value - static_cast<float>(edit.b) * static_cast<float>(counts.counted[i]) - static_cast<float>(edit.c);
    return value;
}

// Return the logit of an edit's i-th id after a ban, an addition or a lift.
TAILRACE_INLINE float changed(const Edit &edit, int64_t i, float value) {
    if (edit.kind == EditKind::ban) return kNone;
    if (edit.kind == EditKind::add) return value + edit.values[i];
    return value == kNone ? kNone : value + std::fabs(value) * static_cast<float>(edit.a);
}

// Apply a penalty to a block that begins with id `first`, from the i-th entry on. Return the first entry beyond the
// block.
int64_t penalise_block(const Edit &edit, int64_t i, int64_t first, float *x);

// Apply the edits to one block, in the request's order. `x` holds the block from id `first` on.
TAILRACE_INLINE void edit(const Row &row, int64_t first, float *x, Cursor &cursor) {
    for (int32_t e = 0; e < row.num_edits; ++e) {
        const Edit &edit = row.edits[e];
        if (edit.kind == EditKind::mask) {
            const uint32_t *words = static_cast<const uint32_t *>(edit.ids) + first / 32;
            const int64_t n = (std::min(kBlock, row.vocab - first) + 31) / 32;
            for (int64_t w = 0; w < n; ++w)
                if (words[w] != 0xffffffffu)
                    for (int64_t i = 0; i < 32; ++i) x[w * 32 + i] = words[w] >> i & 1u ? x[w * 32 + i] : kNone;
            continue;
        }
        const auto [ids, n] = touched_by(edit);
        int64_t i = cursor.at[e];
        if (edit.kind == EditKind::penalty) {
            i = penalise_block(edit, i, first, x);
        } else {
            for (; i < n && ids[i] < first + kBlock; ++i) {
                float &value = x[ids[i] - first];
                value = changed(edit, i, value);
            }
        }
        cursor.at[e] = i;
    }
}

// Return the index of the only edit besides bans, if the row has no mask: then bounds of the block maxima are cheap.
// −1: the row has only bans. −2: the maxima must be computed.
inline int32_t only_change(const Row &row) {
    int32_t found = -1;
    for (int32_t e = 0; e < row.num_edits; ++e) {
        if (row.edits[e].kind == EditKind::ban) continue;
        if (row.edits[e].kind == EditKind::mask || found >= 0) return -2;
        found = e;
    }
    return found;
}

// Return whether the edit can't raise a logit.
inline bool lowers(const Edit &edit) {
    return edit.kind == EditKind::ban || (edit.kind == EditKind::lift && edit.a <= 0) || (edit.kind == EditKind::penalty && edit.a >= 1 && edit.b >= 0 && edit.c >= 0);
}

// A cursor for a block that is visited out of order.
inline Cursor seek(const Row &row, int64_t first) {
    Cursor cursor;
    for (int32_t e = 0; e < row.num_edits; ++e) {
        if (row.edits[e].kind == EditKind::mask) continue;
        const auto [ids, n] = touched_by(row.edits[e]);
        cursor.at[e] = std::lower_bound(ids, ids + n, static_cast<uint32_t>(first)) - ids;
    }
    return cursor;
}

// 256 edited logits. Returns where they are: `buffer`, or the row itself where nothing is edited.
TAILRACE_INLINE const float *load(const Row &row, int64_t block, float *buffer) {
    const float *x = read(row, block, buffer);
    if (row.num_edits == 0) return x;
    if (x != buffer) std::memcpy(buffer, x, kBlock * sizeof(float));
    Cursor cursor = seek(row, block * kBlock);
    edit(row, block * kBlock, buffer, cursor);
    return buffer;
}

// One logit of the model's, of the row at `data`.
TAILRACE_INLINE float logit_of(const Row &row, const void *data, int64_t id) {
    if (row.type == Type::f32) return static_cast<const float *>(data)[id];
    const uint16_t bits = static_cast<const uint16_t *>(data)[id];
    return row.type == Type::bf16 ? to_float(bits) : half_to_float(bits);
}

// One logit before the edits.
TAILRACE_INLINE float raw_logit(const Row &row, uint32_t id) {
    const float mine = logit_of(row, row.data, id);
    return row.companion ? guided(mine, logit_of(row, row.companion, id), row.scale) : mine;
}

// The edited logits of ascending ids below the vocabulary's size.
inline void logits_of(const Row &row, const uint32_t *ids, int64_t n, float *out) {
    if (row.num_edits == 0) {
        for (int64_t i = 0; i < n; ++i) out[i] = ids[i] < row.vocab ? raw_logit(row, ids[i]) : kNone;
        return;
    }
    alignas(64) float buffer[kBlock];
    int64_t loaded = -1;
    const float *x = nullptr;
    for (int64_t i = 0; i < n; ++i) {
        if (const int64_t block = ids[i] / kBlock; block != loaded) x = load(row, loaded = block, buffer);
        out[i] = x[ids[i] % kBlock];  // beyond the vocabulary a block is filled with −inf
    }
}

// What one pass over the row must find besides the block maxima.
struct Wants {
    bool mass = false;     // Σ e^((l − max) / mass_temperature) over the edited row
    bool moments = false;  // and its first two moments, for entropies
    bool squares = false;  // or the sum of its squares
    bool raw = false;      // maxima, and with raw_mass the mass at temperature 1, of the row before the edits
    bool raw_mass = false;
    bool raw_moments = false;
    bool sigma = false;    // standard deviation of the finite edited logits
    bool hot = false;      // hot bits of the noise
    double temperature = 1.0;
    Noise noise{};
};

struct Mass {
    double total = 0, first = 0, second = 0;  // Σ w, Σ w y, Σ w y² with w = e^y, y = (l − max) / temperature
    double squares = 0;                       // Σ w²
    double entropy() const;                   // of the distribution w / Σ w, nats
    double varentropy() const;
};

// The results of the pass. The arrays belong to the caller's workspace.
struct Scan {
    int32_t status = 0;
    int64_t vocab = 0, blocks = 0;
    bool bounds = false;  // the block maxima may be larger than the true ones; `max` is exact
    int32_t change = -1;    // with bounds: the edit that only_change found
    bool lowered = false;   // with bounds: no logit is larger than it was
    float max = kNone, raw_max = kNone;
    double sigma = 0;
    Mass mass, raw_mass;
    float *block_max = nullptr, *raw_block_max = nullptr;
    float *sums = nullptr;      // scratch: 96 per block
    Hot hot;
};

void scan(const Row &row, const Wants &wants, Scan &out);

}  // namespace tailrace
