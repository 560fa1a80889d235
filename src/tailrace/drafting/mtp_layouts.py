"""The tensors of an MTP head (multi-token prediction, "nextn") as the families publish them beside the model's own.

Names have no "model." in front and no ".weight" behind; {n} is the number of the model's layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailrace.base.mtp import COUNTS, SHARED
from tailrace.drafting.checkpoint import Checkpoint
from tailrace.errors import ModelLoadError
from tailrace.runners.base import LayeredRunner


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of one family.

    - layer: the beginning of the names of the decoder layer's tensors.
    - embedding_norm, hidden_norm, projection, norm: the norms before the projection, the projection, and the norm after
      the layer.
    - hidden_first: the projection takes the state first, then the embedding.
    - masked: the embedding beside position 0 counts as zeros.
    """

    layer: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str
    hidden_first: bool = False
    masked: bool = False

    def own_names(self) -> tuple[str, ...]:
        """Return the tensors that the target has no counterpart of."""
        return self.embedding_norm, self.hidden_norm, self.projection, self.norm


LAYOUTS = (
    Layout(  # DeepSeek V3, GLM-4.5 and later, and what GGUF files become
        layer="layers.{n}.",
        embedding_norm="layers.{n}.enorm",
        hidden_norm="layers.{n}.hnorm",
        projection="layers.{n}.eh_proj",
        norm="layers.{n}.shared_head.norm",
    ),
    Layout(  # Qwen3-Next, Qwen3.5
        layer="mtp.layers.0.",
        embedding_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        projection="mtp.fc",
        norm="mtp.norm",
    ),
    Layout(  # MiMo
        layer="mtp_layers.0.",
        embedding_norm="mtp_layers.0.token_layernorm",
        hidden_norm="mtp_layers.0.hidden_layernorm",
        projection="mtp_layers.0.input_proj",
        norm="mtp_layers.0.final_layernorm",
        hidden_first=True,
        masked=True,
    ),
)

DEDICATED = "mtp_use_dedicated_embeddings"
SCALES = ".weight_scale_inv"  # of float8 in square blocks


def open_head(folder: Path, runner: LayeredRunner, settings: Any) -> tuple[Checkpoint, Layout]:
    """Return the head's tensors and their layout. settings: the target's configuration.

    Raises:
        ModelLoadError: the folder has no head, or one that is not supported; the message names the reason.
    """
    for name in COUNTS:
        if getattr(settings, name, None) == 0:
            raise ModelLoadError(f"{folder}: config.json: {name} is 0, so the model has no MTP head")
    if getattr(settings, DEDICATED, False):
        raise ModelLoadError(f"{folder}: config.json: {DEDICATED} must be false: the head takes the target's embedding")
    layouts = [fill_layout(layout, runner.num_layers) for layout in LAYOUTS]
    starts = tuple(name for layout in layouts for name in (layout.layer, *layout.own_names()))
    checkpoint = Checkpoint(folder, runner.dtype, runner.device, lambda name: name.startswith(starts))
    for layout in layouts:
        if f"{layout.projection}.weight" in checkpoint:
            for name in SHARED:
                checkpoint.tensors.pop(f"{layout.layer}{name}", None)
            widen_tensors(checkpoint)
            return checkpoint, layout
    names = ", ".join(f"{layout.projection}.weight" for layout in layouts)
    raise ModelLoadError(f"{folder} has no MTP head: there is none of the tensors {names}")


def fill_layout(layout: Layout, layers: int) -> Layout:
    """Return the layout for a model of this number of layers."""
    names = ("layer", "embedding_norm", "hidden_norm", "projection", "norm")
    return replace(layout, **{name: getattr(layout, name).format(n=layers) for name in names})


def widen_tensors(checkpoint: Checkpoint) -> None:
    """Multiply matrices of float8 by their scales, in place.

    Raises:
        ModelLoadError: a tensor is quantized in a format that is not read here.
    """
    settings = checkpoint.config.get("quantization_config") or {}
    block = settings.get("weight_block_size") if isinstance(settings, dict) else None
    for name in [name for name in checkpoint.tensors if name.endswith(SCALES)]:
        scales, owner = checkpoint.tensors.pop(name).float(), f"{name.removesuffix(SCALES)}.weight"
        matrix = checkpoint.tensors.get(owner)
        if matrix is None or matrix.dim() != 2 or not isinstance(block, list) or len(block) != 2:
            raise ModelLoadError(f"{checkpoint.folder}: {name} scales no matrix in square blocks")
        each = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        rows, width = matrix.shape
        if each.shape[0] < rows or each.shape[1] < width:
            raise ModelLoadError(
                f"{checkpoint.folder}: {name} is {list(scales.shape)}, too few scales for {owner} in blocks of {block}"
            )
        checkpoint.tensors[owner] = (matrix.float() * each[:rows, :width]).to(checkpoint.dtype)
    for name, tensor in checkpoint.tensors.items():
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelLoadError(f"{checkpoint.folder}: {name} is {kind}: an MTP head in this format is not read")


def name_tensors(checkpoint: Checkpoint, layout: Layout) -> list[str]:
    """Return the names of the decoder layer's tensors in the checkpoint, without the head's own."""
    own = {f"{name}.weight" for name in layout.own_names()}
    return [name for name in checkpoint.tensors if name.startswith(layout.layer) and name not in own]
