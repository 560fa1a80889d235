// SynthID-Text's tournament (Dathathri et al., Nature 634, 2024): p' = p · (1 + g − Σ p g), layer by layer, with keyed
// bits g.
#include <cstring>
#include <limits>

#include "base/simd.h"
#include "sample/walk.h"

namespace tailrace {
namespace {

constexpr uint64_t kMultiplier = 6364136223846793005u;  // src/tailrace/sampling/watermark_transformers.py
constexpr int32_t kWord = 32;                           // layers whose bits share a word
constexpr int64_t kFlush = 1024;

// Return a hash of 63 bits of the tokens in their order; src/tailrace/sampling/watermark.py has the same.
uint64_t context_hash(const uint32_t *tokens, int64_t n) {
    uint64_t value = 0xCBF29CE484222325u;
    for (int64_t i = 0; i < n; ++i) value = (value ^ (uint64_t{tokens[i]} + 1)) * 0x100000001B3u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return (value ^ value >> 31) >> 1;
}

// Return whether the last `size` tokens also occur earlier, within `recent` places.
bool repeated(const std::vector<uint32_t> &tokens, int64_t size, int64_t recent) {
    const int64_t n = static_cast<int64_t>(tokens.size());
    const uint32_t *last = tokens.data() + n - size;
    for (int64_t back = 1; back <= std::min(recent, n - size); ++back)
        if (std::equal(last, last + size, last - back)) return true;
    return false;
}

uint64_t accumulated(uint64_t value, int64_t data) { return (value + static_cast<uint64_t>(data)) * kMultiplier + 1; }

// Write the bits of layers 32 · block … of each id, in one word.
void bits_of(const Tournament &t, const uint32_t *context, const uint32_t *ids, int64_t n, int32_t block, uint32_t *out) {
    if (!t.keys) {
        words({static_cast<uint64_t>(t.key), context_hash(context, t.context), static_cast<uint32_t>(1 + block)}, ids, n, out);
        return;
    }
    uint64_t before = 1;
    for (int32_t i = 0; i < t.context; ++i) before = accumulated(before, context[i]);
    const int32_t first = block * kWord, layers = std::min(kWord, t.depth - first);
    const bool power_of_two = (t.table_size & (t.table_size - 1)) == 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t ngram = accumulated(before, ids[i]);
        uint32_t bits = 0;
        for (int32_t l = 0; l < layers; ++l) {
            const int64_t value = static_cast<int64_t>(accumulated(ngram, t.keys[first + l]));
            int64_t place = power_of_two ? value & (t.table_size - 1) : value % t.table_size;
            if (place < 0) place += t.table_size;
            bits |= uint32_t{t.table[place]} << l;
        }
        out[i] = bits;
    }
}

// Apply one layer: p · (g ? won : lost) for the bits at `layer`. Return what the next layer needs: the share of the
// mass whose bit at `next` is 0. The share is relative to the actual mass, not to 1. Otherwise rounding errors would
// grow from layer to layer.
TAILRACE_CLONES double play(float *p, const uint32_t *bits, const uint32_t *next_bits, int64_t n, float won, float lost, int32_t layer, int32_t next) {
    double without = 0, with = 0;
    const U16 one = U16{} + 1u;
    const F16 win = all(won), lose = all(lost);
    for (int64_t from = 0; from < n; from += kFlush) {
        F16 lane{}, other{};
        const int64_t end = std::min(n, from + kFlush);
        int64_t i = from;
        for (; i + kLanes <= end; i += kLanes) {
            const U16 mine = load16<U16>(bits + i) >> static_cast<uint32_t>(layer) & one, theirs = load16<U16>(next_bits + i) >> static_cast<uint32_t>(next) & one;
            const F16 q = load16<F16>(p + i) * (mine != U16{} ? win : lose);
            store16(p + i, q);
            lane += theirs == U16{} ? q : F16{};
            other += theirs != U16{} ? q : F16{};
        }
        for (int64_t l = 0; i < end; ++i, ++l) {
            p[i] *= bits[i] >> layer & 1u ? won : lost;
            (next_bits[i] >> next & 1u ? other : lane)[l] += p[i];
        }
        without += fold(lane);
        with += fold(other);
    }
    return without / (without + with);
}

// The terms that eight layers add to x, by their bits.
struct Sums {
    double of[256];
};

constexpr int64_t kWide = 8;  // lanes of doubles

TAILRACE_CLONES void add_layer(const uint32_t *bits, int32_t layer, int64_t n, double won, double lost, double *logs) {
    // no branch on a random bit: the processor would mispredict half of them
    const double less = std::isinf(lost) ? 0.0 : lost, more = won - less;
    for (int64_t i = 0; i < n; ++i) logs[i] += less + more * static_cast<double>(static_cast<int32_t>(bits[i] >> layer & 1u));
}

// Return ln Σ e^logs of the tokens whose bit is 0; −∞ if there are none.
TAILRACE_CLONES double log_without(const uint32_t *bits, int32_t layer, int64_t n, const double *logs) {
    constexpr double kOut = -1e300;
    double top[kWide], sum[kWide] = {};
    std::fill(top, top + kWide, kOut);
    const auto has = [=](int64_t i) { return static_cast<double>(static_cast<int32_t>(bits[i] >> layer & 1u)); };
    int64_t i = 0;
    for (; i + kWide <= n; i += kWide)
        for (int64_t l = 0; l < kWide; ++l) {
            const double x = logs[i + l] + kOut * has(i + l);
            top[l] = x > top[l] ? x : top[l];
        }
    for (; i < n; ++i) top[0] = std::max(top[0], logs[i] + kOut * has(i));
    const double largest = *std::max_element(top, top + kWide);
    if (largest <= kOut) return -std::numeric_limits<double>::infinity();
    for (i = 0; i + kWide <= n; i += kWide)
        for (int64_t l = 0; l < kWide; ++l) sum[l] += exponential(logs[i + l] + kOut * has(i + l) - largest);
    for (; i < n; ++i) sum[0] += exponential(logs[i] + kOut * has(i) - largest);
    return largest + std::log(((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])));
}

// ln p of each token, up to a layer. They are computed only if floats can't hold a part of the mass.
struct Exact {
    const Candidates &s;
    std::vector<double> &logs;
    double log_mass = std::log(s.mass);  // a layer does not change the total mass
    int32_t layers = -1;                 // layers that have been applied

    // Return ln of the share of the mass whose bit at `layer` is 0; −∞ if no token has this bit.
    double without(uint32_t *const *bits, const double *won, const double *lost, int32_t layer) {
        logs.resize(std::max(logs.size(), static_cast<size_t>(s.n)));
        if (layers < 0) {
            std::copy(s.x, s.x + s.n, logs.data());
            layers = 0;
        }
        for (; layers < layer; ++layers) add_layer(bits[layers / kWord], layers % kWord, s.n, won[layers], lost[layers], logs.data());
        return log_without(bits[layer / kWord], layer % kWord, s.n, logs.data()) - log_mass;
    }
};
constexpr double kHeld = 1e-25;  // floats hold at least this share of the mass, whatever has underflowed

}  // namespace

// A bit of 0 multiplies by the share of the mass that has 0, and a bit of 1 by 1 more than that. What the layers
// multiply by is added up as logarithms: where all others have a 1, one with a 0 has its p squared, layer after layer.
bool tournament(Walk &walk, const Stage &stage) {
    Candidates &s = walk.s;
    const Tournament &t = *stage.tournament;
    const std::vector<uint32_t> &tokens = walk.context.program.said->tokens;
    if (!s.complete) return walk.undecided(kEverything);
    if (static_cast<int64_t>(tokens.size()) < t.context || repeated(tokens, t.context, t.recent)) return true;
    Workspace &space = walk.context.space;
    const int32_t blocks = (t.depth + kWord - 1) / kWord;
    uint32_t *bits[2] = {space.other_ids.data(), reinterpret_cast<uint32_t *>(space.other_x.data())};
    for (int32_t b = 0; b < blocks; ++b) bits_of(t, tokens.data() + tokens.size() - t.context, s.ids, s.n, b, bits[b]);
    walk.know_mass();
    weigh(s);
    float *p = space.noise.data();
    std::copy(s.weights, s.weights + s.n, p);
    double won[2 * kWord], lost[2 * kWord], none = play(p, bits[0], bits[0], s.n, static_cast<float>(1.0 / s.mass), static_cast<float>(1.0 / s.mass), 0, 0);
    Exact exact{s, space.exact};
    for (int32_t layer = 0; layer < t.depth; ++layer) {
        const int32_t next = std::min(layer + 1, t.depth - 1);
        won[layer] = std::log1p(none);
        lost[layer] = none > kHeld ? std::log(none) : exact.without(bits, won, lost, layer);
        if (next > layer)
            none = play(p, bits[layer / kWord], bits[next / kWord], s.n, static_cast<float>(1.0 + none), static_cast<float>(none),
                        layer % kWord, next % kWord);
    }
    const int32_t groups = (t.depth + 7) / 8;
    Sums sums[8];
    for (int32_t g = 0; g < groups; ++g)
        for (uint32_t value = 0; value < 256; ++value) {
            double &sum = sums[g].of[value] = 0;
            for (int32_t layer = 8 * g; layer < std::min(t.depth, 8 * g + 8); ++layer)
                sum += value >> (layer - 8 * g) & 1u ? won[layer] : lost[layer];
        }
    space.exact.resize(std::max(space.exact.size(), static_cast<size_t>(s.n)));
    double *moved = space.exact.data(), top = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < s.n; ++i) {
        double x = s.x[i];
        for (int32_t g = 0; g < groups; ++g) x += sums[g].of[bits[g / 4][i] >> (8 * (g % 4)) & 255u];
        moved[i] = x;
        top = std::max(top, x);
    }
    for (int64_t i = 0; i < s.n; ++i) s.x[i] = static_cast<float>(moved[i] - top);
    keep_above(s, kLowest);
    walk.rescaled();
    return true;
}

}  // namespace tailrace
