// Where the states of a batch's sequences are in memory (src/tailrace/kernels/walk.py): the state after p tokens of a
// slot is in entry p mod rows of the slot's ring.
#pragma once
#include <cstdint>

namespace tailrace {

struct Ring {
    const int64_t *starts;  // [sequences + 1], the tokens of each sequence in the batch
    const int64_t *first;   // the position of each sequence's first token
    const int64_t *slots;
    int64_t sequences, rows;

    int64_t count(int64_t i) const { return starts[i + 1] - starts[i]; }
    // Return the entry of the state before the sequence's token j.
    int64_t entry(int64_t i, int64_t j) const { return slots[i] * rows + (first[i] + j) % rows; }
    // Return whether the state after token j is written to memory.
    bool keeps(int64_t i, int64_t j) const { return j + 1 > count(i) - rows; }
};

}  // namespace tailrace
