"""Records a step's calls of kernels and of torch, with the addresses that the calls read and write."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tailrace import _cpu
from tailrace.kernels.cpu.launch import Call
from tailrace.kernels.types import CODES

SMALLEST = 12  # log2 of a piece's bytes
LARGEST_CONSTANT = 1 << 20  # bytes of a result that is kept from step to step
# The result depends on more than the arguments' addresses.
NOT_REPEATABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)
aten = torch.ops.aten
EMPTY = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default}
COPIES = {
    aten._to_copy.default,
    aten.to.dtype,
    aten.type_as.default,
    aten.clone.default,
    aten.contiguous.default,
}


class NotRepeatableError(RuntimeError):
    """A call's result depends on more than the data at its arguments' addresses."""


class HostReads(TorchFunctionMode):
    """Refuses functions that pass a tensor's values to Python without a call that StepRecorder sees.

    Raises:
        NotRepeatableError: in such a call.
    """

    reads = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.reads:
            raise NotRepeatableError(f"{func.__name__} reads tensors on the host")
        return func(*args, **(kwargs or {}))


class StepMemory:
    """Pieces of memory that come back when the last tensor on them is gone, and stay allocated."""

    def __init__(self) -> None:
        self.pieces: dict[int, torch.Tensor] = {}  # by address
        self.free: dict[int, list[torch.Tensor]] = {}  # by size

    def allocate_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape, strides and dtype on a piece that nobody else has."""
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = 1 << max(SMALLEST, (max(extent, 1) * tensor.itemsize - 1).bit_length())
        free = self.free.setdefault(size, [])
        piece = free.pop() if free else torch.empty(size, dtype=torch.uint8)
        self.pieces[piece.data_ptr()] = piece
        owner = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(piece.data_ptr()))  # the finalizer has piece
        weakref.finalize(owner, free.append, piece).atexit = False
        whole = torch.from_numpy(owner).view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride())

    def view_unowned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the same tensor; if it lies on a piece, the piece comes back all the same."""
        piece = self.pieces.get(tensor.untyped_storage().data_ptr())
        if piece is None:
            return tensor
        return piece.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@cache
def out_variant(op: Any) -> tuple[Any, str] | None:
    """Return the overload that takes the same arguments and writes its result to one more, and that one's name."""
    wanted = [(each.name, str(each.type)) for each in op._schema.arguments]
    packet = op.overloadpacket
    for other in (getattr(packet, name) for name in packet.overloads()):
        arguments = other._schema.arguments
        outs = [each.name for each in arguments if each.is_out]
        if len(outs) == 1 and [(each.name, str(each.type)) for each in arguments if not each.is_out] == wanted:
            return other, outs[0]
    return None


def is_repeatable(op: Any, args: Any, made: list[Any]) -> bool:
    """Return True if the same call always has results of the same shapes, all of them tensors."""
    if op is aten.index.Tensor:  # x[indices]; the tags speak of masks
        return all(each is None or each.dtype == torch.int64 for each in args[1])
    return all(isinstance(each, torch.Tensor) for each in made) and not any(tag in op.tags for tag in NOT_REPEATABLE)


def collect_tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def get_address(tensor: torch.Tensor) -> int:
    """Return the address of the tensor's memory."""
    return tensor.untyped_storage().data_ptr()


def find_written(func: Any, args: Any, kwargs: Any) -> set[int]:
    """Return the addresses of the memory that a call writes to."""
    given = {each.name: value for each, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    names = [each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    return {get_address(each) for each in collect_tensors([given.get(name) for name in names])}


def own_add(x: Any, delta: Any, place: torch.Tensor) -> Call | None:
    """Return our own addition of two contiguous tensors of one shape, both float32 or bfloat16; None for any other. The
    bits are the same. torch's takes longer to begin than a step's few rows take."""
    if not isinstance(delta, torch.Tensor) or (delta.shape, delta.dtype) != (x.shape, x.dtype):
        return None
    kept = (x, delta, place)
    if x.dtype not in (torch.float32, torch.bfloat16) or not all(each.is_contiguous() for each in kept):
        return None
    width = x.shape[-1] if x.dim() else 1
    sizes = (x.numel() // max(1, width), width)
    call = partial(_cpu.add, x.data_ptr(), delta.data_ptr(), CODES[x.dtype], *sizes, place.data_ptr())
    call.kept = kept  # type: ignore[attr-defined]  # what lies at the addresses
    return call


def refill_results(pairs: Iterable[tuple[torch.Tensor, int]], op: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Put an operation's results where they were before. pairs: place, and which of the results."""
    results = collect_tensors(op(*args, **kwargs))
    for place, index in pairs:
        place.copy_(results[index])


class StepRecorder(TorchDispatchMode):
    """Notes torch's calls of this thread in `calls`. Their results lie in `memory`.

    A call that reads constants alone is made once: `repeated` leaves it out, unless a later call writes to its result.
    The results must live as long as the calls: `kept`.

    Args:
        constants: tensors that no step changes, such as a model's parameters.

    Raises:
        NotRepeatableError: see there.
    """

    def __init__(self, memory: StepMemory, calls: list[Call], constants: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.memory, self.calls = memory, calls
        self.constants = {get_address(each) for each in constants} - {0}
        self.once: dict[int, int] = {}  # address of a constant result → its call
        self.kept: list[torch.Tensor] = []

    @property
    def repeated(self) -> list[Call]:
        """Return the calls that every step makes."""
        once = set(self.once.values())
        return [call for at, call in enumerate(self.calls) if at not in once]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        made = tree_leaves(result)
        given = set(map(get_address, collect_tensors((args, kwargs))))
        fresh = [
            at for at, each in enumerate(made) if not isinstance(each, torch.Tensor) or get_address(each) not in given
        ]
        later = partial(tree_map_only, torch.Tensor, self.memory.view_unowned)
        if fresh and not is_repeatable(func, args, made):
            raise NotRepeatableError(f"{func} reads tensors on the host")
        if func._schema.is_mutable:
            if fresh:
                raise NotRepeatableError(f"{func} both writes and makes tensors")
            self.calls.append(partial(func, *later(args), **later(kwargs)))
            self._forget_constants(find_written(func, args, kwargs))
            return result
        if not fresh:  # a view
            return result
        constant = func not in EMPTY and given and given <= self.constants
        if constant and sum(each.nbytes for each in made) <= LARGEST_CONSTANT:
            places = {at: made[at] for at in fresh}  # the memory of other results is used several times in a step
            self._keep_constants(list(places.values()))
        else:
            places = {at: self.memory.allocate_like(made[at]) for at in fresh}
            for at, place in places.items():
                place.copy_(made[at])
        if func not in EMPTY:
            unowned = {at: self.memory.view_unowned(place) for at, place in places.items()}
            self.calls.append(self._make_call(func, later((args, kwargs)), unowned))
        order = iter(range(len(made)))
        return tree_map_only(torch.Tensor, lambda each: places.get(next(order), each), result)

    def _keep_constants(self, results: list[torch.Tensor]) -> None:
        """Keep the results of the next call, which are constants."""
        self.kept += results
        self.constants.update(map(get_address, results))
        self.once |= dict.fromkeys(map(get_address, results), len(self.calls))

    def _forget_constants(self, written: set[int]) -> None:
        """Repeat the calls whose results are written to."""
        self.constants -= written
        again = {self.once[address] for address in written & self.once.keys()}
        self.once = {address: call for address, call in self.once.items() if call not in again}

    def _make_call(self, func: Any, given: tuple[Any, Any], places: dict[int, torch.Tensor]) -> Call:
        """Return the call that writes to the same places."""
        args, kwargs = given
        if func is aten.add.Tensor and not kwargs and (own := own_add(args[0], args[1], places[0])) is not None:
            return own
        variant = out_variant(func) if len(places) == 1 else None
        if variant is not None:
            op, name = variant
            return partial(op, *args, **kwargs, **{name: places[0]})
        if func in COPIES:
            return partial(places[0].copy_, args[0])
        if func is aten.reshape.default and places[0].is_contiguous():
            return partial(places[0].view(args[0].shape).copy_, args[0])
        return partial(refill_results, [(place, at) for at, place in places.items()], func, args, kwargs)
