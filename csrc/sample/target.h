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

// What will be asked of a row besides a draw; not of greedy ones. `masses`: the probability of single tokens, so the
// candidates must be there.
struct Asked {
    bool masses = false, entropy = false;
};

class Target {
  public:
    Target(const Step &step, int64_t row, const State &state, Workspace &space);
    Target(const Target &) = delete;  // row_ may point at edits_

    // The pass over the row and the refinements; a Status.
    int32_t prepare(Asked asked);

    // What plain sampling takes: the forced token, or the drawn one.
    int64_t token();
    // Drawn with the stream's noise, without `excluded`; kNobody if there is no other. After `subtract`: of what that
    // left.
    int64_t winner(uint32_t stream, int64_t excluded);
    // What is drawn from is written out, and the token is where u in (0, 1) lies in it; kNobody if all of it is too
    // small for floats. Needs Asked::masses. What else is asked comes after `restore`.
    int64_t propose(double u, Written to);
    // Of one token, under what is drawn from. Needs Asked::masses.
    double probability(int64_t token);
    // Of what is drawn from, nats. Needs Asked::entropy.
    double entropy();
    // What is drawn from becomes the positive part of scale · p − q; returns its sum. q [V] are probabilities. Needs
    // Asked::masses.
    double subtract(const float *q, double scale);
    // What `subtract` has spent is there again.
    void restore() {
        remainder_.reset();
        if (spent_) select(false);
    }
    // What the state of the program is updated with if the token stands: ln of its probability among those that its
    // method looks at; NaN: nothing.
    double update_of(int64_t token) const;
    // The ids that have survived, ascending; the token alone where there was no choice. Before `describe`, which may
    // need their memory.
    void survivors(int64_t token, std::vector<int32_t> &out);
    void describe(int64_t token, const Report &report, double *entropy);

  private:
    bool greedy() const { return program_.flags & kGreedy; }
    // They are to be told, and there are more than the token.
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
    Edit edits_[kMaxEdits + 1];  // filled where the row has a mask: that one, then the program's
    Candidates candidates_;
    std::optional<RowRemainder> remainder_;  // of a row that nothing truncates, after `subtract`
    Scan scan_;
    double temperature_ = 1.0, mass_temperature_ = 0.0;
    float floor_ = 0;
    uint32_t hot_stream_ = kDrawStream;  // whose hot bits scan_ has, if untruncated_
    bool untruncated_ = false;           // only a temperature: nothing is removed
    bool spent_ = false;                 // the candidates have been made into something else
    bool flat_ = false;                 // there are so many candidates that they were not collected
    Boundary boundary_{};                // then, once a token has been drawn: where they end
};

}  // namespace tailrace
