"""The GPU kernels, in Triton.

With TRITON_INTERPRET=1 they run in Triton's interpreter on the CPU. So they are tested on machines without a GPU. A
kernel's grid follows from shapes alone, and no launch waits for the host.
"""

import os

from tailrace.base.extras import require_extra

require_extra("gpu")

# Fuse products and sums, as Triton did by default before 3.9. A change would change bits.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
