"""The errors of a row of logits. Each row has one code, the same in every backend and in csrc/sample/argmax.cpp."""

OK = 0
EMPTY = 1  # every entry is −inf, so no token can be drawn
NAN = 2
INF = 3  # +inf: no distribution is defined
PROCESSOR = 4  # a custom processor failed; no kernel sets it, nor FAILED
FAILED = 5  # the reference backend raised on this request

NAMES = {EMPTY: "empty", NAN: "nan", INF: "inf", PROCESSOR: "processor", FAILED: "failed"}  # for counters

MESSAGES = {
    EMPTY: "every token is masked or removed (all logits are -inf)",
    NAN: "the logits hold NaN",
    INF: "the logits hold +inf",
    PROCESSOR: "a custom processor failed (the server's log says how)",
    FAILED: "the sampler failed on this request (the log says how)",
}
