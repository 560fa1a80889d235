"""The weights of a GGUF file, converted part by part: no more than some layers are in memory, however large the model.

Which tensor becomes which parameter, and how its values are stored, is the knowledge of transformers. Here its loader
is shown a file of a few layers at a time, and what it makes of them is written. That is all that it does for most
models; where it does more (merges experts, keeps weights in float32, reads the file by newer code), `convert_in_parts`
says no, and convert.py makes the whole model in memory. Part of convert.py's process.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gguf
import torch
from safetensors.torch import save_file
from transformers import modeling_gguf_pytorch_utils as loader

from tailrace.models.child import say, say_count
from tailrace.models.convert_quantized import KeptBlocks

PART = 1 << 27  # weights; a layer, or an embedding, may have more
LAYER = re.compile(r"blk\.\d+\.")


class FilePart(NamedTuple):
    """What the loader is shown in place of the file: its fields but the vocabulary, which takes long to read."""

    fields: dict[str, Any]
    tensors: list[Any]


def parts_of(reader: Any) -> list[FilePart]:
    """The file's layers and other tensors, in parts of about PART weights. No layer is in two parts: the loader joins
    tensors of one layer."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for tensor in reader.tensors:
        layer = LAYER.match(tensor.name)
        groups[layer[0] if layer else tensor.name].append(tensor)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    parts, size = [FilePart(fields, [])], 0
    for group in groups.values():
        more = sum(int(tensor.n_elements) for tensor in group)
        if parts[-1].tensors and size + more > PART:
            parts.append(FilePart(fields, []))
            size = 0
        parts[-1].tensors.extend(group)
        size += more
    return parts


def empty_model(source: Path, dtype: torch.dtype) -> Any:
    """The model that the file's fields describe, without memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def is_plain(model: Any, architecture: str) -> bool:
    """Its parameters are the file's tensors, renamed, and all of the model's dtype."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter
    from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS

    merged = any(isinstance(entry, WeightConverter) for entry in get_model_conversion_mapping(model))
    return not (merged or architecture in GGUF_ARCHS or model._get_dtype_plan(model.dtype))


def names_of(model: Any) -> list[set[str]]:
    """The names of each parameter and buffer; those that are tied have several."""
    names: dict[int, set[str]] = defaultdict(set)
    for name, value in model.state_dict(keep_vars=True).items():
        names[id(value)].add(name)
    return list(names.values())


@contextmanager
def exchanged(module: ModuleType, **names: Any) -> Iterator[None]:
    """Other objects under these names of a module, which has them.

    Raises:
        KeyError: it has not.
    """
    real = {name: vars(module)[name] for name in names}
    vars(module).update(names)
    try:
        yield
    finally:
        vars(module).update(real)


class Loader:
    """transformers' loader of GGUF files, which sees the parts of one."""

    def __init__(self, source: Path, model: Any) -> None:
        self.source, self.model = source, model
        self._names: dict[Any, dict[str, str]] = {}
        self._real = loader.get_gguf_hf_weights_map

    def load(self, part: FilePart) -> dict[str, torch.Tensor]:
        """What becomes of a part's tensors, by the names of the model."""
        with (
            exchanged(gguf, GGUFReader=lambda path: part),
            exchanged(loader, get_gguf_hf_weights_map=self.map, tqdm=lambda tensors, desc: tensors),
        ):
            return loader.load_gguf_checkpoint(self.source, True, self.model, self.model.dtype)["tensors"]

    def map(self, model: Any, processor: Any, *more: Any, qual_name: str = "") -> dict[str, str]:
        """Names in the file → in the model, asked for once: it takes seconds. It calls itself for inner modules."""
        key = id(model), qual_name
        if key not in self._names:
            self._names[key] = self._real(model, processor, *more, qual_name=qual_name)
        return self._names[key]


def check_shapes(model: Any, values: dict[str, torch.Tensor]) -> None:
    """
    Raises:
        KeyError: the model has no such parameter. ValueError: it has another shape.
    """
    state = model.state_dict()
    for name, value in values.items():
        if state[name].shape != value.shape:
            raise ValueError(f"{name} is {list(value.shape)}, and by the file's fields {list(state[name].shape)}")


def names_found(model: Any, reader: Any, loads: Loader) -> set[str]:
    """The names in the model that the file's tensors have."""
    architecture = reader.fields["general.architecture"].contents()
    processor = loader.TENSOR_PROCESSORS.get(architecture, loader.TensorProcessor)({})
    known = loads.map(model, processor)
    return {known[tensor.name] for tensor in reader.tensors if tensor.name in known}


def convert_in_parts(source: Path, folder: Path, dtype: torch.dtype, keep: bool) -> Any:
    """Write the weights as safetensors, one file a part. keep: matrices stay in their blocks.

    Returns:
        The model without memory, whose config and generation_config are to be written. None where transformers must
        make the whole model, and say what is wrong with it; nothing is left in the folder then.
    """
    reader, model = gguf.GGUFReader(source), empty_model(source, dtype)
    kept, files = KeptBlocks(model, dtype) if keep else None, dict[str, str]()
    try:
        if not is_plain(model, reader.fields["general.architecture"].contents()):
            return None
        parts, loads = parts_of(reader), Loader(source, model)
        found = names_found(model, reader, loads)
        if any(not names & found for names in names_of(model)):
            return None
        for number, part in enumerate(parts, 1):
            name = f"model-{number:05}-of-{len(parts):05}.safetensors" if len(parts) > 1 else "model.safetensors"
            values = loads.load(part)
            check_shapes(model, values)
            if kept is not None:
                kept.put(part.tensors, values)
            save_file(values, folder / name, {"format": "pt"})
            files |= dict.fromkeys(values, name)
            del values  # before the next part's are made
            say_count(number, len(parts))
        if missing := [names for names in names_of(model) if not names & files.keys()]:
            raise ValueError(f"{min(missing[0])} was not made")
    except (KeyError, ValueError, TypeError, AttributeError, ImportError) as error:  # a loader of another make, too
        say(
            "warning", f"it is converted as a whole, in the memory of all its numbers ({type(error).__name__}: {error})"
        )
        for path in folder.glob("model*.safetensors"):
            path.unlink()
        return None
    if len(parts) > 1:
        write_index(folder, files)
    if kept is not None:
        model.config.quantization_config = kept.settings()
    return model


def write_index(folder: Path, files: dict[str, str]) -> None:
    """Which file each tensor is in."""
    size = sum(path.stat().st_size for path in folder.glob("model-*.safetensors"))
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": files}, indent=2)
    (folder / "model.safetensors.index.json").write_text(text + "\n")
