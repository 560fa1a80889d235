"""The GPU kernels, in Triton. With TRITON_INTERPRET=1 they run in its interpreter on the CPU: that is how they are
tested where there is no GPU. Every kernel is launched with a grid that the shapes alone decide, and waits for nothing
on the host."""

import os

from tailrace.extras import needs

needs("gpu")

# What it was before Triton 3.9, which asks to be told: products and sums fused. A change would change bits.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
