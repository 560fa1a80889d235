"""Reads the headers of a model's GGUF files, and checks that the files are whole: every count, length and place against
the file's size.

The package gguf reads the files afterwards. Its errors for a damaged file are numpy's. Part of convert.py's process.

The format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tailrace.errors import ModelLoadError
from tailrace.models.gguf import list_parts

VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # struct's letters
UINT32, STRING, ARRAY = 4, 8, 9
VERSIONS = (2, 3)
LEAST_FIELD, LEAST_TENSOR = 13, 32  # bytes: an empty name, a type, a value; a name, dimensions, a type and a place
MOST_DIMENSIONS = 4
NOT_ZERO = ("block_count", "embedding_length", "context_length")


class TensorPlace(NamedTuple):
    """Where a tensor is. offset: relative to the beginning of all data. size: in bytes."""

    name: str
    offset: int
    size: int


class Cursor:
    """A position in a file's header. what: the part that is being read, for errors."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.what = data, 0, "its header"

    def skip_bytes(self, size: int) -> int:
        """Skip `size` bytes. Return their first position.

        Raises:
            ModelLoadError: the file ends within these bytes.
        """
        if size > len(self.data) - self.at:
            raise ModelLoadError(f"the file ends at byte {len(self.data)}, within {self.what}")
        self.at += size
        return self.at - size

    def number(self, letter: str) -> int:
        return struct.unpack_from(f"<{letter}", self.data, self.skip_bytes(struct.calcsize(f"<{letter}")))[0]

    def count(self, letter: str, least: int, of: str) -> int:
        """Read a number of entries. least: the smallest size of an entry in bytes.

        Raises:
            ModelLoadError: the file has no room for the entries.
        """
        count = self.number(letter)
        if count * least > len(self.data) - self.at:
            raise ModelLoadError(f"{self.what} says that there are {count} {of}, and the file has no room for them")
        return count

    def text(self) -> str:
        size = self.count("Q", 1, "characters")
        at = self.skip_bytes(size)
        return self.data[at : at + size].decode(errors="replace")

    def value(self, kind: int, inside: bool = False) -> int | None:
        """A field's value: a number, or None of other kinds."""
        if kind in VALUES:
            return self.number(VALUES[kind])
        if kind == STRING:
            self.skip_bytes(self.count("Q", 1, "characters"))
        elif kind == ARRAY and not inside:
            kind = self.number("I")
            size = struct.calcsize(VALUES[kind]) if kind in VALUES else 8
            count = self.count("Q", size, "entries")
            if kind in VALUES:
                self.skip_bytes(count * size)
            else:
                for _ in range(count):
                    self.value(kind, inside=True)
        else:
            raise ModelLoadError(f"{self.what} is of the unknown type {kind}")
        return None


def check_layout(path: Path) -> None:
    """Raise ModelLoadError if the file, or one of the files that it is split into, does not hold what its header
    states. The error names the fault and the place."""
    parts, tensors, sizes = list_parts(path), 0, list[tuple[str, int | None]]()
    for part in parts:
        try:
            tensors += check_part(part, sizes)
        except ModelLoadError as error:
            raise error if len(parts) == 1 else ModelLoadError(f"{part.name}: {error}") from error
    if not tensors:
        raise ModelLoadError("the file has no tensors: it holds a vocabulary or settings alone, not a model")
    for name, value in sizes:
        check_field(name, value, tensors)


def check_part(path: Path, sizes: list[tuple[str, int | None]]) -> int:
    """Check one file. Add its fields that are numbers to `sizes`, and return the number of its tensors.

    Raises:
        ModelLoadError: see check_layout.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = Cursor(data)
        cursor.skip_bytes(4)  # gguf.py has seen the magic
        check_version(cursor.number("I"))
        tensors = cursor.count("Q", LEAST_TENSOR, "tensors")
        alignment, names = 32, list[str]()
        for _ in range(cursor.count("Q", LEAST_FIELD, "fields")):
            cursor.what = "the name of a field"
            name = cursor.text()
            cursor.what = f"the field {name:.80}"
            kind = cursor.number("I")
            value = cursor.value(kind)
            if name == "general.alignment":
                alignment = checked_alignment(kind, value)
            if not name.startswith("clip."):  # a projector is refused by its type
                sizes.append((name, value))
            names.append(f"field {name}")
        places = [read_place(cursor) for _ in range(tensors)]
        check_places(places, -(-cursor.at // alignment) * alignment, alignment, len(data))
    check_names([*names, *(f"tensor {place.name}" for place in places)])
    return tensors


def check_places(places: list[TensorPlace], begin: int, alignment: int, length: int) -> None:
    """Check that tensors lie one behind the other, as llama.cpp wants them. begin: of all data. length: of the file.

    Raises:
        ModelLoadError: the file ends before a tensor does, or tensors overlap or leave a gap.
    """
    free = 0
    for name, offset, size in places:
        if begin + offset + size > length:
            raise ModelLoadError(
                f"the file ends at byte {length}, and tensor {name} at byte {begin + offset + size}: it is cut short"
            )
        if offset != free:
            raise ModelLoadError(
                f"tensor {name:.80} begins at byte {offset} of the data, and byte {free} is the next one"
            )
        free += -(-size // alignment) * alignment


def check_names(names: list[str]) -> None:
    """Raise ModelLoadError if a field or a tensor occurs twice."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ModelLoadError(f"the {twice[0]:.80} occurs twice")


def check_version(version: int) -> None:
    """Raise ModelLoadError for an unsupported version. In a file for big-endian machines the number is reversed."""
    read = " and ".join(map(str, VERSIONS))
    reversed_version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in VERSIONS and reversed_version in VERSIONS:
        raise ModelLoadError("the file is for big-endian machines: convert it again without --bigendian")
    if version not in VERSIONS:
        raise ModelLoadError(f"version {version} of GGUF is not read, only {read}")


def checked_alignment(kind: int, value: Any) -> int:
    """Return the number of bytes at whose multiples tensors begin.

    Raises:
        ModelLoadError: it is not a power of two in 32 bits without a sign.
    """
    if kind != UINT32 or value <= 0 or value & (value - 1):
        raise ModelLoadError(
            f"the field general.alignment must be a power of two of GGUF's type uint32, got {value!s:.80}"
            + ("" if kind == UINT32 else f" of type {kind}")
        )
    return value


def check_field(name: str, value: int | None, tensors: int) -> None:
    """Raise ModelLoadError for a number of layers that does not fit the number of tensors, which transformers would
    all make, and for sizes of 0."""
    kind = name.rpartition(".")[2]
    if kind in NOT_ZERO and value == 0:
        raise ModelLoadError(f"the field {name:.80} must be at least 1, got 0")
    if kind == "block_count" and value is not None and value > tensors:
        raise ModelLoadError(f"the field {name:.80} says {value}, and the file has {tensors} tensors")


def read_place(cursor: Cursor) -> TensorPlace:
    """Read the next tensor's entry."""
    cursor.what = "the name of a tensor"
    name = cursor.text()
    cursor.what = f"tensor {name:.80}"
    dimensions = cursor.number("I")
    if dimensions > MOST_DIMENSIONS:
        raise ModelLoadError(f"{cursor.what} has {dimensions} dimensions, and {MOST_DIMENSIONS} is the most")
    shape = [cursor.number("Q") for _ in range(dimensions)]
    if 0 in shape:
        raise ModelLoadError(f"{cursor.what} has a dimension of 0")
    kind, offset = cursor.number("I"), cursor.number("Q")
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError) as error:
        raise ModelLoadError(f"{cursor.what} is of the unknown type {kind}") from error
    if shape and shape[0] % block:
        raise ModelLoadError(f"{cursor.what} has rows of {shape[0]}, which are no whole blocks of {block}")
    return TensorPlace(name, offset, prod(shape) // block * size)
