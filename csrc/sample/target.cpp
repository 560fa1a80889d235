#include "sample/target.h"

#include <algorithm>

#include "sample/flat_rows.h"

namespace tailrace {
namespace {

constexpr uint32_t kNoStream = ~0u;

void write(const Mass &mass, double *entropy) {
    entropy[0] = mass.entropy();
    entropy[1] = mass.varentropy();
}

}  // namespace

Target::Target(const Step &step, int64_t row, const State &state, Workspace &space)
    : program_(step.program_of(row)), state_(state), position_(step.position[row]), space_(space) {
    const int64_t bytes = step.type == Type::f32 ? 4 : 2;
    const char *logits = static_cast<const char *>(step.logits);
    const auto at = [&](int64_t source) { return logits + source * step.stride * bytes; };
    row_ = {at(step.source[row]), step.type, step.vocab, program_.edits, program_.num_edits};
    if (step.companion && step.companion[row] >= 0) {
        row_.scale = step.scale[row];
        if (row_.scale == 0.0f) row_.data = at(step.companion[row]);
        else if (row_.scale != 1.0f) row_.companion = at(step.companion[row]);
    }
    if (step.mask && step.mask[row] >= 0) {
        const int64_t words = (step.vocab + 31) / 32;
        edits_[0] = {EditKind::mask, 0, step.masks + step.mask[row] * words, nullptr, 0, 0, 0};
        std::copy(program_.edits, program_.edits + program_.num_edits, edits_ + 1);
        row_.edits = edits_;
        ++row_.num_edits;
    }
    candidates_ = {space.ids.data(), space.x.data(), space.weights.data(), nullptr};
    for (int32_t i = 0; i < program_.num_stages; ++i)
        if (wants_raw(program_.stages[i].kind)) candidates_.raw = space.raw.data();
    scan_.block_max = space.block_max.data();
    scan_.raw_block_max = space.raw_block_max.data();
    scan_.sums = space.sums.data();
    scan_.hot = space.hot();
}

int32_t Target::prepare(Asked asked) {
    const bool processed = program_.flags & kProcessed, entropy = program_.flags & kEntropy;
    const bool described = reported(program_);
    Wants wants;
    wants.raw = wants.raw_mass = described && !processed;
    wants.raw_moments = wants.raw && entropy;
    if (!greedy()) {
        plan(program_, wants);
        untruncated_ = true;
        for (int32_t i = 0; i < program_.num_stages; ++i) untruncated_ &= program_.stages[i].kind == StageKind::temperature;
        if (untruncated_) {
            for (int32_t i = 0; i < program_.num_stages; ++i) temperature_ *= program_.stages[i].a;
            wants.hot = !asked.masses;  // else a draft may be accepted, and nothing is drawn
            hot_stream_ = wants.hot ? kDrawStream : kNoStream;
            wants.noise = noise(kDrawStream);
            wants.temperature = temperature_;
            wants.mass = asked.masses || asked.entropy || (described && processed);
            wants.moments = asked.entropy || (entropy && processed);
        }
    } else if (described && processed) {
        wants.mass = true;
        wants.moments = entropy;
    }
    scan(row_, wants, scan_);
    if (scan_.status != 0) return scan_.status;
    mass_temperature_ = wants.mass ? wants.temperature : 0;
    if (!greedy()) select(!asked.masses && !(described && processed));
    return greedy() || untruncated_ || flat_ || candidates_.n > 0 ? kOk : kEmpty;
}

// Return the token with the largest edited logit; of equal ones the smallest id.
int64_t Target::likeliest() const {
    alignas(64) float buffer[kBlock];
    for (int64_t b = 0; b < scan_.blocks; ++b) {
        if (scan_.block_max[b] != scan_.max) continue;
        const float *x = load(row_, b, buffer);
        for (int64_t i = 0; i < kBlock; ++i)
            if (x[i] == scan_.max) return b * kBlock + i;
    }
    return kNobody;
}

int64_t Target::token() {
    if (program_.forced >= 0) return program_.forced;
    return winner(kDrawStream, kNobody);
}

int64_t Target::winner(uint32_t stream, int64_t excluded) {
    if (greedy()) return likeliest();
    if (flat_) {
        const int64_t found = draw_flat_row(row_, context(), noise(stream), &boundary_);
        if (found != kNobody) return found;
        select(false);
    }
    if (remainder_) {
        hot_stream_ = kNoStream;  // the draw computes its own hot bits
        return remainder_->draw(noise(stream), space_);
    }
    if (spent_) return draw_remainder(candidates_, noise(stream), space_);
    if (!untruncated_) return draw(candidates_, noise(stream), excluded, space_);
    if (stream != hot_stream_) {
        scan_.hot.n = 0;
        hot_groups(noise(stream), 0, scan_.blocks * kBlockGroups, scan_.hot);
        hot_stream_ = stream;
    }
    return draw_all(row_, scan_, temperature_, floor_, candidates_, noise(stream), excluded, space_);
}

int64_t Target::propose(double u, Written to) {
    if (greedy() || program_.forced >= 0) {
        const int64_t only = token();
        write_token(only, to);
        return only;
    }
    float *sums = space_.sums.data();  // the scan no longer needs the sums
    if (untruncated_) {
        write_row(row_, scan_, temperature_, to, sums);
        return place_of(u, to.q, row_.vocab, sums);
    }
    const double mass = collected_mass(candidates_);
    if (!(mass > 0)) return kNobody;
    spent_ = true;
    write_candidates(candidates_, mass, to, sums);
    return candidates_.ids[place_of(u, candidates_.weights, candidates_.n, sums)];
}

double Target::probability(int64_t token) {
    if (untruncated_) {
        alignas(64) float buffer[kBlock];
        const float l = load(row_, token / kBlock, buffer)[token % kBlock];
        return l == kNone ? 0.0 : static_cast<double>(weight(static_cast<float>((l - scan_.max) / temperature_))) / scan_.mass.total;
    }
    const uint32_t *at = std::lower_bound(candidates_.ids, candidates_.ids + candidates_.n, static_cast<uint32_t>(token));
    if (at == candidates_.ids + candidates_.n || *at != token) return 0.0;
    return static_cast<double>(weight(candidates_.x[at - candidates_.ids])) / collected_mass(candidates_);
}

double Target::entropy() {
    return untruncated_ ? scan_.mass.entropy() : moments(collected_mass(candidates_)).entropy();
}

double Target::subtract(const float *q, double scale) {
    // the scan no longer needs the sums
    if (untruncated_) return remainder_.emplace(row_, scan_, temperature_, q, scale, space_.sums.data()).sum();
    spent_ = true;
    return subtract_candidates(q, scale, candidates_);
}

double Target::update_of(int64_t token) const {
    return program_.forced >= 0 ? std::numeric_limits<double>::quiet_NaN() : tailrace::update_of(space_.basis, static_cast<uint32_t>(token));
}

void Target::survivors(int64_t token, std::vector<int32_t> &out) {
    if (!wants_survivors()) {
        out.assign(1, static_cast<int32_t>(token));
        return;
    }
    if (flat_) return survivors_of_flat_row(row_, context(), boundary_, out);
    restore();
    everything();
    out.assign(candidates_.ids, candidates_.ids + candidates_.n);
}

void Target::describe(int64_t token, const Report &report, double *entropy) {
    const bool processed = program_.flags & kProcessed;
    if (processed && !greedy()) {
        restore();
        if (untruncated_) everything();
        const double mass = collected_mass(candidates_);
        if (program_.logprobs >= 0) report_processed(candidates_, mass, row_.vocab, token, report, space_);
        if (program_.flags & kEntropy) write(moments(mass), entropy);
        return;
    }
    if (processed) {  // greedy: report the edited logits
        floor_ = kLowest;
        collect(row_, scan_, floor_, candidates_);
        if (program_.logprobs >= 0) report_processed(candidates_, scan_.mass.total, row_.vocab, token, report, space_);
        if (program_.flags & kEntropy) write(scan_.mass, entropy);
        return;
    }
    if (program_.logprobs >= 0) report_raw(row_, scan_, token, report, space_);
    if (program_.flags & kEntropy) write(scan_.raw_mass, entropy);
}

// Collect the survivors. With `lazy`, do so only if they are few.
void Target::select(bool lazy) {
    const Context context = this->context();
    spent_ = false;
    flat_ = false;
    if (untruncated_) {
        // a few of the likeliest tokens give a score that rules out most others
        constexpr int64_t kFirst = 24;
        const float reached = reached_by(scan_.block_max, scan_.blocks, std::min(kFirst, scan_.blocks), space_);
        const int64_t many = std::count_if(scan_.block_max, scan_.block_max + scan_.blocks, [reached](float top) { return top >= reached; });
        // many equal tokens are left to the hot bits
        collect_from(many > 4 * kFirst ? std::nextafterf(reached, -kNone) : reached);
        divide(candidates_.x, candidates_.n, temperature_);
        return;
    }
    if ((flat_ = lazy && is_flat(context))) return;
    for (double depth = first_depth(context);;) {
        const double wanted = std::max(scan_.max + depth, static_cast<double>(kLowest));
        float floor = static_cast<float>(wanted);
        if (floor > wanted) floor = std::nextafterf(floor, kNone);
        collect_from(std::max(floor, kLowest));
        const double before = depth;
        if (refine(context, static_cast<double>(floor_) - scan_.max, candidates_, &depth)) break;
        if (!(depth < before)) depth = kEverything;  // rounding must not lead to the same depth again
    }
}

void Target::collect_from(float floor) {
    floor_ = floor;
    candidates_.mass = -1;
    collect(row_, scan_, floor, candidates_);
}

// Collect all candidates of a row that nothing truncates.
void Target::everything() {
    if (!untruncated_) return;
    collect_from(kLowest);
    divide(candidates_.x, candidates_.n, temperature_);
    keep_above(candidates_, kLowest);
}

Mass Target::moments(double mass) {
    weigh(candidates_);
    Mass out;
    out.total = mass;
    for (int64_t i = 0; i < candidates_.n; ++i) {
        const double w = candidates_.weights[i], y = candidates_.x[i];
        if (w > 0) {
            out.first += w * y;
            out.second += w * y * y;
        }
    }
    return out;
}

}  // namespace tailrace
