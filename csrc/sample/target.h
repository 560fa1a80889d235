// One row's distribution: read once, refined as far as its request asks, then drawn from as often as the rule needs.
#pragma once
#include <optional>

#include "sample/draw.h"
#include "sample/logprobs.h"
#include "sample/refine.h"
#include "sample/remainder.h"
#include "sample/sample.h"

namespace tailrace {

inline bool reported(const Program &program) { return program.logprobs >= 0 || (program.flags & kEntropy); }

// What will be asked of a row besides a draw. Nothing is asked of greedy rows. `masses`: the probability of single
// tokens, which needs the candidates.
struct Asked {
    bool masses = false, entropy = false;
};

class Target {
  public:
    Target(const Step &step, int64_t row, const State &state, Workspace &space);
    Target(const Target &) = delete;  // row_ may point at edits_

    // Pass over the row and refine it. Return a Status.
    int32_t prepare(Asked asked);

    // Return the token of plain sampling: the forced one, or a drawn one.
    int64_t token();
    // Draw a token other than `excluded` with the stream's noise, after `subtract` from the remainder. Return kNobody
    // if there is no such token.
    int64_t winner(uint32_t stream, int64_t excluded);
    // Write the distribution out. Return the token at which u in (0, 1) lies in it, or kNobody if all probabilities are
    // too small for floats. Needs Asked::masses. Call `restore` before any other method.
    int64_t propose(double u, Written to);
    // Return the probability of a token under the distribution. Needs Asked::masses.
    double probability(int64_t token);
    // Return the entropy of the distribution in nats. Needs Asked::entropy.
    double entropy();
    // Replace the distribution p by the positive part of scale · p − q. Return its sum. q [V] are probabilities. Needs
    // Asked::masses.
    double subtract(const float *q, double scale);
    // Undo `subtract` or `propose`.
    void restore() {
        remainder_.reset();
        if (spent_) select(false);
    }
    // Return the number that updates the program's state if the token is accepted: ln of the token's probability among
    // the tokens that the method looks at. NaN: the state does not change.
    double update_of(int64_t token) const;
    // Write the ids that survived, ascending. Write the token alone if there was no choice. Call this before
    // `describe`, which may need the memory of the candidates.
    void survivors(int64_t token, std::vector<int32_t> &out);
    void describe(int64_t token, const Report &report, double *entropy);

  private:
    bool greedy() const { return program_.flags & kGreedy; }
    // Return whether the survivors are to be reported, and the token is not the only one.
    bool wants_survivors() const { return (program_.flags & kSurvivors) && !greedy() && program_.forced < 0; }
    int64_t likeliest() const;
    Noise noise(uint32_t stream) const {
        return {static_cast<uint64_t>(program_.key), static_cast<uint64_t>(position_), stream};
    }
    Context context() const { return {program_, row_, scan_, state_, position_, mass_temperature_, space_}; }
    void select(bool lazy);
    void collect_from(float floor);
    void everything();
    Mass moments(double mass);

    const Program &program_;
    const State &state_;
    int64_t position_;
    Workspace &space_;
    Row row_;
    Edit edits_[kMaxEdits + 1];  // filled if the row has a mask: the mask, then the program's edits
    Candidates candidates_;
    std::optional<RowRemainder> remainder_;  // after `subtract`, if nothing truncates the row
    Scan scan_;
    double temperature_ = 1.0, mass_temperature_ = 0.0;
    float floor_ = 0;
    uint32_t hot_stream_ = kDrawStream;  // the stream of scan_'s hot bits, if untruncated_
    bool untruncated_ = false;           // only a temperature: nothing is removed
    bool spent_ = false;                 // the candidates have been overwritten
    bool flat_ = false;                 // there are too many candidates to collect them
    Boundary boundary_{};                // if flat_ and a token was drawn: the last candidate
};

}  // namespace tailrace
