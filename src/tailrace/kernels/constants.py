"""Numbers that the reference sampler, the C++ kernels and the GPU's kernels share.

csrc/sample/constants.h has the numbers of this file under the same names. kernels/cpu/program.py compares the two when
it is loaded.
"""

# Streams of noise. Each use of noise has its own stream, so no draw depends on another.
DRAW_STREAM = 0  # A plain draw.
ACCEPT_STREAM = 1  # Acceptance of a draft.
RESIDUAL_STREAM = 2  # The draw from the remainder after a rejection.
XTC_STREAM = 3  # XTC's decision to remove tokens.
DRAFT_STREAM = 16  # DRAFT_STREAM + j, up to 47, is for draft j of a step.
BLOCK_STREAM = 64  # BLOCK_STREAM + j: rule block accepts draft j, at the step's first position.

# A draft is accepted under rule typical if its probability is above min(ε, δ · e^−H), as in Medusa (arXiv 2401.10774).
TYPICAL_EPSILON = 0.09
TYPICAL_DELTA = 0.3

# A sum that should reach a bound, and a probability that should be no smaller than a bound, may miss the bound by this
# share. Probabilities of 0.4, 0.3, 0.2 and 0.1 then reach 0.7 with two tokens, whatever the last bits of their sums.
# The share exceeds the relative error of any backend's sums of float32 weights (decision 0075).
TOLERANCE = 2.0**-20

# top_n_sigma multiplies n · σ by this number. It exceeds the relative error of any backend's σ.
SIGMA_SLACK = 1.0 + 2.0**-10

# adaptive_p: l' = PEAK − SHARPNESS · d² / (1 + d), d = |p − aim| / WIDTH
ADAPTIVE_PEAK = 5.0
ADAPTIVE_SHARPNESS = 10.0
ADAPTIVE_WIDTH = 0.3

# The noise of a token whose hot bit is not set is at most this (kernels/reference/noise.py).
COLD = 5.545

# Flags of a program.
GREEDY = 1
PROCESSED = 2  # Logprobs are those of the processed distribution.
ENTROPY = 4  # Entropies are reported.
TAKEN = 8  # The slot is occupied.
UNSUPPORTED = 16  # The program needs a method that the kernels do not have.
REPORTED = 32  # Logprobs or entropies are reported.
STATEFUL = 64  # A stage has a state that follows the drawn tokens.
COSTLY = 128  # The stages may take long, so the time is measured.
SURVIVORS = 256  # The survivors are reported.

# The status of a request that is left to the reference sampler.
FALLS_BACK = -1
