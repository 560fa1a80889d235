"""Writes a GGUF file of a little Llama with random weights in several types of blocks, and converts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

from tailrace.config import ModelConfig
from tailrace.models import convert, gguf, resolve

VOCAB, WIDTH, INNER, LAYERS = 257, 256, 512, 2
# K types have no quantizer in Python: their blocks are random, with factors of this size
FACTORS = {Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,), Type.Q2_K: (80, 82)}
SIZES = {Type.Q4_K: 144, Type.Q5_K: 176, Type.Q6_K: 210, Type.Q2_K: 84}
SCALES = {Type.Q4_K: (2e-4, 1.5e-3), Type.Q5_K: (1e-4, 1.5e-3), Type.Q6_K: (3e-5,), Type.Q2_K: (4e-3, 6e-3)}
KINDS = {
    "attn_q": Type.Q4_K,
    "attn_k": Type.Q4_K,
    "attn_v": Type.Q6_K,
    "attn_output": Type.Q4_1,
    "ffn_gate": Type.Q5_K,
    "ffn_up": Type.Q5_0,
    "ffn_down": Type.Q8_0,
}


def blocks(kind: Type, rows: int, width: int, random: np.random.Generator) -> np.ndarray:
    """A matrix in blocks, uint8 [rows, bytes of a row]; its values have a standard deviation of about 0.06."""
    if kind not in SIZES:
        return quantize(random.normal(0, 0.06, (rows, width)).astype(np.float32), kind)
    raw = random.integers(0, 256, (rows, width // 256, SIZES[kind]), np.uint8)
    for at, scale in zip(FACTORS[kind], SCALES[kind], strict=True):
        factors = (scale * random.uniform(0.8, 1.2, raw.shape[:2])).astype(np.float16)
        raw[:, :, at : at + 2] = factors[:, :, None].view(np.uint8)
    return raw.reshape(rows, -1)


def write(path: Path, kinds: dict[str, Type] = KINDS, embedding: Type = Type.Q8_0) -> Path:
    """The file. The output projection is the embedding."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(WIDTH // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*sorted(ByteLevel.alphabet()), "ĠĠ"])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    random = np.random.default_rng(0)

    def matrix(name: str, rows: int, width: int, kind: Type) -> None:
        writer.add_tensor(name, blocks(kind, rows, width, random), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, random.uniform(0.5, 1.5, WIDTH).astype(np.float32))

    matrix("token_embd.weight", VOCAB, WIDTH, embedding)
    norm("output_norm.weight")
    shapes = {"attn_k": (WIDTH // 2, WIDTH), "attn_v": (WIDTH // 2, WIDTH), "ffn_down": (WIDTH, INNER)}
    shapes |= dict.fromkeys(("ffn_gate", "ffn_up"), (INNER, WIDTH))
    for layer in range(LAYERS):
        for name, kind in kinds.items():
            matrix(f"blk.{layer}.{name}.weight", *shapes.get(name, (WIDTH, WIDTH)), kind)
        norm(f"blk.{layer}.attn_norm.weight")
        norm(f"blk.{layer}.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(config: ModelConfig) -> Path:
    """The folder of the converted file, made in this process: a child, as of models/test_gguf.py, would import for ten
    seconds what is here already."""
    with patch.object(gguf, "run_converter", convert_here):
        return resolve(config, progress=False).folder


def convert_here(path: Path, folder: Path, precision: gguf.Precision, *_: object) -> dict[str, Any]:
    convert.convert_file(path, folder, *precision)
    return {"source": str(path), "dtype": precision[0], "weights": precision[1], "format": gguf.FORMAT}


def packs_of(model: torch.nn.Module) -> list[Any]:
    """All packed weights that modules hold."""
    found = []
    for module in model.modules():
        for value in vars(module).values():
            values = value if isinstance(value, list) else [value]
            found += [each for each in values if hasattr(each, "data") and hasattr(each, "n")]
    return found
