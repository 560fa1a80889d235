"""The values of a GGUF file's metadata fields. A field that the conversion reads is marked. A field that the conversion
does not read is refused, because it may change tokens, unless gguf_without_effect.py has it. Part of convert.py's
process; knows no architecture.

llama.cpp's names: gguf.constants.Keys.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf import GGUFReader

from tailrace.errors import ModelLoadError
from tailrace.models.check_weights import MAX_SIZE
from tailrace.models.gguf import list_parts
from tailrace.models.gguf_without_effect import has_effect

REQUIRED: Any = object()
SIGNED = ("rope.scaling.yarn_ext_factor",)  # −1: not set


def is_count(value: Any, least: int) -> bool:
    """Return True for a whole number of at least `least` that sizes may be."""
    return type(value) is int and least <= value <= MAX_SIZE


def are_flags(value: Any, layers: int) -> bool:
    """Return True for a list that has true or false for each layer."""
    return isinstance(value, list) and len(value) >= layers and all(entry in (False, True) for entry in value)


def plain_value(value: Any) -> Any:
    """Return a float32 as the shortest decimal number that it is the nearest to: 1e-05. Other values as they are."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def check_parts(parts: list[Path], readers: list[GGUFReader]) -> None:
    """Check that the files are the parts of one model, in order.

    Raises:
        ModelLoadError: a part says that it is another one, or has a field or a tensor that it must not have.
    """
    tensors = Counter(tensor.name for reader in readers for tensor in reader.tensors)
    for number, (part, reader) in enumerate(zip(parts, readers, strict=True)):
        for name, value in (("split.count", len(parts)), ("split.no", number)):
            stated = reader.fields[name].contents() if name in reader.fields else value
            if stated != value and (name, stated, value) != ("split.count", 0, 1):  # 0: not split
                raise ModelLoadError(
                    f"{part.name}: its field {name} is {stated!s:.80}, and by its name it is {value} (parts are named "
                    "NAME-00001-of-00003.gguf)"
                )
        if number:
            check_same_fields(part, reader.fields, readers[0].fields)
    stated = readers[0].fields.get("split.tensors.count")
    if stated is not None and stated.contents() != tensors.total():
        raise ModelLoadError(
            f"the parts have {tensors.total()} tensors together, and split.tensors.count is {stated.contents()!s:.80}"
        )
    if twice := [name for name, times in tensors.items() if times > 1]:
        raise ModelLoadError(f"the tensor {twice[0]} is in two parts")


def check_same_fields(part: Path, fields: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Check that a later part has no fields but those of the first one.

    Raises:
        ModelLoadError: it has one, or another value.
    """
    for name in fields:
        if name.startswith(("GGUF.", "split.")) or name == "general.alignment":
            continue
        if name not in first or first[name].contents() != fields[name].contents():
            raise ModelLoadError(f"{part.name}: the first part has no field {name:.80} with this value")


class Fields:
    """The fields of a model. path: of the file that has them. tensors: by name, of all files that it is split into.

    Raises:
        ModelLoadError: the files do not belong together.
    """

    def __init__(self, path: Path) -> None:
        parts = list_parts(path)
        self.path = parts[0]
        readers = [GGUFReader(part) for part in parts]
        self._fields, self._read = readers[0].fields, set[str]()
        check_parts(parts, readers)
        self.tensors: dict[str, Any] = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        self.taken = set[str]()  # tensors that became settings
        self.architecture: str = self.get_field("general.architecture", "")

    def get_field(self, name: str, default: Any = None) -> Any:
        """Return the value of a field by its whole name, and mark the field as read."""
        self._read.add(name)
        return plain_value(self._fields[name].contents()) if name in self._fields else default

    def name(self, key: str) -> str:
        """Return the whole name of a field of the architecture."""
        return f"{self.architecture}.{key}"

    def names(self) -> list[str]:
        """Return all fields' whole names."""
        return list(self._fields)

    def each(self, key: str, default: Any = REQUIRED) -> Any:
        """Return the value of a field of the architecture. A list has an entry for each layer.

        Raises:
            ModelLoadError: the file lacks the field.
        """
        name = self.name(key)
        value = self.get_field(name, default)
        if value is REQUIRED:
            raise ModelLoadError(f"the field {name} is missing")
        return value

    def take(self, key: str, default: Any = REQUIRED) -> Any:
        """Return the value of a field that is the same for all layers.

        Raises:
            ModelLoadError: the file lacks the field, or its layers differ.
        """
        value = self.each(key, default)
        if isinstance(value, list):
            if not value or len(value) != self.get_field(self.name("block_count")) or value != value[:1] * len(value):
                self.refuse(key, value)
            return value[0]
        return value

    def count(self, key: str, default: Any = REQUIRED, least: int = 0) -> int:
        """Return a whole number of at least `least`.

        Raises:
            ModelLoadError: as `take`, or the value is another.
        """
        value = self.take(key, default)
        if not is_count(value, least):
            self.refuse(key, value)
        return value

    def size(self, key: str, default: Any = REQUIRED) -> int:
        """Return a whole number above 0."""
        return self.count(key, default, least=1)

    def of_layers(self, key: str, default: Any, layers: int) -> list[int]:
        """Return a whole number for each layer. A file has one for all, or a list.

        Raises:
            ModelLoadError: the list has not one entry for each layer, or an entry is another.
        """
        value = self.each(key, default)
        entries = value if isinstance(value, list) else [value] * layers
        whole = len(entries) in (layers, self.get_field(self.name("block_count")))
        if not whole or not all(is_count(entry, 0) for entry in entries):
            self.refuse(key, value)
        return entries[:layers]

    def flag(self, key: str, default: bool) -> bool:
        """Return True or False.

        Raises:
            ModelLoadError: as `take`, or the value is another.
        """
        value = self.take(key, default)
        if value not in (False, True):
            self.refuse(key, value)
        return bool(value)

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a number, or the default. It is finite, and not negative but for YaRN's factor of extrapolation.

        Raises:
            ModelLoadError: as `take`, or the value is another.
        """
        value = self.take(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.refuse(key, value)
        if value < 0 and key not in SIGNED:
            self.refuse(key, value)
        return value

    def positive(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a number above 0, or the default."""
        value = self.number(key, default)
        if value is not default and not value:
            self.refuse(key, value)
        return value

    def expect(self, key: str, *accepted: Any) -> None:
        """Refuse the field unless it is missing or has an accepted value."""
        value = self.each(key, accepted[0])
        if value not in accepted:
            self.refuse(key, value)

    def refuse(self, key: str, value: Any) -> NoReturn:
        """Raise ModelLoadError for a value of a field of the architecture that is not supported."""
        self.refuse_field(self.name(key), value)

    def refuse_field(self, name: str, value: Any) -> NoReturn:
        """Raise ModelLoadError for a value that is not supported. name: the field's whole name."""
        raise ModelLoadError(
            f"the field {name} is {value!r:.80}, which is not supported for {self.architecture}: "
            "its tokens would be wrong"
        )

    def read_vector(self, name: str) -> np.ndarray | None:
        """Return the values of a tensor that becomes a setting, and mark the tensor as used; None without it.

        Raises:
            ModelLoadError: it is in blocks.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        self.taken.add(name)
        if tensor.data.dtype.kind != "f":
            raise ModelLoadError(f"the tensor {name} is {tensor.tensor_type.name}, which is not read")
        return np.asarray(tensor.data, np.float32).reshape(-1)

    def has_tensor(self, stem: str) -> bool:
        """Return True if the first layer, or any other, has this tensor ("attn_q.bias")."""
        return any(name.endswith(f".{stem}") for name in self.tensors)

    def rows(self, stem: str) -> int:
        """Return the outputs of the first tensor with this name in a layer: rows of a matrix, or of each expert's.

        Raises:
            ModelLoadError: no layer has one.
        """
        for name, tensor in self.tensors.items():
            if name == stem or name.endswith(f".{stem}"):
                if len(tensor.shape) < 2:
                    raise ModelLoadError(f"the tensor {name} has one dimension, and a matrix has two")
                return int(tensor.shape[1])
        raise ModelLoadError(f"the tensor {stem} is missing")

    def refuse_unread(self, start: str = "") -> None:
        """Raise ModelLoadError for an unread field, unless the field changes nothing. start: of the fields' names."""
        for name in self._fields:
            if not name.startswith(start) or name in self._read:
                continue
            key, value = name.removeprefix(f"{self.architecture}."), plain_value(self._fields[name].contents())
            if has_effect(key, value):
                self.refuse_field(name, value)
