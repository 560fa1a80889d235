"""Writes folders in Hugging Face's layout with a little random Llama: plain floats, or packed by functions that a test
brings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB, WIDTH, INNER, LAYERS = 257, 256, 512, 2
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH // 2, WIDTH),
    "self_attn.v_proj": (WIDTH // 2, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
LINEAR = [f"model.layers.{layer}.{name}" for layer in range(LAYERS) for name in SHAPES]
Tensors = dict[str, torch.Tensor]
Pack = Callable[[torch.Tensor], Tensors]  # a matrix [N, K] → what the checkpoint has in its place, by suffix


def config_of(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        "bos_token_id": 0,
    } | changes


def random_weights(dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """Every tensor of the model; the output projection is the embedding."""
    generator = torch.Generator().manual_seed(0)
    tensors = {"model.embed_tokens.weight": 0.06 * torch.randn(VOCAB, WIDTH, generator=generator)}
    for name in LINEAR:
        shape = SHAPES[name.split(".", 3)[3]]
        tensors[f"{name}.weight"] = 0.06 * torch.randn(shape, generator=generator)
    norms = [f"model.layers.{i}.{name}_layernorm" for i in range(LAYERS) for name in ("input", "post_attention")]
    for name in [*norms, "model.norm"]:
        tensors[f"{name}.weight"] = 0.5 + torch.rand(WIDTH, generator=generator)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def write(folder: Path, tensors: Tensors, **changes: Any) -> Path:
    """A folder with these tensors, in two files with an index. changes: to config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(**changes)))
    (folder / "tokenizer.json").write_text("{}")
    parts = [dict(list(tensors.items())[part::2]) for part in range(2)]
    files = [f"model-0000{part + 1}-of-00002.safetensors" for part in range(2)]
    for file, part in zip(files, parts, strict=True):
        save_file({name: tensor.contiguous() for name, tensor in part.items()}, folder / file, {"format": "pt"})
    index = {name: file for file, part in zip(files, parts, strict=True) for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def packed(tensors: Tensors, pack: Pack, names: list[str] = LINEAR) -> Tensors:
    """The same checkpoint with these linear layers packed."""
    out = {name: tensor for name, tensor in tensors.items() if name.removesuffix(".weight") not in names}
    for name in names:
        out |= {f"{name}.{suffix}": part for suffix, part in pack(tensors[f"{name}.weight"].float()).items()}
    return out
