"""Where a backend's tensors are; without a GPU its kernels run in Triton's interpreter (tests/conftest.py)."""

from __future__ import annotations

import torch

DEVICES = {"reference": "cpu", "cpu": "cpu", "gpu": "cuda" if torch.cuda.is_available() else "cpu"}
