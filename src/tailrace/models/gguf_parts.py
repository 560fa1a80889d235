"""The weights of a GGUF file, converted part by part: only some layers are in memory at once, however large the model.

The file's fields say what the model is (gguf_architectures.py), and each parameter has a recipe (gguf_recipes.py). A
tensor that no recipe uses is refused, and so is a field that no reader takes. Part of convert.py's process.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import dequantize
from safetensors.torch import save_file

from tailrace.base.mtp import HEAD_FILE, make_single
from tailrace.errors import ModelLoadError, take_first_line
from tailrace.models.child import not_all_there, say_count, send_line
from tailrace.models.convert_quantized import KeptBlocks
from tailrace.models.gguf_architectures import read_settings
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_readers import Settings, count_layers
from tailrace.models.gguf_recipes import Recipe, Recipes, take_first

PART = 1 << 27  # weights; a layer, or an embedding, may have more
SIGN_BLOCK = 18  # bytes of a block of Q1_0
LAYER = re.compile(r".*?\.(\d+)\.")
# Of the first layer that predicts further tokens: what it has besides a layer's parameters.
HEAD: dict[str, tuple[Recipe, ...]] = {
    "enorm.weight": (Recipe(("nextn.enorm.weight",), take_first),),
    "hnorm.weight": (Recipe(("nextn.hnorm.weight",), take_first),),
    "eh_proj.weight": (Recipe(("nextn.eh_proj.weight",), take_first),),
    "shared_head.norm.weight": (Recipe(("nextn.shared_head_norm.weight",), take_first),),
}


def empty_model(settings: Settings, dtype: torch.dtype) -> Any:
    """Return the model that the settings describe, without memory.

    Raises:
        ModelLoadError: transformers can't build it.
    """
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    try:
        given = {name: value for name, value in settings.items() if name != "model_type"}
        config = CONFIG_MAPPING[settings["model_type"]](**given)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # whatever a model's code raises
        reason = take_first_line(error)
        raise ModelLoadError(f"transformers can't build a model from its fields: {reason:.300}") from error


def find_recipes(fields: Fields, model: Any, recipes: Recipes, further: range) -> dict[str, Recipe]:
    """Return how each parameter is made, by its first name. further: layers that predict further tokens, and are no
    part of the model.

    Raises:
        ModelLoadError: a tensor is missing, or one is not used.
    """
    names: dict[int, list[str]] = defaultdict(list)  # those that are tied have several
    for name, value in model.state_dict(keep_vars=True).items():
        names[id(value)].append(name)
    found: dict[str, Recipe] = {}
    missing: list[str] = []
    for same in names.values():
        made = {name: recipe for name in same if (recipe := recipes.find(name)) is not None}
        if made:
            name, found[name] = next(iter(made.items()))
        else:
            missing.append(same[0])
    if missing:
        raise ModelLoadError(not_all_there(sorted(missing)))
    used = {source for recipe in found.values() for source in recipe.sources} | fields.taken
    for name in fields.tensors:
        layer = LAYER.match(name)
        if name not in used and (layer is None or int(layer[1]) not in further):
            raise ModelLoadError(
                f"the tensor {name} has no place in a model of the architecture {fields.architecture}: tokens would be "
                "wrong without it"
            )
    return found


def split_parts(recipes: dict[str, Recipe], sizes: dict[str, int]) -> list[list[str]]:
    """Return the parameters in parts of about PART weights. No layer is in two parts. sizes: of the parameters."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in recipes:
        layer = LAYER.match(name)
        groups[layer[0] if layer else name].append(name)
    parts, size = [[]], 0
    for group in groups.values():
        more = sum(sizes[name] for name in group)
        if parts[-1] and size + more > PART:
            parts.append([])
            size = 0
        parts[-1] += group
        size += more
    return parts


class Maker:
    """Makes parameters. kept: which matrices stay in their blocks, if any do."""

    def __init__(self, fields: Fields, model: Any, kept: KeptBlocks | None) -> None:
        self.fields, self.model, self.kept, self.dtype = fields, model, kept, model.dtype
        self.shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        self.wide = tuple(model._get_dtype_plan(model.dtype))  # names of parameters that stay in float32

    def make_parameter(self, name: str, recipe: Recipe) -> torch.Tensor:
        """Return a parameter's values, or its blocks.

        Raises:
            ModelLoadError: its shape is not what the file's fields say.
        """
        tensors = [self.fields.tensors[source] for source in recipe.sources]
        try:
            raw = None if self.kept is None else self.kept.blocks(name, self.shapes[name], tensors, recipe)
            if raw is not None:
                return raw
            values = recipe.join([read_values(tensor) for tensor in tensors])
        except (ValueError, IndexError) as error:
            raise ModelLoadError(f"the tensor {recipe.sources[0]} has another shape than the fields say") from error
        if values.shape != self.shapes[name]:
            raise ModelLoadError(
                f"the tensor {recipe.sources[0]} makes {list(values.shape)} of {name}, which by the file's fields is "
                f"{list(self.shapes[name])}"
            )
        dtype = torch.float32 if any(part in name for part in self.wide) else self.dtype
        return torch.from_numpy(np.require(values, None, ["C", "W"])).to(dtype)


def read_signs(data: np.ndarray) -> np.ndarray:
    """Return the values of blocks of Q1_0: a scale in float16, and 128 bits that say its sign."""
    blocks = data.reshape(*data.shape[:-1], -1, SIGN_BLOCK)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    signs = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little")
    return np.where(signs, scales, -scales).reshape(*data.shape[:-1], -1)


def read_values(tensor: Any) -> np.ndarray:
    """Return a tensor in float32.

    Raises:
        ModelLoadError: its blocks can't be read here.
    """
    if tensor.tensor_type.name == "Q1_0":  # the package gguf can't
        return read_signs(tensor.data)
    try:
        return dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        if tensor.data.dtype == np.float64:
            return tensor.data.astype(np.float32)
        raise ModelLoadError(f"the tensor {tensor.name} is {tensor.tensor_type.name}, which is not read") from error


def convert_in_parts(fields: Fields, folder: Path, dtype: torch.dtype, keep: bool) -> Any:
    """Write the weights as safetensors, one file a part. keep: matrices stay in their blocks.

    Returns:
        The model without memory, whose config and generation_config are to be written.

    Raises:
        ModelLoadError: the file can't be converted without changing what the model computes. Nothing is written unless
            a tensor's shape is wrong.
    """
    architecture, settings = read_settings(fields)
    model = empty_model(settings, dtype)
    further = range(count_layers(fields), fields.size("block_count"))
    ways = {**architecture.ways, **HEAD}
    name = architecture.names or fields.architecture
    known = Recipes(name, settings, fields.tensors, ways, architecture.changes, further.stop)
    recipes = find_recipes(fields, model, known, further)
    kept = KeptBlocks(model, dtype) if keep else None
    maker, files = Maker(fields, model, kept), dict[str, str]()
    parts = split_parts(recipes, {name: int(np.prod(shape)) for name, shape in maker.shapes.items()})
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors" if len(parts) > 1 else "model.safetensors"
        values = {each: maker.make_parameter(each, recipes[each]) for each in part}
        save_file(values, folder / name, {"format": "pt"})
        files |= dict.fromkeys(values, name)
        del values  # before the next part's are made
        say_count(number, len(parts))
    if len(parts) > 1:
        write_index(folder, files)
    if further:
        write_head(folder, further.start, Maker(fields, model, None), known)
    if kept is not None:
        model.config.quantization_config = kept.settings()
    return model


def write_head(folder: Path, layer: int, maker: Maker, recipes: Recipes) -> None:
    """Write the layer that predicts the token after the next one, as numbers, in a file of its own, under the names of
    DeepSeek's checkpoints. Leave it out with a warning if it is not all there; no model needs it."""
    model, prefix, width = maker.model, f"model.layers.{layer}.", maker.model.config.hidden_size
    with torch.device("meta"):
        head = type(model)(make_single(model.config))
    shapes = {f"{prefix}{name}": (width,) for name in HEAD} | {f"{prefix}eh_proj.weight": (width, 2 * width)}
    first = "model.layers.0."
    for name, value in head.state_dict().items():
        if name.startswith(first):
            shapes[f"{prefix}{name.removeprefix(first)}"] = tuple(value.shape)
    maker.shapes, values, used = shapes, {}, set[str]()
    for name in shapes:
        if (recipe := recipes.find(name)) is None:
            send_line("warning", f"layer {layer}, which predicts further tokens, is left out: {name} is missing")
            return
        used.update(recipe.sources)
        values[name] = maker.make_parameter(name, recipe)
    own = f"blk.{layer}."
    for name in maker.fields.tensors:
        if name.startswith(own) and name not in used and not name.startswith(f"{own}nextn."):  # copies of both ends
            send_line(
                "warning", f"layer {layer}, which predicts further tokens, is left out: {name} has no place in it"
            )
            return
    save_file(values, folder / HEAD_FILE, {"format": "pt"})


def write_index(folder: Path, files: dict[str, str]) -> None:
    """Write the index that names each tensor's file."""
    size = sum(path.stat().st_size for path in folder.glob("model-*.safetensors"))
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": files}, indent=2)
    (folder / "model.safetensors.index.json").write_text(text + "\n")
