"""The C++ backend: each file checks shapes and dtypes and hands addresses to `tailrace._cpu`.

Starts with torch's number of threads (OMP_NUM_THREADS, torch.set_num_threads); kernels.set_num_threads changes it.
"""

import torch

from tailrace import _cpu

_cpu.set_num_threads(torch.get_num_threads())
