"""Safetensors files: what they hold, read from their headers, and files written one tensor after the other. Imports
neither torch nor numpy.

The format (github.com/huggingface/safetensors): eight bytes of length, JSON with each tensor's dtype, shape and place,
then the data without gaps.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.base.stand_ins import refuse_stand_in
from tailrace.errors import ModelLoadError

SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
FLOATS = ("F64", "F32", "F16", "BF16")  # loaded in the requested dtype; other dtypes do not change
QUANTIZED = re.compile(r"scale|zero|qweight|packed|absmax|quant|g_idx|codebook|_data$")  # in a tensor's name
BLOCKS_METHOD = "tailrace"  # `quant_method` in the config.json of a folder whose matrices are in blocks
SIZES |= dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1)


MAX_HEADER = 100_000_000  # bytes, as in the format's own reader
MAX_DIMENSIONS, MAX_DIMENSION = 64, 2**40


class FileTensor(NamedTuple):
    """A tensor of a file. start: the offset of its data in the file; size: in bytes."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


class NewTensor(NamedTuple):
    """A tensor to be written. data: its bytes, in pieces, made when they are written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], Iterable[bytes | memoryview]]


def index_tensors(path: Path) -> dict[str, FileTensor]:
    """Return the tensors of a safetensors file, by name.

    Raises:
        ModelLoadError: the file is damaged; the sentence names the tensor.
    """
    refuse_stand_in(path)
    try:
        whole = path.stat().st_size
        with path.open("rb") as file:
            if whole < 8:
                raise ValueError(f"it has {whole} bytes, and a header alone has more")
            (length,) = struct.unpack("<Q", file.read(8))
            if length > whole - 8:
                raise ValueError(f"its header should have {length} bytes, and the file has {whole}")
            if length > MAX_HEADER:
                raise ValueError(f"its header has {length} bytes, and the format allows {MAX_HEADER}")
            header = json.loads(file.read(length), parse_constant=no_number, object_pairs_hook=refuse_twins)
        header.pop("__metadata__", None)
        found = {name: parse_entry(path, name, fields, (8 + length, whole)) for name, fields in header.items()}
        refuse_gaps(path, list(found.values()), whole - 8 - length)
        return found
    except ModelLoadError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error


def has_plain_floats(paths: Iterable[Path]) -> bool:
    """Return True if every matrix of the files is a float, and no tensor has a name that only quantized models have."""
    tensors = [tensor for path in paths for tensor in index_tensors(path).values()]
    matrices = [tensor.dtype for tensor in tensors if len(tensor.shape) > 1]
    floats = bool(matrices) and all(dtype in FLOATS for dtype in matrices)
    return floats and not any(QUANTIZED.search(tensor.name) for tensor in tensors)


def parse_entry(path: Path, name: str, fields: dict[str, list[int]], ends: tuple[int, int]) -> FileTensor:
    """Return one tensor. ends: where the data begin and the file ends."""
    dtype, shape = str(fields["dtype"]), tuple(fields["shape"])
    first, last = fields["data_offsets"]
    sized = len(shape) <= MAX_DIMENSIONS and all(type(size) is int and 0 <= size <= MAX_DIMENSION for size in shape)
    if not sized or type(first) is not int or type(last) is not int or not 0 <= first <= last:
        raise ModelLoadError(f"{path} is damaged: tensor {name:.200} has shape {shape!s:.200} at {first} … {last}")
    if dtype in SIZES and last - first != prod(shape) * SIZES[dtype]:
        raise ModelLoadError(f"{path} is damaged: tensor {name} of {dtype} {shape} has {last - first} bytes")
    if ends[0] + last > ends[1]:
        raise ModelLoadError(f"{path} is cut short: tensor {name} ends at byte {ends[0] + last} of {ends[1]}")
    return FileTensor(path, name, dtype, shape, ends[0] + first, last - first)


def refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict. Raise ValueError if a name occurs twice: readers disagree on which
    one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"its header has {twin!r:.200} twice")
    return found


def no_number(name: str) -> None:
    """Raise ValueError: JSON has no such number."""
    raise ValueError(f"its header has {name}, which is no JSON")


def refuse_gaps(path: Path, tensors: list[FileTensor], size: int) -> None:
    """Raise ModelLoadError unless the tensors fill the file's `size` bytes of data, none of them twice."""
    placed = sorted((tensor for tensor in tensors if tensor.size), key=lambda tensor: tensor.start)
    for one, other in itertools.pairwise(placed):
        if one.start + one.size > other.start:
            raise ModelLoadError(f"{path} is damaged: tensors {one.name} and {other.name} overlap")
    if (missing := size - sum(tensor.size for tensor in placed)) > 0:
        raise ModelLoadError(f"{path} is damaged: {missing} bytes of it belong to no tensor")


def write_tensors(path: Path, tensors: list[NewTensor], done: Callable[[int], None]) -> None:
    """Write a safetensors file; only a piece of a tensor is in memory at once. done: called with the number of tensors
    written so far. Wider types come first, so that all are aligned.

    Raises:
        ModelLoadError: the disk has too little room, or a tensor's dtype is not known here.
    """
    if unknown := next((tensor for tensor in tensors if tensor.dtype not in SIZES), None):
        raise ModelLoadError(f"tensor {unknown.name} is {unknown.dtype}, which is not read")
    tensors = sorted(tensors, key=lambda tensor: -SIZES[tensor.dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        size = prod(tensor.shape) * SIZES[tensor.dtype]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if (free := shutil.disk_usage(path.parent).free) < at:
        raise ModelLoadError(
            f"the disk of {path.parent} has {free >> 20} MiB left, and {(at >> 20) + 1} MiB are needed"
        )
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for count, tensor in enumerate(tensors, 1):
            written = sum(file.write(piece) for piece in tensor.data())
            if written != prod(tensor.shape) * SIZES[tensor.dtype]:
                raise ValueError(f"{tensor.name}: {written} bytes for {tensor.dtype} {tensor.shape}")
            done(count)
