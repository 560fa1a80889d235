"""The type codes of csrc/kernels.h."""

from __future__ import annotations

import torch

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
