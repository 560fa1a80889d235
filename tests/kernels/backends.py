"""Where a backend's tensors are; without a GPU its kernels run in Triton's interpreter (tests/conftest.py)."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    from kernels.interpreter import hasten

    hasten()

DEVICES = {"reference": "cpu", "cpu": "cpu", "gpu": "cuda" if torch.cuda.is_available() else "cpu"}
# on a GPU silence; numpy, in which the interpreter computes, speaks of what overflows to infinity
QUIET = pytest.mark.filterwarnings(
    "ignore:overflow encountered:RuntimeWarning",
    "ignore:divide by zero:RuntimeWarning",
    "ignore:invalid value:RuntimeWarning",
)
