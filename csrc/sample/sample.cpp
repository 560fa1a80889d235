#include "sample/sample.h"

#include <algorithm>
#include <ctime>

#include "base/pool.h"
#include "sample/target.h"
#include "sample/verify.h"

namespace tailrace {
namespace {

// Return the processor time that this thread has used.
double thread_seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

void sample(const Step &step) {
    std::fill(step.token_ids, step.token_ids + step.requests * step.width, int64_t{-1});
    Pool::instance().run(step.requests, [&](int64_t i) {
        Workspace &space = Workspace::mine();
        space.fit(step.vocab);
        const bool noted = step.seconds && (step.program_of(step.start[i]).flags & kCostly);
        const double begun = noted ? thread_seconds() : 0.0;
        verify(step, i, space);
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
