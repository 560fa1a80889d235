// The one streaming pass: block maxima, and the sums that a row's request needs.
#include "row.h"

namespace tailrace {
namespace {

constexpr int64_t kHotBlocks = 4;  // hot bits are computed for so many at a time
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Maximum of 256. *twice becomes the largest of the bits shifted left by one: above kInfinityTwice there was a NaN. As
// integers, because GCC 12 takes the comparison of floats that NaN must fail apart into scalars.
constexpr uint32_t kInfinityTwice = 0xff000000u;
TAILRACE_INLINE float block_maximum(const float *x, U16 *twice) {
    F16 top = all(kNone), other = top;
    U16 bits = *twice;
    for (int64_t i = 0; i < kBlock; i += 2 * kLanes) {
        const F16 a = load16<F16>(x + i), b = load16<F16>(x + i + kLanes);
        top = larger(a, top);
        other = larger(b, other);
        const U16 p = (U16)a << 1, q = (U16)b << 1;
        const U16 both = p > q ? p : q;
        bits = both > bits ? both : bits;
    }
    *twice = bits;
    return largest(larger(top, other));
}

// Which sums of a block are taken besides Σ w.
enum class Sums { mass, moments, squares };
inline Sums sums_of(const Wants &wants) {
    return wants.moments ? Sums::moments : wants.squares ? Sums::squares : Sums::mass;
}

// Lane sums of a block, to be joined later: Σ w with w = e^y, y = (x − top) · scale; with `moments` also Σ w y and Σ w
// y².
constexpr int64_t kSums = 3 * kLanes;  // per block
TAILRACE_INLINE void block_mass(const float *x, float top, float scale, float *out) {
    float lane[kLanes] = {};
    const float c = scale * kLog2E;
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int l = 0; l < kLanes; ++l) lane[l] += power((x[i + l] - top) * c);
    std::memcpy(out, lane, sizeof(lane));
}

TAILRACE_INLINE void block_moments(const float *x, float top, float scale, float *out) {
    float w0[kLanes] = {}, w1[kLanes] = {}, w2[kLanes] = {};
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int l = 0; l < kLanes; ++l) {
            const float exact = (x[i + l] - top) * scale, y = exact < -100.0f ? -100.0f : exact;  // finite; w is 0
            const float w = weight(exact), wy = w * y;
            w0[l] += w;
            w1[l] += wy;
            w2[l] += wy * y;
        }
    std::memcpy(out, w0, sizeof(w0));
    std::memcpy(out + kLanes, w1, sizeof(w1));
    std::memcpy(out + 2 * kLanes, w2, sizeof(w2));
}

// Σ w and Σ w².
TAILRACE_INLINE void block_squares(const float *x, float top, float scale, float *out) {
    float w1[kLanes] = {}, w2[kLanes] = {};
    const float c = scale * kLog2E;
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int l = 0; l < kLanes; ++l) {
            const float w = power((x[i + l] - top) * c);
            w1[l] += w;
            w2[l] += w * w;
        }
    std::memcpy(out, w1, sizeof(w1));
    std::memcpy(out + kLanes, w2, sizeof(w2));
}

// Sums of sixteen lanes in double.
struct Wide {
    typedef float F8 __attribute__((vector_size(32)));
    typedef double D8 __attribute__((vector_size(64)));
    D8 low{}, high{};
    void add(const float *lanes, double times) {
        low += __builtin_convertvector(load<F8>(lanes), D8) * times;
        high += __builtin_convertvector(load<F8>(lanes + 8), D8) * times;
    }
    double total() const {
        const D8 both = low + high;
        return ((both[0] + both[1]) + (both[2] + both[3])) + ((both[4] + both[5]) + (both[6] + both[7]));
    }
    template <typename V> static V load(const float *from) {
        V out;
        std::memcpy(&out, from, sizeof(V));
        return out;
    }
};

// Count, Σ d and Σ d² of the finite ones, d = x − pivot with one pivot for the row, the mean of its first block. What
// cancels is bounded: if that block lies far from the rest, the deviation of the whole is as large. Relative error of σ
// below 1e-4, usually 1e-7.
struct Spread {
    Wide count, first, second;
    float pivot = 0;
    bool begun = false;
    double sigma() const {
        const double n = count.total(), mean = first.total() / n;
        const double variance = second.total() / n - mean * mean;
        return variance > 1e-30 && variance < 1e36 ? std::sqrt(variance) : -1.0;  // else a float overflowed
    }
};

TAILRACE_INLINE void block_spread(const float *x, Spread &spread) {
    if (!spread.begun) {
        double sum = 0, n = 0;
        for (int64_t i = 0; i < kBlock; ++i)
            if (x[i] > kNone) {
                sum += x[i];
                ++n;
            }
        if (n == 0) return;
        spread.pivot = static_cast<float>(sum / n);
        spread.begun = true;
    }
    const float pivot = spread.pivot;
    F16 counts{}, firsts{}, seconds{};
    for (int64_t i = 0; i < kBlock; i += kLanes) {
        const F16 v = load16<F16>(x + i), d = v > all(kNone) ? v - pivot : F16{};
        counts += v > all(kNone) ? all(1.0f) : F16{};
        firsts += d;
        seconds += d * d;
    }
    float count[kLanes], first[kLanes], second[kLanes];
    store16(count, counts);
    store16(first, firsts);
    store16(second, seconds);
    spread.count.add(count, 1.0);
    spread.first.add(first, 1.0);
    spread.second.add(second, 1.0);
}

// The same in double, of logits so near or so far apart that the squares of floats are not enough.
double sigma_in_double(const Row &row) {
    alignas(64) float buffer[kBlock];
    double count = 0, sum = 0, squares = 0;
    const auto each = [&](auto use) {
        for (int64_t b = 0; b < row.blocks(); ++b) {
            const float *x = load(row, b, buffer);
            for (int64_t i = 0; i < kBlock; ++i)
                if (x[i] > kNone) use(static_cast<double>(x[i]));
        }
    };
    each([&](double x) { ++count, sum += x; });
    const double mean = sum / count;
    each([&](double x) { squares += (x - mean) * (x - mean); });
    return count > 0 ? std::sqrt(squares / count) : 0.0;
}

// Joins the blocks' sums, each relative to its own maximum.
TAILRACE_INLINE Mass join(const float *block_max, const float *sums, int64_t blocks, float max, float scale, Sums kind) {
    Wide total, first, second, squares;
    for (int64_t from = 0; from < blocks; from += kLanes) {
        const int64_t n = std::min(kLanes, blocks - from);
        float shift[kLanes] = {}, w[kLanes];
        for (int64_t i = 0; i < n; ++i) shift[i] = (block_max[from + i] - max) * scale;
        for (int l = 0; l < kLanes; ++l) w[l] = weight(shift[l]);
        for (int64_t i = 0; i < n; ++i) {
            if (!(w[i] > 0.0f)) continue;
            const float *sum = sums + kSums * (from + i);
            const double d = shift[i];
            total.add(sum, w[i]);
            if (kind == Sums::squares) squares.add(sum + kLanes, static_cast<double>(w[i]) * w[i]);
            if (kind != Sums::moments) continue;
            first.add(sum + kLanes, w[i]);
            first.add(sum, w[i] * d);
            second.add(sum + 2 * kLanes, w[i]);
            second.add(sum + kLanes, 2.0 * w[i] * d);
            second.add(sum, w[i] * d * d);
        }
    }
    return {total.total(), first.total(), second.total(), squares.total()};
}

TAILRACE_INLINE void store_mass(const float *x, float top, float scale, Sums kind, float *out) {
    if (top == kNone) return;  // joined with weight 0
    if (kind == Sums::moments) block_moments(x, top, scale, out);
    else if (kind == Sums::squares) block_squares(x, top, scale, out);
    else block_mass(x, top, scale, out);
}

// NaN beats +inf beats all −inf.
int32_t classify(const Row &row, bool edited) {
    alignas(64) float buffer[kBlock];
    bool infinite = false;
    for (int64_t b = 0; b < row.blocks(); ++b) {
        const float *x = edited ? load(row, b, buffer) : read(row, b, buffer);
        for (int64_t i = 0; i < kBlock; ++i) {
            if (x[i] != x[i]) return kNan;
            infinite |= x[i] == kInfinity;
        }
    }
    return infinite ? kInf : kOk;
}

// Block maxima of the raw row become bounds of what the edit makes of it: sixteen of its entries at a time.
TAILRACE_INLINE void raise(const Row &row, const Edit &edit, float *block_max) {
    const auto [ids, n] = touched_by(edit);
    for (int64_t from = 0; from < n; from += kLanes) {
        const int64_t some = std::min(kLanes, n - from);
        float value[kLanes] = {};
        for (int64_t i = 0; i < some; ++i) value[i] = raw_logit(row, ids[from + i]);
        if (edit.kind == EditKind::penalty) penalise(edit, from, some, value);
        else
            for (int64_t i = 0; i < some; ++i) value[i] = changed(edit, from + i, value[i]);
        for (int64_t i = 0; i < some; ++i) {
            float &top = block_max[ids[from + i] / kBlock];
            top = value[i] > top ? value[i] : top;
        }
    }
}

TAILRACE_CLONES void pass(const Row &row, const Wants &wants, Scan &out, U16 *bad_raw, U16 *bad_edited, Spread *spread) {
    alignas(64) float raw_buffer[kBlock], buffer[kBlock];
    const int64_t blocks = row.blocks();
    // a temperature so small that its inverse overflows leaves nothing but the maximum anyway
    const float scale = static_cast<float>(std::min(1.0 / wants.temperature, 1e30));
    const bool edited = row.num_edits > 0;
    const int32_t change = edited && !wants.mass && !wants.sigma ? only_change(row) : -2;
    out.bounds = edited && change != -2;
    const Sums kind = sums_of(wants), raw_kind = wants.raw_moments ? Sums::moments : Sums::mass;
    Cursor cursor;
    for (int64_t b = 0; b < blocks; ++b) {
        ahead(row, b + kAhead);
        const float *x = read(row, b, raw_buffer);
        float top = block_maximum(x, bad_raw);
        out.raw_max = top > out.raw_max ? top : out.raw_max;
        if (edited) {
            if (wants.raw) {
                out.raw_block_max[b] = top;
                if (wants.raw_mass) store_mass(x, top, 1.0f, raw_kind, out.sums + kSums * (blocks + b));
            }
            if (!out.bounds) {
                std::memcpy(buffer, x, sizeof(buffer));
                edit(row, b * kBlock, buffer, cursor);
                x = buffer;
                top = block_maximum(x, bad_edited);
            }
        } else if (wants.raw_mass) {
            store_mass(x, top, 1.0f, raw_kind, out.sums + kSums * (blocks + b));
        }
        out.block_max[b] = top;
        if (wants.mass) store_mass(x, top, scale, kind, out.sums + kSums * b);
        if (wants.sigma) block_spread(x, *spread);
        if (wants.hot && b % kHotBlocks == 0)
            hot_groups(wants.noise, b * kBlockGroups, std::min(kHotBlocks, blocks - b) * kBlockGroups, out.hot);
    }
    out.change = change;
    out.lowered = change < 0 || lowers(row.edits[change]);
    if (out.bounds && !out.lowered) raise(row, row.edits[change], out.block_max);
    for (int64_t b = 0; b < blocks; ++b) out.max = !(out.block_max[b] <= out.max) ? out.block_max[b] : out.max;
    if (wants.mass) out.mass = join(out.block_max, out.sums, blocks, out.max, scale, kind);
    if (wants.raw_mass)
        out.raw_mass = join(edited ? out.raw_block_max : out.block_max, out.sums + kSums * blocks, blocks, out.raw_max, 1.0f, raw_kind);
}

}  // namespace

double Mass::entropy() const { return std::log(total) - first / total; }

double Mass::varentropy() const {
    const double mean = first / total;
    return std::max(0.0, second / total - mean * mean);
}

// Where the block maxima are bounds: the true maximum, from the blocks whose bound is above it; false if an edit
// overflowed.
bool true_maximum(const Row &row, Scan &out) {
    alignas(64) float buffer[kBlock];
    const float highest = out.max;
    out.max = kNone;
    for (float bound = highest; bound > out.max;) {
        float next = kNone;
        for (int64_t b = 0; b < out.blocks; ++b) {
            if (out.block_max[b] == bound) {  // visited once, and exact from then on
                const float *x = load(row, b, buffer);
                float top = kNone;
                for (int64_t i = 0; i < kBlock; ++i) {
                    if (!(x[i] < kInfinity)) return false;
                    top = x[i] > top ? x[i] : top;
                }
                out.block_max[b] = top;
                out.max = top > out.max ? top : out.max;
            }
        }
        for (int64_t b = 0; b < out.blocks; ++b)
            if (out.block_max[b] < bound && out.block_max[b] > next) next = out.block_max[b];
        bound = next;
    }
    return true;
}

void scan(const Row &row, const Wants &wants, Scan &out) {
    out.vocab = row.vocab;
    out.blocks = row.blocks();
    out.hot.n = 0;
    U16 bad_raw{}, bad_edited{};
    Spread spread;
    pass(row, wants, out, &bad_raw, &bad_edited, &spread);
    out.sigma = wants.sigma ? spread.sigma() : 0.0;
    if (out.sigma < 0) out.sigma = sigma_in_double(row);
    const auto nan = [](const U16 &bits) {
        bool found = false;
        for (int64_t l = 0; l < kLanes; ++l) found |= bits[l] > kInfinityTwice;
        return found;
    };
    if (nan(bad_raw) || out.raw_max == kInfinity) out.status = classify(row, false);
    else if (out.raw_max == kNone) out.status = kEmpty;
    else if (out.bounds ? !true_maximum(row, out) : nan(bad_edited) || out.max == kInfinity) out.status = classify(row, true);
    else out.status = out.max == kNone ? kEmpty : kOk;
}

}  // namespace tailrace
