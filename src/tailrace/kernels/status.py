"""What can be wrong with a row of logits. One code per row, the same in every backend and in csrc/argmax.cpp."""

OK = 0
EMPTY = 1  # every entry is −inf: nothing can be drawn
NAN = 2
INF = 3  # +inf: no distribution is defined
PROCESSOR = 4  # a custom processor raised; kernels never say so

NAMES = {EMPTY: "empty", NAN: "nan", INF: "inf", PROCESSOR: "processor"}  # for counters

MESSAGES = {
    EMPTY: "every token is masked or removed (all logits are -inf)",
    NAN: "the logits hold NaN",
    INF: "the logits hold +inf",
    PROCESSOR: "a custom processor failed (the server's log says how)",
}
