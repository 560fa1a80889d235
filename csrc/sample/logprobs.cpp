#include "sample/logprobs.h"

#include <algorithm>

namespace tailrace {
namespace {

TAILRACE_CLONES int64_t count_above(const float *x, float than) {
    F16 lane{};
    for (int64_t i = 0; i < kBlock; i += kLanes) lane += load16<F16>(x + i) > all(than) ? all(1.0f) : F16{};
    return static_cast<int64_t>(fold(lane));
}

// Write the `top` best tokens of `order`. Fill missing places with the smallest other ids at −inf.
void write_top(std::vector<uint64_t> &order, int64_t n, int64_t vocab, double log_mass, const Report &out) {
    const int64_t top = std::min<int64_t>(out.top, n);
    std::partial_sort(order.begin(), order.begin() + top, order.begin() + n);
    for (int64_t i = 0; i < top; ++i) {
        const Boundary entry = boundary(order[i]);
        out.top_ids[i] = entry.id;
        out.top_logprobs[i] = 0.0 + entry.x - log_mass;  // no −0
    }
    if (top == out.top) return;
    std::sort(order.begin(), order.begin() + n, [](uint64_t a, uint64_t b) { return static_cast<uint32_t>(a) < static_cast<uint32_t>(b); });
    int64_t at = 0, filled = top;
    for (int64_t id = 0; id < vocab && filled < out.top; ++id) {
        if (at < n && static_cast<uint32_t>(order[at]) == id) {
            ++at;
            continue;
        }
        out.top_ids[filled] = id;
        out.top_logprobs[filled++] = -std::numeric_limits<double>::infinity();
    }
}

}  // namespace

void report_raw(const Row &row, const Scan &scan, int64_t token, const Report &out, Workspace &space) {
    alignas(64) float buffer[kBlock];
    Row plain = row;
    plain.num_edits = 0;
    const float *block_max = row.num_edits ? scan.raw_block_max : scan.block_max;  // exact
    const double log_mass = std::log(scan.raw_mass.total);
    const float mine = read(plain, token / kBlock, buffer)[token % kBlock];
    *out.logprob = static_cast<double>(mine) - scan.raw_max - log_mass;
    int64_t above = 0;
    if (mine == kNone) {  // a forced token ranks behind all possible tokens
        for (int64_t b = 0; b < scan.blocks; ++b) above += count_above(read(plain, b, buffer), kNone);
    }
    for (int64_t b = 0; b < scan.blocks && mine > kNone; ++b) {
        if (!(block_max[b] >= mine)) continue;
        const float *x = read(plain, b, buffer);
        const int64_t before = token - b * kBlock;  // of equal ones, those with a smaller id are above
        above += count_above(x, before >= kBlock ? std::nextafterf(mine, kNone) : mine);
        if (before > 0 && before < kBlock)
            for (int64_t i = 0; i < before; ++i) above += x[i] == mine;
    }
    *out.rank = above + 1;
    if (out.top == 0) return;
    Scan of_raw;
    of_raw.block_max = const_cast<float *>(block_max);
    of_raw.max = scan.raw_max;
    const float floor = reached_by(block_max, scan.blocks, out.top, space);
    Candidates likeliest{space.ids.data(), space.x.data(), space.weights.data(), nullptr};
    collect(plain, of_raw, floor, likeliest);
    if (likeliest.n > out.top) keep(likeliest, nth(ranked(likeliest), out.top, space));
    for (int64_t i = 0; i < likeliest.n; ++i) space.order[i] = rank_key(likeliest.x[i], likeliest.ids[i]);
    write_top(space.order, likeliest.n, row.vocab, log_mass, out);
}

void report_processed(const Candidates &s, double mass, int64_t vocab, int64_t token, const Report &out, Workspace &space) {
    const double log_mass = std::log(mass);
    const uint32_t *found = std::lower_bound(s.ids, s.ids + s.n, static_cast<uint32_t>(token));
    const bool in = found != s.ids + s.n && *found == token;
    const float mine = in ? s.x[found - s.ids] : kNone;
    *out.logprob = in ? mine - log_mass : -std::numeric_limits<double>::infinity();
    int64_t above = 0;
    for (int64_t i = 0; i < s.n; ++i) {
        space.order[i] = rank_key(s.x[i], s.ids[i]);
        above += s.x[i] > mine || (s.x[i] == mine && s.ids[i] < token);
    }
    *out.rank = above + 1;
    if (out.top) write_top(space.order, s.n, vocab, log_mass, out);
}

}  // namespace tailrace
