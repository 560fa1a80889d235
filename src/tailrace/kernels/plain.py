"""Plain tensors: those whose numbers lie in memory as the dtype says, so that a kernel may read them by address.

Other tensors have no memory of their own (sparse, nested, fake, functional), or mean something else than their memory
holds (quantised, lazily negated). Knows no operation.
"""

from __future__ import annotations

import torch

from tailrace.errors import ParameterError

DISPATCH_NAME = "__torch_dispatch__"
DISPATCH = getattr(torch.Tensor, DISPATCH_NAME)


def name_oddity(tensor: torch.Tensor) -> str:
    """Return why the tensor has no numbers in memory; "" if it has. A lazy negation or conjugation is no reason."""
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout}"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_quantized:
        return "a quantised tensor"
    if tensor.is_meta:
        return "a tensor on meta"
    if type(tensor) is not torch.Tensor and getattr(type(tensor), DISPATCH_NAME) is not DISPATCH:
        return f"a {type(tensor).__name__}"
    try:
        inside = tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        inside = False
    return "" if inside else "a tensor without memory of its own"


def make_plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if it is plain. A lazy negation or conjugation is carried out first.

    Args:
        name: of the argument.

    Raises:
        ParameterError: (a ValueError) the tensor's numbers are not in memory.
    """
    if oddity := name_oddity(tensor):
        raise ParameterError(f"{name} must be a dense tensor with numbers in memory, got {oddity}", name)
    return tensor.resolve_conj().resolve_neg()


def refuse_odd(**tensors: torch.Tensor | None) -> None:
    """Raise ParameterError for the first tensor, by its argument's name, that is not plain. None passes."""
    for name, tensor in tensors.items():
        if tensor is not None and not is_plain(tensor):
            oddity = name_oddity(tensor) or "one that is negated or conjugated lazily (resolve_neg, resolve_conj)"
            raise ParameterError(f"{name} must be a dense tensor with numbers in memory, got {oddity}", name)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a kernel may read the tensor by address."""
    return not (name_oddity(tensor) or tensor.is_neg() or tensor.is_conj())
