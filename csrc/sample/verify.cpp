#include "sample/verify.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sample/target.h"

namespace tailrace {
namespace {

// The verification of one request. The rows are read in order, and an accepted draft becomes history for the next rows.
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
        // the distribution of a greedy row is one token, which every rule accepts or draws
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
        step_.status[index_] = accepted_ ? 0 : status;  // accepted tokens stay, and a later step has the row again
    }

  private:
    bool stateful() const { return program_.flags & kStateful; }
    // Return whether a token of the block is forced. Block verification decides on all drafts together.
    bool forced(int64_t first, int64_t last) const {
        for (int64_t row = first; row <= last; ++row)
            if (step_.program_of(row).forced >= 0) return true;
        return false;
    }

    // Return the distribution that the row's draft was drawn from, or null if that is one-hot.
    const float *proposal(int64_t row) const { return step_.proposals ? step_.proposals[row] : nullptr; }

    // Verify the draft of one row. For one-hot drafts, block verification is rejection row by row.
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

    // Accept the draft with probability min(1, p / q), else draw from the remainder.
    int64_t accept_or_replace(Target &target, int64_t row, int64_t draft) {
        const float *q = proposal(row);
        if (uniform(noise(row, kAcceptStream)) * (q ? q[draft] : 1.0) < target.probability(draft)) return draft;
        if (q) target.subtract(q, 1.0);
        return replacement(target, q ? kNobody : draft);
    }

    // Draw from the remainder. If rounding leaves nothing, p and q are the same, so draw from p.
    static int64_t replacement(Target &target, int64_t excluded) {
        const int64_t token = target.winner(kResidualStream, excluded);
        if (token != kNobody) return token;
        target.restore();
        return target.winner(kResidualStream, kNobody);
    }

    // Accept a draft that is likely enough for the distribution's entropy, else draw (Medusa, arXiv 2401.10774).
    int64_t typical(Target &target, int64_t draft) {
        const double least = std::min(kTypicalEpsilon, kTypicalDelta * std::exp(-target.entropy()));
        return target.probability(draft) > least ? draft : target.winner(kDrawStream, kNobody);
    }

    // Verify all drafts together (Sun et al., arXiv 2403.10444, algorithm 2). After row j the longest accepted prefix so
    // far is known, and the token that would follow it. The uniform numbers of acceptance are drawn even for rows that
    // are not reached and come again in the next step. Their key is the position at which the step begins, so no two
    // steps share a number.
    int32_t by_block(int64_t first, int64_t last) {
        double p = 1.0;  // the paper's p_j
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
            if (p == 0) break;  // p stays 0 for all further rows
            remember(step_.draft[row]);
        }
        forget();
        for (int64_t j = 0; j <= accepted; ++j) {
            const int64_t token = j < accepted ? step_.draft[first + j] : follower;
            if (!reported(program_) && !(program_.flags & kSurvivors)) {
                put(token);
                continue;
            }
            Target target(step_, first + j, state_, space_);  // once more, because the accepted tokens are known only now
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
    const Program &program_;  // of the first row; only what all rows share is read
    State state_;             // after the accepted drafts
    Workspace &space_;
    int64_t accepted_ = 0;
    bool rejected_ = false;
    std::vector<uint32_t> provisional_;
};

}  // namespace

void verify(const Step &step, int64_t request, Workspace &space) { Request(step, request, space).run(); }

}  // namespace tailrace
