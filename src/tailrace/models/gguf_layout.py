"""Is a GGUF file whole? Every count, length and place in it is checked against the file's size before the package gguf
reads it, whose words for a damaged file are numpy's. Part of convert.py's process.

The format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tailrace.errors import ModelLoadError

VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # struct's letters
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)
LEAST_FIELD, LEAST_TENSOR = 13, 32  # bytes: an empty name, a type, a value; a name, dimensions, a type and a place
MOST_DIMENSIONS = 4
NOT_ZERO = ("block_count", "head_count", "embedding_length", "context_length")


class Cursor:
    """Reads a file's head from its beginning. what: the part that is being read."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.what = data, 0, "its header"

    def skip(self, size: int) -> int:
        """Move on by `size` bytes. → where they began

        Raises:
            ModelLoadError: the file ends before.
        """
        if size > len(self.data) - self.at:
            raise ModelLoadError(f"the file ends at byte {len(self.data)}, within {self.what}")
        self.at += size
        return self.at - size

    def number(self, letter: str) -> int:
        return struct.unpack_from(f"<{letter}", self.data, self.skip(struct.calcsize(f"<{letter}")))[0]

    def count(self, letter: str, least: int, of: str) -> int:
        """A number of entries, each of at least so many bytes.

        Raises:
            ModelLoadError: the file has no room for them.
        """
        count = self.number(letter)
        if count * least > len(self.data) - self.at:
            raise ModelLoadError(f"{self.what} says that there are {count} {of}, and the file has no room for them")
        return count

    def text(self) -> str:
        size = self.count("Q", 1, "characters")
        at = self.skip(size)
        return self.data[at : at + size].decode(errors="replace")

    def value(self, kind: int, inside: bool = False) -> int | None:
        """A field's value: a number, or None of other kinds."""
        if kind in VALUES:
            return self.number(VALUES[kind])
        if kind == STRING:
            self.skip(self.count("Q", 1, "characters"))
        elif kind == ARRAY and not inside:
            kind = self.number("I")
            size = struct.calcsize(VALUES[kind]) if kind in VALUES else 8
            count = self.count("Q", size, "entries")
            if kind in VALUES:
                self.skip(count * size)
            else:
                for _ in range(count):
                    self.value(kind, inside=True)
        else:
            raise ModelLoadError(f"{self.what} is of the unknown type {kind}")
        return None


def check_layout(path: Path) -> None:
    """Raise ModelLoadError, which says what is wrong and where, unless the file holds what its head says."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = Cursor(data)
        cursor.skip(4)  # gguf.py has seen the magic
        version = cursor.number("I")
        if version not in VERSIONS:
            raise ModelLoadError(f"version {version} of GGUF is not read, only {' and '.join(map(str, VERSIONS))}")
        tensors = cursor.count("Q", LEAST_TENSOR, "tensors")
        alignment = 32
        for _ in range(cursor.count("Q", LEAST_FIELD, "fields")):
            cursor.what = "the name of a field"
            name = cursor.text()
            cursor.what = f"the field {name:.80}"
            value = cursor.value(cursor.number("I"))
            if name == "general.alignment":
                alignment = value or 0
            check_field(name, value, tensors)
        if alignment <= 0 or alignment & (alignment - 1):
            raise ModelLoadError(f"the field general.alignment must be a power of two, got {alignment}")
        ends = [tensor_end(cursor) for _ in range(tensors)]
        begin = -(-cursor.at // alignment) * alignment
        for name, end in ends:
            if begin + end > len(data):
                raise ModelLoadError(
                    f"the file ends at byte {len(data)}, and tensor {name} at byte {begin + end}: it is cut short"
                )


def check_field(name: str, value: int | None, tensors: int) -> None:
    """Raise ModelLoadError for a number of layers or heads that no model of so many tensors has: transformers would
    make them all, or divide by it."""
    kind = name.rpartition(".")[2]
    if kind in NOT_ZERO and value == 0:
        raise ModelLoadError(f"the field {name:.80} must be at least 1, got 0")
    if kind == "block_count" and value is not None and value > tensors:
        raise ModelLoadError(f"the field {name:.80} says {value}, and the file has {tensors} tensors")


def tensor_end(cursor: Cursor) -> tuple[str, int]:
    """The next tensor's name, and where its data end, counted from where all data begin."""
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
    return name, offset + prod(shape) // block * size
