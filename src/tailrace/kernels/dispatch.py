"""Operation × backend → function, as one table of modules. Each function is resolved once.

A backend that is requested by name must have the operation; otherwise ConfigError is raised. Without a name, the device
and dtype decide: the first backend of `PREFERENCE` that has the operation for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from tailrace.errors import ConfigError

REFERENCE = frozenset({"reference"})  # it has every operation on tensors
ON_CPU, ON_GPU = REFERENCE | {"cpu"}, REFERENCE | {"gpu"}
ALL = ON_CPU | ON_GPU
ONLY_CPU = frozenset({"cpu"})  # formats of files; tests compare with the package gguf
BACKENDS = ("reference", "cpu", "gpu")

# operation → its module, which has the same name in the folder of every backend, and the backends that have it
OPERATIONS: dict[str, tuple[str, frozenset[str]]] = {
    "argmax": ("argmax", ALL),
    "pack_linear": ("linear", ALL),
    "linear": ("linear", ALL),
    "pack_quantized": ("quantized", ONLY_CPU),
    "joined": ("quantized", ONLY_CPU),
    "quantized_rows": ("quantized", ONLY_CPU),
    "make_cache": ("attention", ALL),
    "make_quantized_cache": ("attention", ON_CPU),
    "store_kv": ("attention", ALL),
    "paged_attention": ("attention", ALL),
    "rms_norm": ("norm", ALL),
    "add_rms_norm": ("norm", ALL),
    "rotary": ("rotary", ALL),
    "silu_mul": ("activation", ALL),
    "sum_rows": ("reduced", ON_GPU),
    "bmm": ("products", ON_GPU),
    "pack_grouped": ("products", ALL),
    "grouped_linear": ("products", ALL),
    "group_packed": ("products", ONLY_CPU),
    "scan_heads": ("scans", ALL),
    "scan_channels": ("scans", ALL),
    "convolve": ("scans", ALL),
    "philox": ("noise", ON_GPU),
    "gumbel": ("noise", ALL),
    "words": ("noise", ALL),
    "uniform": ("noise", ON_CPU),
    "sample_head": ("head", ON_GPU),
}

PREFERENCE: dict[str, tuple[str, ...]] = {"cpu": ("cpu", "reference"), "cuda": ("gpu", "reference")}
DTYPES: dict[str, frozenset[torch.dtype]] = {  # of the C++ kernels; argmax also reads float16 and checks for itself
    "cpu": frozenset({torch.bfloat16, torch.float32, torch.int64}),
}


@cache
def find(operation: str, backend: str) -> Callable[..., Any]:
    """Return the function of `operation` in `backend`.

    Raises:
        ConfigError: the backend is unknown or lacks the operation.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"unknown backend {backend!r}; there are {', '.join(BACKENDS)}")
    module, backends = OPERATIONS.get(operation, ("", frozenset()))
    if backend not in backends:
        raise ConfigError(f"backend {backend!r} has no {operation}")
    return getattr(import_module(f"tailrace.kernels.{backend}.{module}"), operation)


@cache
def choose(operation: str, device: str, dtype: torch.dtype) -> Callable[..., Any]:
    """Return the preferred function for tensors of this device type and dtype. ConfigError: no backend has one."""
    for backend in PREFERENCE.get(device, ("reference",)):
        if backend in OPERATIONS[operation][1] and dtype in DTYPES.get(backend, frozenset({dtype})):
            return find(operation, backend)
    raise ConfigError(f"no backend has {operation} for {dtype} on {device}")
