// The check of a step's rows, before any backend reads them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "sample/sample.h"

namespace tailrace {
namespace {

void require_inside(const char *field, int64_t value, int64_t low, int64_t high, const char *what = nullptr) {
    if (value < low || value > high)
        throw FieldError(field, std::string(what ? what : field) + " must be in " + std::to_string(low) + " … " + std::to_string(high) +
                                    ", got " + std::to_string(value));
}

}  // namespace

void check(StepRows &step) {
    step.flags = step.top = 0;
    require_inside("start", step.start[0], 0, 0, "start[0]");
    require_inside("start", step.start[step.requests], step.rows, step.rows, "start[N]");
    for (int64_t i = 0; i < step.requests; ++i) {
        const int64_t first = step.start[i], last = step.start[i + 1] - 1;
        require_inside("rows", last - first + 1, 1, step.width, "the rows of a request");
        require_inside("start", last, 0, step.rows - 1);
        for (int64_t row = first; row <= last; ++row) {
            require_inside("source", step.source[row], 0, step.logits_rows - 1);
            require_inside("position", step.position[row], 0, std::numeric_limits<int64_t>::max());
            require_inside("slot", step.slot[row], 0, step.slots - 1);
            require_inside("slot", step.slot[row], step.slot[first], step.slot[first], "the slot of a request's rows");
            if (step.mask) require_inside("mask", step.mask[row], -1, step.num_masks - 1);
            if (step.companion) require_inside("companion", step.companion[row], -1, step.logits_rows - 1);
            if (step.companion && step.companion[row] >= 0 && !(step.scale[row] >= 0.0f && std::isfinite(step.scale[row])))
                throw FieldError("scale", "scale must be finite and at least 0, got " + std::to_string(step.scale[row]));
            if (row < last) require_inside("drafts", step.draft[row], 0, step.vocab - 1);
        }
        // The last row of a request samples the bonus token, which follows if all drafts are accepted. It has no draft.
        require_inside("draft", step.draft[last], -1, -1, "the draft of a bonus row");
        if (step.rule) require_inside("rule", step.rule[i], 0, static_cast<int64_t>(Rule::typical));
        const SlotNeeds &needs = step.needs[step.slot[first]];
        if (!(needs.flags & kTaken)) throw FieldError("slot", "slot " + std::to_string(step.slot[first]) + " is empty");
        step.flags |= needs.flags;
        step.top = std::max(step.top, needs.logprobs);
    }
}

}  // namespace tailrace
