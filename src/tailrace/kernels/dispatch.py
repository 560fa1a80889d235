"""Operation × backend → function, as a table of import strings, each resolved once.

A backend that is asked for by name and does not have the operation is an error. Without a name the device and dtype
choose: the first backend of `PREFERENCE` that has the operation for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from tailrace.errors import ConfigError

OPERATIONS = (
    "argmax",
    "pack_linear",
    "linear",
    "make_cache",
    "store_kv",
    "paged_attention",
    "rms_norm",
    "add_rms_norm",
    "rotary",
    "silu_mul",
    "philox",
    "gumbel",
    "words",
    "uniform",
    "sample_head",
)

# The module that holds an operation has the same name in every backend's folder.
MODULES = {
    "argmax": "argmax",
    "pack_linear": "linear",
    "linear": "linear",
    "make_cache": "attention",
    "store_kv": "attention",
    "paged_attention": "attention",
    "rms_norm": "norm",
    "add_rms_norm": "norm",
    "rotary": "rotary",
    "silu_mul": "activation",
    "philox": "noise",
    "gumbel": "noise",
    "words": "noise",
    "uniform": "noise",
    "sample_head": "head",
}

# backend -> operations it has; a hole is visible here
BACKENDS: dict[str, frozenset[str]] = {
    "reference": frozenset(OPERATIONS),
    "cpu": frozenset(OPERATIONS) - {"philox", "sample_head"},
    "gpu": frozenset(
        {"argmax", "make_cache", "store_kv", "paged_attention", "philox", "gumbel", "words", "sample_head"}
    ),
}

PREFERENCE: dict[str, tuple[str, ...]] = {"cpu": ("cpu", "reference"), "cuda": ("gpu", "reference")}
DTYPES: dict[str, frozenset[torch.dtype]] = {  # of the C++ kernels; argmax reads float16 too and checks for itself
    "cpu": frozenset({torch.bfloat16, torch.float32, torch.int64}),
}


@cache
def find(operation: str, backend: str) -> Callable[..., Any]:
    """The function of `operation` in `backend`.

    Raises:
        ConfigError: the backend is unknown or lacks the operation.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"unknown backend {backend!r}; there are {', '.join(BACKENDS)}")
    if operation not in BACKENDS[backend]:
        raise ConfigError(f"backend {backend!r} has no {operation}")
    return getattr(import_module(f"tailrace.kernels.{backend}.{MODULES[operation]}"), operation)


@cache
def choose(operation: str, device: str, dtype: torch.dtype) -> Callable[..., Any]:
    """The preferred function for tensors of this device type and dtype."""
    for backend in PREFERENCE.get(device, ("reference",)):
        if operation in BACKENDS[backend] and dtype in DTYPES.get(backend, frozenset({dtype})):
            return find(operation, backend)
    raise ConfigError(f"no backend has {operation} for {dtype} on {device}")
