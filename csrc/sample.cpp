#include "sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <ctime>
#include <stdexcept>
#include <string>

#include "pool.h"
#include "target.h"

namespace tailrace {
namespace {

// Of rule typical: src/tailrace/sampling/verify.py.
constexpr double kTypicalEpsilon = 0.09, kTypicalDelta = 0.3;

// Of processor time that this thread has had.
double thread_seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// One request: its rows in order, the drafts it accepts becoming history for the rows after them.
class Request {
  public:
    Request(const Step &step, int64_t index, Workspace &space)
        : step_(step), index_(index), program_(step.program_of(step.start[index])), state_(program_.state), space_(space) {}

    void run() {
        const int64_t first = step_.start[index_], last = step_.start[index_ + 1] - 1;
        step_.num_tokens[index_] = 0;
        if (program_.flags & kUnsupported) {
            step_.status[index_] = kFallsBack;
            return;
        }
        // a greedy row's distribution is one token: every rule accepts that one, and then takes it
        const bool plain = !step_.rule || (program_.flags & kGreedy);
        const Rule rule = plain ? Rule::exact : static_cast<Rule>(step_.rule[index_]);
        int32_t status = 0;
        const bool together = rule == Rule::block && proposal(first) && last > first && !stateful() && !forced(first, last);
        if (together) status = by_block(first, last);
        else
            for (int64_t row = first; row <= last && !rejected_; ++row)
                if ((status = one(row, step_.draft[row] < 0 || step_.program_of(row).forced >= 0 ? Rule::exact : rule)) != 0) break;
        forget();
        step_.num_tokens[index_] = accepted_;
        step_.status[index_] = accepted_ ? 0 : status;  // what was accepted stays; the row will come again
    }

  private:
    bool stateful() const { return program_.flags & kStateful; }
    // Block verification decides on all drafts together, so none may be settled beforehand.
    bool forced(int64_t first, int64_t last) const {
        for (int64_t row = first; row <= last; ++row)
            if (step_.program_of(row).forced >= 0) return true;
        return false;
    }

    // What the row's draft was drawn from; null: it is one-hot.
    const float *proposal(int64_t row) const { return step_.proposals ? step_.proposals[row] : nullptr; }

    // Block verification of one-hot drafts is rejection, row by row.
    int32_t one(int64_t row, Rule rule) {
        Target target(step_, row, state_, space_);
        if (const int32_t status = target.prepare({.masses = rule != Rule::exact, .entropy = rule == Rule::typical})) return status;
        const int64_t draft = step_.draft[row];
        const int64_t token = rule == Rule::exact     ? target.token()
                              : rule == Rule::typical ? typical(target, draft)
                                                      : accept_or_replace(target, row, draft);
        emit(target, token);
        rejected_ = token != draft;
        if (!rejected_) remember(token);
        return 0;
    }

    // Accept with min(1, p / q), else draw from the rest.
    int64_t accept_or_replace(Target &target, int64_t row, int64_t draft) {
        const float *q = proposal(row);
        if (uniform(noise(row, kAcceptStream)) * (q ? q[draft] : 1.0) < target.probability(draft)) return draft;
        if (q) target.subtract(q, 1.0);
        return replacement(target, q ? kNobody : draft);
    }

    // Drawn from what is left; where rounding has left nothing, p and q are the same, so from p.
    static int64_t replacement(Target &target, int64_t excluded) {
        const int64_t token = target.winner(kResidualStream, excluded);
        if (token != kNobody) return token;
        target.restore();
        return target.winner(kResidualStream, kNobody);
    }

    // Accept what is likely enough for so uncertain a distribution, else draw (Medusa, arXiv 2401.10774).
    int64_t typical(Target &target, int64_t draft) {
        const double least = std::min(kTypicalEpsilon, kTypicalDelta * std::exp(-target.entropy()));
        return target.probability(draft) > least ? draft : target.winner(kDrawStream, kNobody);
    }

    // Block verification (Sun et al., arXiv 2403.10444, algorithm 2), row by row: after row j the longest accepted
    // prefix so far and the token that would follow it are known. What decides on acceptance is drawn for rows that may
    // not be reached and come again in the next step; it is keyed by where the step begins, so that no two steps share
    // it.
    int32_t by_block(int64_t first, int64_t last) {
        double p = 1.0;  // of the paper's p_j
        int64_t accepted = -1, follower = kNobody;
        for (int64_t row = first; row <= last; ++row) {
            Target target(step_, row, state_, space_);
            if (const int32_t status = target.prepare({.masses = true})) {
                if (accepted < 0) return status;
                break;
            }
            const int64_t j = row - first;
            const bool bonus = row == last;
            const float *q = proposal(row);
            const double next = bonus ? 0.0 : target.probability(step_.draft[row]);
            const double rest = bonus ? p : target.subtract(q, p);
            const double h = bonus ? p : rest > 0 ? rest / (rest + (1.0 - p)) : 0.0;
            if (j == 0 || (rest > 0 && uniform(noise(first, kBlockStream + static_cast<uint32_t>(j))) <= h)) {
                accepted = j;
                follower = replacement(target, kNobody);
            }
            if (bonus) break;
            const float mine = q[step_.draft[row]];
            p = mine > 0 ? std::min(p * next / mine, 1.0) : next > 0 ? 1.0 : 0.0;
            if (p == 0) break;  // and so it will be for all the others
            remember(step_.draft[row]);
        }
        forget();
        for (int64_t j = 0; j <= accepted; ++j) {
            const int64_t token = j < accepted ? step_.draft[first + j] : follower;
            if (!reported(program_) && !(program_.flags & kSurvivors)) {
                put(token);
                continue;
            }
            Target target(step_, first + j, state_, space_);  // only now it is known which tokens are to be described
            target.prepare({.masses = true});
            emit(target, token);
            remember(token);
        }
        return 0;
    }

    Noise noise(int64_t row, uint32_t stream) const {
        return {static_cast<uint64_t>(program_.key), static_cast<uint64_t>(step_.position[row]), stream};
    }

    void emit(Target &target, int64_t token) {
        const int64_t place = index_ * step_.width + accepted_;
        if (program_.flags & kSurvivors) target.survivors(token, step_.survivors->of[static_cast<size_t>(place)]);
        if (reported(program_)) {
            double *numbers = step_.numbers + place * (3 + step_.top);
            int64_t *ranks = step_.ranks + place * (1 + step_.top);
            target.describe(token, {numbers, ranks, ranks + 1, numbers + 3, program_.logprobs}, numbers + 1);
        }
        if (stateful()) update_state(program_, step_.updates[place] = target.update_of(token), state_);
        put(token);
    }

    void put(int64_t token) { step_.token_ids[index_ * step_.width + accepted_++] = token; }

    void remember(int64_t token) {
        if (!program_.history && !program_.said) return;
        if (program_.history) program_.history->add(static_cast<uint32_t>(token), program_.repeated, program_.counted);
        if (program_.said) program_.said->add(static_cast<uint32_t>(token));
        provisional_.push_back(static_cast<uint32_t>(token));
    }
    void forget() {
        for (; !provisional_.empty(); provisional_.pop_back()) {
            if (program_.history) program_.history->drop(provisional_.back(), program_.repeated, program_.counted);
            if (program_.said) program_.said->drop();
        }
    }

    const Step &step_;
    int64_t index_;
    const Program &program_;  // of the first row: what is the same for all
    State state_;             // after the drafts that are accepted
    Workspace &space_;
    int64_t accepted_ = 0;
    bool rejected_ = false;
    std::vector<uint32_t> provisional_;
};

}  // namespace

void Survivors::read(const uint32_t *bits, int64_t words) {
    for (auto &ids : of) {
        ids.clear();
        for (int64_t w = 0; w < words; ++w)
            for (uint32_t word = bits[w]; word; word &= word - 1) ids.push_back(static_cast<int32_t>(w * 32 + std::countr_zero(word)));
        bits += words;
    }
}

int64_t Survivors::total() const {
    int64_t n = 0;
    for (const auto &ids : of) n += static_cast<int64_t>(ids.size());
    return n;
}

void Survivors::write(int32_t *ids, int64_t *offsets) const {
    int64_t n = 0;
    for (const auto &mine : of) {
        *offsets++ = n;
        std::copy(mine.begin(), mine.end(), ids + n);
        n += static_cast<int64_t>(mine.size());
    }
    *offsets = n;
}

void check(StepRows &step) {
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
            inside("the slot of a request's rows", step.slot[row], step.slot[first], step.slot[first]);
            if (step.mask) inside("mask", step.mask[row], -1, step.num_masks - 1);
            if (step.companion) inside("companion", step.companion[row], -1, step.logits_rows - 1);
            if (step.companion && step.companion[row] >= 0 && !(step.scale[row] >= 0.0f && std::isfinite(step.scale[row])))
                throw std::invalid_argument("scale must be finite and at least 0, got " + std::to_string(step.scale[row]));
            if (row < last) inside("drafts", step.draft[row], 0, step.vocab - 1);
        }
        inside("the draft of a bonus row", step.draft[last], -1, -1);
        if (step.rule) inside("rule", step.rule[i], 0, static_cast<int64_t>(Rule::typical));
        const SlotNeeds &needs = step.needs[step.slot[first]];
        if (!(needs.flags & kTaken)) throw std::invalid_argument("slot " + std::to_string(step.slot[first]) + " is empty");
        step.flags |= needs.flags;
        step.top = std::max(step.top, needs.logprobs);
    }
}

void sample(const Step &step) {
    std::fill(step.token_ids, step.token_ids + step.requests * step.width, int64_t{-1});
    Pool::instance().run(step.requests, [&](int64_t i) {
        Workspace &space = Workspace::mine();
        space.fit(step.vocab);
        Request request(step, i, space);
        const bool noted = step.seconds && (step.program_of(step.start[i]).flags & kCostly);
        const double begun = noted ? thread_seconds() : 0.0;
        request.run();
        if (noted) step.seconds[i] = thread_seconds() - begun;
    });
}

void propose(const Step &step, const Proposals &to) {
    Pool::instance().run(step.rows, [&](int64_t row) {
        const Program &program = step.program_of(row);
        to.token_ids[row] = kNobody;
        to.status[row] = kFallsBack;
        if (program.flags & kUnsupported) return;
        Workspace &space = Workspace::mine();
        space.fit(step.vocab);
        Target target(step, row, program.state, space);
        if ((to.status[row] = target.prepare({.masses = true})) != kOk) return;
        const Noise noise{static_cast<uint64_t>(program.key), static_cast<uint64_t>(to.begin[row]), static_cast<uint32_t>(to.stream[row])};
        to.token_ids[row] = target.propose(uniform(noise), {to.q[row], to.note[row], step.vocab});
        if (to.token_ids[row] == kNobody) to.status[row] = kEmpty;
    });
}

}  // namespace tailrace
