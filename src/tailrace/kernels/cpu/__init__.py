"""The C++ backend: each file checks shapes and dtypes and passes addresses to `tailrace._cpu`.

The number of threads is torch's at first (OMP_NUM_THREADS, torch.set_num_threads). kernels.set_num_threads changes it.
"""

import os

import torch

from tailrace import _cpu


def set_num_threads(threads: int) -> None:
    """Set the number of threads of the kernels, the calling one included. They may use every core of the process."""
    if threads > 1 and os.environ.get("OMP_PROC_BIND", "false").lower() != "false":
        torch.zeros(1 << 17).add_(1)  # starts OpenMP's threads: with OMP_PROC_BIND each of them knows one core only
    _cpu.set_num_threads(threads)


set_num_threads(torch.get_num_threads())
