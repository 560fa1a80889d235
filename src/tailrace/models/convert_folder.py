"""The conversion of a folder in Hugging Face's layout, run as a program: `python -m tailrace.models.convert_folder
FOLDER TARGET DTYPE WEIGHTS REMOTE_CODE`. WEIGHTS: the type of GGUF's blocks that floats become; of matrices that are
packed, quantized (blocks of their own codes) or dequantized (DTYPE). REMOTE_CODE: 1 if the model's own code may run.

Tensors are converted one by one. Memory holds at most a piece of one tensor, or one packed matrix, and the scales and
zero points of all matrices. Tensors keep the names of the checkpoint, so transformers renames and merges them at load.
A model without memory shows which tensors a plain linear layer or the embedding will own. Imports torch and
transformers, so no module of tailrace imports it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType

from tailrace import _cpu
from tailrace.errors import ModelLoadError
from tailrace.models.blocks import (
    AT_ONCE,
    BLOCK,
    FLOATS,
    Kind,
    find_block_type,
    grid_blocks,
    map_tensor,
    quantize_matrix,
    row_bytes,
)
from tailrace.models.child import check_transformers, run_work, say_count, send_line
from tailrace.models.config_files import NESTED, read_json
from tailrace.models.folder import read_quantization
from tailrace.models.footprint import weight_files
from tailrace.models.grids import Grid, read_grids
from tailrace.models.plain_model import (
    Owned,
    Owner,
    meta_model,
    owner_of,
    owner_of_experts,
    read_names,
    refuse_missing,
)
from tailrace.models.store import MARKER
from tailrace.models.tensors import BLOCKS_METHOD, FileTensor, NewTensor, index_tensors, write_tensors

NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
NOT_COPIED = (
    "*.safetensors",
    "*.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
    "*.onnx",
    "*.h5",
    ".*",
    "original",
    MARKER,
)


class Conversion:
    """What becomes of the tensors. types: the owner's name → the type of its blocks, shapes: their raw shape; left: why
    others stay what they are → how many."""

    def __init__(self) -> None:
        self.tensors: list[NewTensor] = []
        self.types: dict[str, int] = {}
        self.shapes: dict[str, list[int]] = {}
        self.names: dict[str, str] = {}
        self.left: Counter[str] = Counter()
        self.raw_bytes = self.packed_bytes = 0

    def copy(self, tensor: FileTensor) -> None:
        """The tensor as it is."""
        self.tensors.append(NewTensor(tensor.name, tensor.dtype, tensor.shape, lambda: [bytes_of(tensor)]))

    def keep(self, owner: str, planned: NewTensor, kind: tuple[int, str], width: int) -> None:
        """Blocks for a parameter of `width` inputs. kind: the type's number and name."""
        self.tensors.append(planned)
        rows, size = planned.shape
        self.types[owner], self.shapes[owner], self.names[str(kind[0])] = kind[0], [rows, size], kind[1]
        self.raw_bytes += rows * size
        self.packed_bytes += _cpu.quantized_bytes(kind[0], rows, width)

    def keep_experts(self, owner: Owned, parts: list[FileTensor], kind: GGMLQuantizationType) -> None:
        """Blocks for all experts' matrices [E, N, K] of a layer. parts: the tensors that transformers joins.

        Raises:
            ModelLoadError: together they do not have the owner's rows.
        """
        experts, outputs, width = owner.shape
        rows = sum(prod(part.shape[:-1]) for part in parts)
        if wrong := next((part for part in parts if part.shape[-1] != width), None):
            raise make_shape_error(wrong.name, wrong.shape, owner)
        if rows != experts * outputs:
            raise ModelLoadError(
                f"the tensors of {owner.name} have {rows} rows, and by config.json {experts * outputs}"
            )
        size = row_bytes(kind, width)
        assert size is not None
        for part in parts:
            made = NewTensor(part.name, "U8", (*part.shape[:-1], size), lambda part=part: quantize_matrix(part, kind))
            self.tensors.append(made)
        self.types[owner.name], self.shapes[owner.name] = int(kind), [experts, outputs, size]
        self.names[str(int(kind))] = kind.name
        self.raw_bytes += rows * size
        self.packed_bytes += experts * _cpu.quantized_bytes(int(kind), outputs, width)

    def settings(self, verb: str) -> dict[str, Any]:
        """The `quantization_config` that runners/quantizer.py reads."""
        return {
            "quant_method": BLOCKS_METHOD,
            "types": self.types,
            "shapes": self.shapes,
            "names": self.names,
            "verb": verb,
            "left": dict(self.left),
            "raw_bytes": self.raw_bytes,
            "packed_bytes": self.packed_bytes,
        }


def bytes_of(tensor: FileTensor) -> memoryview:
    """The tensor's bytes, mapped."""
    return map_tensor(tensor).reshape(-1).view("u1").data


def all_tensors(folder: Path) -> dict[str, FileTensor]:
    """Every tensor of the folder, by name.

    Raises:
        ModelLoadError: a file is damaged, or the folder has no safetensors file.
    """
    files = weight_files(folder)
    if not files:
        raise ModelLoadError("its weights are not in safetensors files")
    return {name: tensor for path in files for name, tensor in index_tensors(path).items()}


def quantize_tensors(
    tensors: dict[str, FileTensor], owner: Owner, experts: Owner, kind: GGMLQuantizationType
) -> Conversion:
    """Matrices of floats → blocks. owner: of linear layers and the embedding."""
    plan, mixtures = Conversion(), defaultdict[Owned, list[FileTensor]](list)
    for tensor in tensors.values():
        one = experts(tensor.name) if tensor.dtype in FLOATS and len(tensor.shape) in (2, 3) else None
        if one is not None and row_bytes(kind, one.shape[-1]) is not None:
            mixtures[one].append(tensor)
    for one, parts in mixtures.items():
        plan.keep_experts(one, parts, kind)
    done = {part.name for parts in mixtures.values() for part in parts}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in done}
    owned = {name: owner(name) for name, tensor in tensors.items() if tensor.dtype in FLOATS}
    firsts = {one.first: tensors[name] for name, one in owned.items() if one and one.first == one.name}
    for tensor in tensors.values():
        one = owned.get(tensor.name)
        size = row_bytes(kind, tensor.shape[1]) if len(tensor.shape) == 2 else None
        if one is not None and one.shape != tensor.shape:
            raise make_shape_error(tensor.name, tensor.shape, one)
        if one is None or size is None:
            if len(tensor.shape) > 1:
                plan.left[f"of rows of {tensor.shape[-1]} stay floats" if one else "of other modules stay floats"] += 1
            plan.copy(tensor)
            continue
        tied = firsts.get(one.first, tensor)
        if tied is not tensor and bytes_of(tied) == bytes_of(tensor):
            continue  # stored twice
        name = tensor.name if one.first in firsts else one.first  # transformers would make up what has the first name
        planned = NewTensor(name, "U8", (tensor.shape[0], size), lambda tensor=tensor: quantize_matrix(tensor, kind))
        plan.keep(one.first, planned, (int(kind), kind.name), tensor.shape[1])
    return plan


def make_shape_error(name: str, shape: tuple[int, ...], one: Owned) -> ModelLoadError:
    return ModelLoadError(f"tensor {name} is {list(shape)}, and by config.json it should be {list(one.shape)}")


def unpack_matrices(
    tensors: dict[str, FileTensor], settings: dict[str, Any], dtype: str, owner: Owner | None
) -> Conversion:
    """Convert packed matrices to blocks of the same codes. If blocks can't hold the codes, or if there is no `owner`,
    convert them to numbers of dtype."""
    made = Conversion()
    packed, rest = read_grids(tensors, settings)
    for grid in packed:
        (outputs, width), name = grid.shape, f"{grid.name}.weight"
        one = owner(name) if owner is not None else None
        if one is not None and one.shape != grid.shape:
            raise make_shape_error(name, grid.shape, one)
        kind = find_block_type(grid.bits, grid.zeros, grid.scales)
        problem = find_block_problem(grid, one, kind)
        if problem is None and kind is not None and one is not None:
            size = kind.row_bytes(grid.bits, width)
            tensor = NewTensor(name, "U8", (outputs, size), lambda grid=grid, kind=kind: grid_pieces(grid, kind))
            made.keep(one.first, tensor, (kind.number, kind.name), width)
            continue
        made.left[f"{problem} became {dtype}"] += 1
        made.tensors.append(NewTensor(name, NAMES[dtype], grid.shape, lambda grid=grid: dequantize_grid(grid, dtype)))
    for tensor in rest:
        made.copy(tensor)
    return made


def find_block_problem(grid: Grid, one: Owned | None, kind: Kind | None) -> str | None:
    """Why the matrix can't stay in blocks, or None."""
    group = grid.shape[1] // grid.scales.shape[1]
    if one is None or one.first != one.name:
        return "of other modules"
    if not grid.bits:
        return "of float8"
    if grid.groups is not None:
        return "in the order of activations"
    if group % BLOCK:
        return f"in groups of {group}"
    return f"of int{grid.bits} with zero points" if kind is None else None


def grid_pieces(grid: Grid, kind: Kind) -> Iterator[memoryview]:
    """The blocks of a packed matrix."""
    return grid_blocks(kind, grid.bits, grid.codes(), grid.zeros, grid.scales)


def dequantize_grid(grid: Grid, dtype: str) -> Iterator[memoryview]:
    """The numbers of a packed matrix, rounded once to dtype."""
    codes = grid.codes()
    step = max(1, AT_ONCE // grid.shape[1])
    for first in range(0, grid.shape[0], step):
        rows = torch.from_numpy(grid.rows(codes, first, first + step)).to(getattr(torch, dtype))
        yield rows.contiguous().view(torch.uint8).numpy().data.cast("B")


def fill_folder(source: Path, folder: Path, dtype: str, weights: str, remote_code: bool) -> None:
    """Fill `folder`."""
    send_line("stage", "reading the weights' headers")
    tensors, settings = all_tensors(source), read_quantization(source)
    owner = experts = None
    if weights != "dequantized":
        model = meta_model(source, remote_code)
        names = read_names(model)
        owner, experts = owner_of(model, names.rename), owner_of_experts(model, names)
        if not settings and not names.merges:  # which parts make one whole is known when they are loaded
            refuse_missing(model, names.rename, tensors)
    if settings:
        made = unpack_matrices(tensors, settings, dtype, owner)
    else:
        assert owner is not None
        assert experts is not None
        made = quantize_tensors(tensors, owner, experts, GGMLQuantizationType[weights.upper()])
    shutil.copytree(source, folder, ignore=partial(leave_out, folder.resolve()), dirs_exist_ok=True)
    write_config(source, folder, None if owner is None else made.settings("stay" if settings else "became"))
    send_line("stage", f"writing {len(made.tensors)} tensors, {len(made.types)} of them in blocks")
    total = len(made.tensors)
    write_tensors(folder / "model.safetensors", made.tensors, lambda done: say_count(done, total))


def leave_out(target: Path, folder: str, names: list[str]) -> set[str]:
    """Return the names of a folder that are not copied: weights, and what is no file and no folder of its own. A device
    has no end, and a link to a folder may be a loop. So would be the target, where the cache is inside of the model's
    folder."""
    paths = {name: Path(folder, name) for name in names}
    odd = {name for name, path in paths.items() if not (path.is_file() or (path.is_dir() and not path.is_symlink()))}
    odd |= {name for name, path in paths.items() if target.is_relative_to(path.resolve())}
    return odd | shutil.ignore_patterns(*NOT_COPIED)(folder, names)


def write_config(source: Path, folder: Path, settings: dict[str, Any] | None) -> None:
    """Write config.json with these quantization settings instead of the folder's own; None removes the settings."""
    config = read_json(source, "config.json", required=True)
    for section in (config, *(config[key] for key in NESTED if isinstance(config.get(key), dict))):
        section.pop("quantization_config", None)
    if settings is not None:
        config["quantization_config"] = settings
    (folder / "config.json").unlink()  # it may not be writable
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main(arguments: list[str]) -> int:
    """Exit code 0, or 1 after a line "error: …"."""
    source, folder, dtype, weights, remote_code = arguments

    def convert_checked() -> None:
        check_transformers()
        fill_folder(Path(source), Path(folder), dtype, weights, remote_code == "1")

    return run_work(convert_checked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
