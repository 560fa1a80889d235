// Verification of drafts: which drafts of a request are accepted, and which token follows.
#pragma once
#include "sample/sample.h"
#include "sample/workspace.h"

namespace tailrace {

// Sample one request of the step, whose rows' drafts are accepted or rejected by the request's rule. Write its tokens,
// status and reports. src/tailrace/sampling/verify.py is the specification.
void verify(const Step &step, int64_t request, Workspace &space);

}  // namespace tailrace
