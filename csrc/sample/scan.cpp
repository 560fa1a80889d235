// The one streaming pass: block maxima, and the sums that a row's request needs.
#include "sample/block_sums.h"
#include "sample/row.h"

namespace tailrace {
namespace {

constexpr int64_t kHotBlocks = 4;  // hot bits are computed for this many blocks at a time
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Return the maximum of 256 values. *twice becomes the largest of their bits, shifted left by one: a NaN is above
// kInfinityTwice. Integers are compared, because GCC 12 compares floats that may be NaN one by one.
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

// Return σ in double, for logits so close together or so far apart that squares of floats lose them.
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

// Return the status of a row that may hold NaN or +inf. NaN has precedence.
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

// Raise the block maxima of the raw row to bounds of the edited row, sixteen entries of the edit at a time.
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
    // if the inverse of the temperature overflows, only the maximum is left anyway
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

// Replace bounds among the block maxima by exact maxima until the row's maximum is exact. Return false if an edit
// overflowed.
bool true_maximum(const Row &row, Scan &out) {
    alignas(64) float buffer[kBlock];
    const float highest = out.max;
    out.max = kNone;
    for (float bound = highest; bound > out.max;) {
        float next = kNone;
        for (int64_t b = 0; b < out.blocks; ++b) {
            if (out.block_max[b] == bound) {  // each block is visited once
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
