// y = x Wᵀ + b of quantized weights. Activations become int8 per row and 32 inputs, whatever the number of rows, and a
// row's products are added block after block: its result does not depend on its neighbours, bit for bit, nor on the
// instruction set (product.h). Only the blocking differs: a panel's blocks are read eight at a time, widened where the
// product does not take them as they are packed, and stay in the first cache while the rows pass by.
#include "base/exact.h"
#include "base/lines.h"
#include "base/pool.h"
#include "base/simd.h"
#include "quantized/call.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace tailrace {

namespace {

std::atomic<int> widest_set{3};

constexpr int64_t kRowsAtOnce = 256;  // their sums, [256][64] of float32, stay in the second cache
// Rows that are int8 at a time. Each thread that calls keeps the memory for so many of the widest layer: 1.5 bytes per
// input, 28 MB for 18,432 inputs. The weights are read again for every kRowsAtOnce rows in any case.
constexpr int64_t kRowsOfCodes = 1024;
constexpr int kFewRows = 4;           // of a product, at most, but for AMX
constexpr int64_t kWholeCodes = 16;   // rows from which on nibbles are taken apart once, where AMX is (see panel)
constexpr int64_t kManyRows = 32;     // from here on a tile of 16 rows is faster than product_vnni

Set best_set() {
    Set best = kPortable;
#if TAILRACE_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = kAvx2;
    if (best == kAvx2 && supports_avx512() && __builtin_cpu_supports("avx512vnni")) best = has_amx() ? kAmx : kVnni;
#elif TAILRACE_NEON
    if (has_dot()) best = kNeon;
#endif
    return best;
}

// The best that tests have left.
Set widest_of_all() { return std::min(best_set(), static_cast<Set>(widest_set.load())); }

// Adds the products of the widened blocks to the sums of `count` rows from p.row on, where a tile begins. What comes next
// is fetched in parts, one beside each few rows: all of it at once would stand in the way of the first ones' loads. One
// row alone keeps up with memory without that, but for the processors that have AMX, which gain a fifth to a third by it.
void products(Product p, int64_t count, [[maybe_unused]] Set set, float *acc) {
    if (count == 1 && widest_of_all() != kAmx) p.next_bytes = 0;
    const int64_t each = set == kAmx ? kTile : kFewRows, calls = (count + each - 1) / each;
    int64_t left = p.next_bytes;
    p.next_bytes = (p.next_bytes / calls + 63) / 64 * 64;
    for (int64_t r = 0; r < count;) {
        int rows = static_cast<int>(std::min<int64_t>(count - r, kFewRows));
#if TAILRACE_X86
        if (set == kAmx) product_amx(p, rows = kTile, acc + r * kPack);
        else if (set == kVnni) product_vnni(p, rows, acc + r * kPack);
        else if (set == kAvx2) product_avx2(p, rows, acc + r * kPack);
        else
#elif TAILRACE_NEON
        if (set == kNeon) product_neon(p, rows, acc + r * kPack);
        else
#endif
            product_portable(p, rows, acc + r * kPack);
        r += rows;
        p.row += rows;
        p.next += static_cast<uintptr_t>(p.count * p.next_bytes);
        if ((left -= p.next_bytes) <= 0) p.next_bytes = 0;
    }
}

// One panel of 64 outputs for rows [from, from + count). Processors with AMX multiply by the two units that also take
// nibbles apart, so there they are taken apart once for many rows.
template <typename T> void panel(const Call &c, int64_t number, int64_t from, int64_t count, Set set) {
    thread_local Lines<float> sums;
    thread_local Widened w;
    const uint8_t *weights = static_cast<const uint8_t *>(c.packed) + number * panel_bytes(*c.f, c.k);
    const int64_t width = std::min(kPack, c.n - number * kPack), blocks = c.k / kBlock;
    float bias[kPack] = {};
    if (c.bias)
        for (int64_t j = 0; j < width; ++j)  // −0 becomes 0: a sum of zeros may have either sign
            bias[j] = to_float(static_cast<const T *>(c.bias)[number * kPack + j]) + 0.0f;
    const int64_t rows = set == kAmx ? (count + kTile - 1) / kTile * kTile : count;
    sums.resize(static_cast<size_t>(rows * kPack));
    for (int64_t r = 0; r < rows; ++r) std::copy(bias, bias + kPack, sums.data() + r * kPack);
    const int64_t bytes = scale_bytes(*c.f) + code_bytes(*c.f);
    const bool neon = TAILRACE_NEON && set == kNeon;
    const bool whole = set == kVnni && widest_of_all() == kAmx && count >= kWholeCodes;
    const bool nibbles = (set == kVnni || neon) && c.f->codes == Codes::four && !whole;
    const bool packed = nibbles || (set != kAmx && c.f->codes == Codes::eight);
    const bool half = c.f->scales == Scales::half || c.f->scales == Scales::half_min;
    const bool shifted = can_shift(*c.f) && (set == kVnni || set == kAmx);
    const bool scales_packed = set == kVnni && packed && half;
    for (int64_t first = 0; first < blocks; first += kSuper) {
        const int64_t n = std::min(kSuper, blocks - first);
        const uint8_t *at = weights + block_at(*c.f, first);
        const uintptr_t next = reinterpret_cast<uintptr_t>(weights) + static_cast<uintptr_t>(block_at(*c.f, first + n));
        if (!scales_packed) widen_scales(*c.f, weights, first, n, w);
        if (!packed) widen_codes(*c.f, weights, first, n, set == kAmx || neon ? c.f->offset : 0, w);
        Product p{w.codes, kCell, &w, &c.rows, from, first, n, halves(*c.f) == 2, has_min(*c.f), nibbles,
                  shifted, scales_packed, at, next, bytes};
        if (packed) p.codes = at + scale_bytes(*c.f), p.stride = bytes;
        products(p, count, set, sums.data());
    }
    T *y = static_cast<T *>(c.y) + from * c.n + number * kPack;
    for (int64_t r = 0; r < count; ++r) {
        if constexpr (sizeof(T) == 4) std::copy_n(sums.data() + r * kPack, width, y + r * c.n);
        else round_row(sums.data() + r * kPack, width, y + r * c.n);
    }
}

// The instruction set for so many rows. Tiles are padded to 16 rows, and two short sums per block don't pay there.
Set set_for(const Format &f, int64_t m) {
    const Set best = widest_of_all();
    const int64_t padded = (m + kTile - 1) / kTile * kTile;
    const bool tiles = m >= kManyRows && padded * 5 <= m * 6 && halves(f) == 1;
    return best == kAmx && !tiles ? kVnni : best;
}

// Calls with one n.
template <typename T> void run(const std::vector<Call> &calls) {
    quantize_rows(calls, sizeof(T) == 4 ? Type::f32 : Type::bf16, widest_of_all());
    const int64_t panels = (calls[0].n + kPack - 1) / kPack;
    int64_t most = 0;
    for (const Call &c : calls) most = std::max(most, c.m);
    for (int64_t from = 0; from < most; from += kRowsAtOnce) {
        Pool::instance().sweep(panels * static_cast<int64_t>(calls.size()), [&](int64_t at, int64_t) {
            const Call &c = calls[static_cast<size_t>(at / panels)];
            const int64_t count = std::min(kRowsAtOnce, c.m - from);
            if (count <= 0) return;
            if (c.set == kAmx) begin_amx();
            panel<T>(c, at % panels, from, count, c.set);
            if (c.set == kAmx) end_amx();
        });
    }
}

// Give each call its part of the memory for rows of int8, and run all. A call's rows begin a tile.
void run_together(const std::vector<LinearCall> &asked, Type type, const Format *f) {
    thread_local Lines<int8_t> q;
    thread_local Lines<float> floats;
    thread_local Lines<int32_t> starts;
    const int64_t blocks = asked[0].k / kBlock;
    int64_t places = 0;
    for (const LinearCall &c : asked) places += (c.m + kTile - 1) / kTile * kTile * blocks;
    if (static_cast<int64_t>(q.size()) < places * kBlock) {
        floats.resize(static_cast<size_t>(places * 2));
        starts.resize(static_cast<size_t>(places * 2));
        q.resize(static_cast<size_t>(places * kBlock));  // the last: the others are there if it is
    }
    std::vector<Call> calls;
    int64_t at = 0;
    for (const LinearCall &c : asked) {
        const Set set = set_for(*f, c.m);
        const int32_t begin = set == kVnni && can_shift(*f) ? kShift : 0;
        const Activations rows{q.data() + at * kBlock, floats.data() + at, floats.data() + places + at,
                               starts.data() + at * 2, blocks, begin};
        calls.push_back({c, f, rows, set});
        at += (c.m + kTile - 1) / kTile * kTile * blocks;
    }
    type == Type::f32 ? run<float>(calls) : run<bf16>(calls);
}

// Run the calls in parts of at most kRowsOfCodes rows, whole tiles of each call. A row's result is the same in any part.
void run_all(const std::vector<LinearCall> &asked, Type type, int format) {
    const int64_t size = type == Type::f32 ? 4 : 2;
    std::vector<LinearCall> part;
    int64_t left = kRowsOfCodes;
    for (LinearCall rest : asked) {
        while (rest.m) {
            if (!left) run_together(part, type, format_of(format)), part.clear(), left = kRowsOfCodes;
            LinearCall now = rest;
            now.m = std::min(rest.m, left);
            part.push_back(now);
            left -= (now.m + kTile - 1) / kTile * kTile;
            rest.m -= now.m;
            rest.x = static_cast<const char *>(rest.x) + now.m * rest.x_stride * size;
            rest.y = static_cast<char *>(rest.y) + now.m * rest.n * size;
        }
    }
    if (!part.empty()) run_together(part, type, format_of(format));
}

}  // namespace

void use_at_most(int set) { widest_set = set; }
int best_quantized_set() { return best_set(); }

void quantized_linear(const void *x, Type type, int64_t m, int64_t k, int64_t x_stride, const void *packed, int format,
                      const void *bias, int64_t n, void *y) {
    if (m) run_all({{x, m, k, x_stride, packed, bias, n, y}}, type, format);
}

void grouped_quantized_linear(const GroupedCall &call, int format) { run_all(split_groups(call), call.type, format); }

}  // namespace tailrace
