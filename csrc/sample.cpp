#include "sample.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "crowd.h"
#include "draw.h"
#include "pool.h"
#include "refine.h"
#include "report.h"

namespace tailrace {
namespace {

bool reported(const Program &program) { return program.logprobs >= 0 || (program.flags & kEntropy); }

// One row on its way: read once, refined as far as the request asks, then drawn from as often as the rule needs.
class Draw {
  public:
    Draw(const Step &step, const Program &program, int64_t row, Workspace &space)
        : program_(program), position_(step.position[row]), space_(space) {
        const int64_t bytes = step.type == Type::f32 ? 4 : 2;
        const char *logits = static_cast<const char *>(step.logits);
        row_ = {logits + step.source[row] * step.stride * bytes, step.type, step.vocab, program.edits, program.num_edits};
        survivors_ = {space.ids.data(), space.x.data(), space.weights.data(), nullptr};
        for (int32_t i = 0; i < program.num_stages; ++i)
            if (program.stages[i].kind == StageKind::top_n_sigma) survivors_.raw = space.raw.data();
        scan_.block_max = space.block_max.data();
        scan_.raw_block_max = space.raw_block_max.data();
        scan_.sums = space.sums.data();
        scan_.hot = space.hot();
    }

    // The pass over the row and the refinements. `all_masses`: the probability of single tokens will be asked for, so the survivors must be there.
    int32_t prepare(bool all_masses) {
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
                wants.hot = true;
                wants.noise = noise(kDrawStream);
                wants.temperature = temperature_;
                wants.mass = all_masses || (described && processed);
                wants.moments = entropy && processed;
            }
        } else if (described && processed) {
            wants.mass = true;
            wants.moments = entropy;
        }
        scan(row_, wants, scan_);
        if (scan_.status != 0) return scan_.status;
        mass_temperature_ = wants.mass ? wants.temperature : 0;
        if (!greedy()) select(!all_masses && !(described && processed));
        return greedy() || untruncated_ || crowd_ || survivors_.n > 0 ? kOk : kEmpty;
    }

    bool greedy() const { return program_.flags & kGreedy; }

    int64_t likeliest() const {
        alignas(64) float buffer[kBlock];
        for (int64_t b = 0; b < scan_.blocks; ++b) {
            if (scan_.block_max[b] != scan_.max) continue;
            const float *x = load(row_, b, buffer);
            for (int64_t i = 0; i < kBlock; ++i)
                if (x[i] == scan_.max) return b * kBlock + i;
        }
        return kNobody;
    }

    int64_t token() {
        if (program_.forced >= 0) return program_.forced;
        return greedy() ? likeliest() : winner(kDrawStream, kNobody);
    }
    int64_t winner(uint32_t stream, int64_t excluded) {
        if (greedy()) return likeliest();
        if (crowd_) {
            const int64_t found = draw_crowd(row_, context(), noise(stream));
            if (found != kNobody) return found;
            select(false);
        }
        if (!untruncated_ || spent_) return draw(survivors_, noise(stream), excluded, space_);
        if (stream != kDrawStream) {  // the pass computed the hot bits of the draw's own stream
            everything();
            return draw(survivors_, noise(stream), excluded, space_);
        }
        return draw_all(row_, scan_, temperature_, floor_, survivors_, noise(stream), excluded, space_);
    }

    // Probability of one token under what is drawn from. Needs prepare(true).
    double probability(int64_t token) {
        if (greedy()) return token == likeliest();
        if (untruncated_) {
            alignas(64) float buffer[kBlock];
            const float l = load(row_, token / kBlock, buffer)[token % kBlock];
            return l == kNone ? 0.0 : static_cast<double>(weight(static_cast<float>((l - scan_.max) / temperature_))) / scan_.mass.total;
        }
        const uint32_t *at = std::lower_bound(survivors_.ids, survivors_.ids + survivors_.n, static_cast<uint32_t>(token));
        if (at == survivors_.ids + survivors_.n || *at != token) return 0.0;
        return static_cast<double>(weight(survivors_.x[at - survivors_.ids])) / collected_mass(survivors_);
    }

    // The survivors become the positive part of scale · p − q; returns its sum. q [V] are probabilities.
    double subtract(const float *q, double scale) {
        everything();
        spent_ = true;
        Survivors &s = survivors_;
        const double mass = collected_mass(s);
        double sum = 0;
        for (int64_t i = 0; i < s.n; ++i) {
            const double rest = scale * s.weights[i] / mass - q[s.ids[i]];
            space_.flags[i] = rest > 0;
            if (rest > 0) sum += rest;
            s.x[i] = rest > 0 ? static_cast<float>(std::log(rest)) : kNone;
        }
        keep_flagged(s, space_.flags.data());
        return sum;
    }

    void describe(int64_t token, const Report &report, double *entropy) {
        const bool processed = program_.flags & kProcessed;
        if (processed && !greedy()) {
            if (spent_) select(false);
            if (untruncated_) everything();
            const double mass = collected_mass(survivors_);
            if (program_.logprobs >= 0) report_processed(survivors_, mass, row_.vocab, token, report, space_);
            if (program_.flags & kEntropy) write(moments(mass), entropy);
            return;
        }
        if (processed) {  // greedy: of the edited logits
            floor_ = kLowest;
            collect(row_, scan_, floor_, survivors_);
            if (program_.logprobs >= 0) report_processed(survivors_, scan_.mass.total, row_.vocab, token, report, space_);
            if (program_.flags & kEntropy) write(scan_.mass, entropy);
            return;
        }
        if (program_.logprobs >= 0) report_raw(row_, scan_, token, report, space_);
        if (program_.flags & kEntropy) write(scan_.raw_mass, entropy);
    }

  private:
    Noise noise(uint32_t stream) const {
        return {static_cast<uint64_t>(program_.key), static_cast<uint64_t>(position_), stream};
    }

    Context context() const { return {program_, scan_, position_, mass_temperature_, space_}; }

    // Collects what survives; with `lazy`, only where that is not much.
    void select(bool lazy) {
        const Context context = this->context();
        spent_ = false;
        crowd_ = false;
        if (untruncated_) {
            // a few of the likeliest give a score that most others can be measured against
            constexpr int64_t kFirst = 24;
            const float reached = reached_by(scan_.block_max, scan_.blocks, std::min(kFirst, scan_.blocks), space_);
            const int64_t many = std::count_if(scan_.block_max, scan_.block_max + scan_.blocks, [reached](float top) { return top >= reached; });
            // a crowd of equals is left to the hot bits
            collect_from(many > 4 * kFirst ? std::nextafterf(reached, -kNone) : reached);
            divide(survivors_.x, survivors_.n, temperature_);
            return;
        }
        if ((crowd_ = lazy && crowded(context))) return;
        for (double depth = first_depth(context);;) {
            const double wanted = std::max(scan_.max + depth, static_cast<double>(kLowest));
            float floor = static_cast<float>(wanted);
            if (floor > wanted) floor = std::nextafterf(floor, kNone);
            collect_from(std::max(floor, kLowest));
            const double before = depth;
            if (refine(context, static_cast<double>(floor_) - scan_.max, survivors_, &depth)) break;
            if (!(depth < before)) depth = kEverything;  // rounding must not make it ask for the same again
        }
    }

    void collect_from(float floor) {
        floor_ = floor;
        survivors_.mass = -1;
        collect(row_, scan_, floor, survivors_);
    }

    // All survivors of a row that nothing truncates.
    void everything() {
        if (!untruncated_ || greedy()) return;
        collect_from(kLowest);
        divide(survivors_.x, survivors_.n, temperature_);
        keep_above(survivors_, kLowest);
    }

    Mass moments(double mass) {
        weigh(survivors_);
        Mass out;
        out.total = mass;
        for (int64_t i = 0; i < survivors_.n; ++i) {
            const double w = survivors_.weights[i], y = survivors_.x[i];
            if (w > 0) {
                out.first += w * y;
                out.second += w * y * y;
            }
        }
        return out;
    }

    static void write(const Mass &mass, double *entropy) {
        entropy[0] = mass.entropy();
        entropy[1] = mass.varentropy();
    }

    const Program &program_;
    int64_t position_;
    Workspace &space_;
    Row row_;
    Survivors survivors_;
    Scan scan_;
    double temperature_ = 1.0, mass_temperature_ = 0.0;
    float floor_ = 0;
    bool untruncated_ = false;  // only a temperature: nothing is removed
    bool spent_ = false;        // the survivors have been made into something else
    bool crowd_ = false;        // there are so many survivors that they were not collected
};

// One request: its rows in order, the drafts it accepts becoming history for the rows after them.
class Request {
  public:
    Request(const Step &step, int64_t index, Workspace &space)
        : step_(step), index_(index), program_(step.programs[step.slot[step.start[index]]]), space_(space) {}

    void run() {
        const int64_t first = step_.start[index_], last = step_.start[index_ + 1] - 1;
        step_.num_tokens[index_] = 0;
        if ((program_.flags & kRare) || (last > first && (program_.flags & kStepwise))) {
            step_.status[index_] = kApart;
            return;
        }
        const Rule rule = step_.rule ? static_cast<Rule>(step_.rule[index_]) : Rule::exact;
        int32_t status = 0;
        if (rule == Rule::block && step_.proposals && last > first) status = by_block(first, last);
        else
            for (int64_t row = first; row <= last; ++row)
                if ((status = one(row, step_.draft[row] < 0 ? Rule::exact : rule)) != 0 || rejected_) break;
        forget();
        step_.num_tokens[index_] = accepted_;
        step_.status[index_] = accepted_ ? 0 : status;  // what was accepted before a bad row stands; the row will come again
    }

  private:
    // Exact: what plain sampling draws. Rejection (and block verification of one-hot drafts, which it equals): accept with min(1, p / q), else the rest.
    int32_t one(int64_t row, Rule rule) {
        Draw draw(step_, program_, row, space_);
        if (const int32_t status = draw.prepare(rule != Rule::exact)) return status;
        const int64_t draft = step_.draft[row];
        int64_t token;
        if (rule == Rule::exact) {
            token = draw.token();
        } else {
            const float *q = step_.proposals ? step_.proposals + row * step_.vocab : nullptr;
            const double p = draw.probability(draft);
            if (acceptance(row) * (q ? q[draft] : 1.0) < p) {
                token = draft;
            } else {
                if (q && !draw.greedy()) draw.subtract(q, 1.0);
                token = draw.winner(kResidualStream, q ? kNobody : draft);
                if (token == kNobody) token = draft;  // p = q up to rounding: nothing is left over
            }
        }
        emit(draw, token);
        rejected_ = token != draft;
        if (!rejected_) remember(token);
        return 0;
    }

    // Block verification (Sun et al., arXiv 2403.10444, algorithm 2), row by row: after row j the longest accepted prefix so far
    // and the token that would follow it are known.
    int32_t by_block(int64_t first, int64_t last) {
        double p = 1.0;  // of the paper's p_j
        int64_t accepted = -1, follower = kNobody;
        for (int64_t row = first; row <= last; ++row) {
            Draw draw(step_, program_, row, space_);
            if (const int32_t status = draw.prepare(true)) {
                if (accepted < 0) return status;
                break;
            }
            const int64_t j = row - first;
            const bool bonus = row == last;
            const float *q = step_.proposals + row * step_.vocab;
            const double next = bonus ? 0.0 : draw.probability(step_.draft[row]);
            double h = p;
            if (!bonus) {
                const double rest = draw.greedy() ? std::max(0.0, p - q[draw.likeliest()]) : draw.subtract(q, p);
                h = rest > 0 ? rest / (rest + 1.0 - p) : p >= 1.0 ? 1.0 : 0.0;
            }
            if (j == 0 || acceptance(row - 1) <= h) {
                const int64_t token = draw.winner(j == 0 && bonus ? kDrawStream : kResidualStream, kNobody);
                if (token != kNobody || j == 0) {
                    accepted = j;
                    follower = token == kNobody ? step_.draft[row] : token;
                }
            }
            if (bonus) break;
            const float mine = q[step_.draft[row]];
            p = mine > 0 ? std::min(p * next / mine, 1.0) : next > 0 ? 1.0 : 0.0;
            remember(step_.draft[row]);
        }
        forget();
        for (int64_t j = 0; j <= accepted; ++j) {
            const int64_t token = j < accepted ? step_.draft[first + j] : follower;
            if (!reported(program_)) {
                put(token);
                continue;
            }
            Draw draw(step_, program_, first + j, space_);  // only now it is known which tokens are to be described
            draw.prepare(true);
            emit(draw, token);
            remember(token);
        }
        return 0;
    }

    double acceptance(int64_t row) const {
        return uniform({static_cast<uint64_t>(program_.key), static_cast<uint64_t>(step_.position[row]), kAcceptStream});
    }

    void emit(Draw &draw, int64_t token) {
        const int64_t place = index_ * step_.width + accepted_;
        if (reported(program_)) {
            double *numbers = step_.numbers + place * (3 + step_.top);
            int64_t *ranks = step_.ranks + place * (1 + step_.top);
            draw.describe(token, {numbers, ranks, ranks + 1, numbers + 3, program_.logprobs}, numbers + 1);
        }
        put(token);
    }

    void put(int64_t token) { step_.token_ids[index_ * step_.width + accepted_++] = token; }

    void remember(int64_t token) {
        if (!program_.history) return;
        program_.history->add(static_cast<uint32_t>(token), program_.repeated, program_.counted);
        provisional_.push_back(static_cast<uint32_t>(token));
    }
    void forget() {
        for (; !provisional_.empty(); provisional_.pop_back())
            program_.history->drop(provisional_.back(), program_.repeated, program_.counted);
    }

    const Step &step_;
    int64_t index_;
    Program &program_;
    Workspace &space_;
    int64_t accepted_ = 0;
    bool rejected_ = false;
    std::vector<uint32_t> provisional_;
};

}  // namespace

void check(Step &step) {
    const auto inside = [](const char *name, int64_t value, int64_t low, int64_t high) {
        if (value < low || value > high)
            throw std::invalid_argument(std::string(name) + " must be in " + std::to_string(low) + " … " + std::to_string(high) + ", got " +
                                        std::to_string(value));
    };
    step.flags = step.top = 0;
    inside("start[0]", step.start[0], 0, 0);
    inside("start[N]", step.start[step.requests], step.rows, step.rows);
    for (int64_t i = 0; i < step.requests; ++i) {
        const int64_t first = step.start[i], last = step.start[i + 1] - 1;
        inside("the rows of a request", last - first + 1, 1, step.width);
        inside("start", last, 0, step.rows - 1);
        for (int64_t row = first; row <= last; ++row) {
            inside("source", step.source[row], 0, step.logits_rows - 1);
            inside("position", step.position[row], 0, std::numeric_limits<int64_t>::max());
            inside("slot", step.slot[row], 0, step.slots - 1);
            if (row < last) inside("drafts", step.draft[row], 0, step.vocab - 1);
        }
        inside("the draft of a bonus row", step.draft[last], -1, -1);
        if (step.rule) inside("rule", step.rule[i], 0, static_cast<int64_t>(Rule::block));
        const Program &program = step.programs[step.slot[first]];
        if (!(program.flags & kTaken)) throw std::invalid_argument("slot " + std::to_string(step.slot[first]) + " is empty");
        step.flags |= program.flags;
        if (reported(program)) step.flags |= kReported;
        step.top = std::max(step.top, program.logprobs);
    }
}

void sample(const Step &step) {
    std::fill(step.token_ids, step.token_ids + step.requests * step.width, int64_t{-1});
    Pool::instance().run(step.requests, [&](int64_t i) {
        Workspace &space = Workspace::mine();
        space.fit(step.vocab);
        Request(step, i, space).run();
    });
}

}  // namespace tailrace
