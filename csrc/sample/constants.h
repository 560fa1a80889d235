// Numbers that these kernels share with the reference sampler and the GPU's kernels. src/tailrace/kernels/constants.py
// explains each. The numbers are compared when the extension is loaded (src/tailrace/kernels/cpu/program.py).
#pragma once
#include <cstdint>

namespace tailrace {

// Streams of noise.
constexpr uint32_t kDrawStream = 0, kAcceptStream = 1, kResidualStream = 2, kXtcStream = 3, kDraftStream = 16, kBlockStream = 64;

// Rule typical.
constexpr double kTypicalEpsilon = 0.09, kTypicalDelta = 0.3;

// The share by which a sum or a probability may miss its bound.
constexpr double kTolerance = 0x1p-20;

// top_n_sigma.
constexpr double kSigmaSlack = 1.0 + 0x1p-10;

// adaptive_p.
constexpr double kAdaptivePeak = 5.0, kAdaptiveSharpness = 10.0, kAdaptiveWidth = 0.3;

// The largest noise of a token whose hot bit is not set.
constexpr double kColdNoise = 5.545;

// Flags of a program.
constexpr int32_t kGreedy = 1, kProcessed = 2, kEntropy = 4, kTaken = 8, kUnsupported = 16, kReported = 32, kStateful = 64, kCostly = 128,
                  kSurvivors = 256;

// The status of a request that is left to the reference sampler.
constexpr int32_t kFallsBack = -1;

}  // namespace tailrace
