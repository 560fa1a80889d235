"""The backends. Each one samples for the slots of one `Slots` and follows their changes (see base.py)."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from tailrace.errors import ParameterError
from tailrace.sampling.backends.base import Backend
from tailrace.sampling.backends.cpu import CPUBackend
from tailrace.sampling.backends.reference import ReferenceBackend
from tailrace.sampling.slots import Slots

BackendName = Literal["reference", "cpu", "gpu"]
NAMES = get_args(BackendName)


def name_for(name: BackendName | None, device: torch.device, names: tuple[BackendName, ...] = NAMES) -> BackendName:
    """Return the name of the backend that reads logits of this device.

    Args:
        name: the backend that was asked for; None: the device's own kernels.
        names: the backends that the caller has.

    Raises:
        ParameterError: the caller does not have this backend, or it does not read these logits.
    """
    if name is not None and (not isinstance(name, str) or name not in names):
        raise ParameterError(f"backend must be one of {', '.join(names)}, got {name!r}", "backend")
    found = name or ("cpu" if device.type == "cpu" else "gpu")
    if device.type not in ("cpu", "cuda") or (found == "cpu" and device.type != "cpu"):
        raise ParameterError(f"logits on {device} can't be read by backend {found}", "logits")
    return found


def backend_of(slots: Slots, name: BackendName, device: torch.device) -> Backend:
    """Return the slots' backend of this name. Create it at the first call."""
    if name == "gpu":
        return gpu_backend_of(slots, device)
    kind = CPUBackend if name == "cpu" else ReferenceBackend
    for observer in slots.observers:
        if isinstance(observer, kind):
            return observer
    made = kind(slots)
    slots.add_observer(made)
    return made


def gpu_backend_of(slots: Slots, device: torch.device) -> Backend:
    """Return the slots' backend on this GPU. Create it at the first call."""
    from tailrace.sampling.backends.gpu import GPUBackend  # imports Triton

    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    for observer in slots.observers:
        if isinstance(observer, GPUBackend) and observer.device == device:
            return observer
    made = GPUBackend(slots, device)
    slots.add_observer(made)
    return made
