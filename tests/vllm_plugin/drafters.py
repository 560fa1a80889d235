"""Models that draft for the model of launched.py; scheduled.py names their kinds.

- near: the model with noise in its last layer. Its distributions overlap with the model's, but differ from them.
- eagle: a head that reads the model's hidden states.
- medusa: heads that each guess one token further. vLLM takes their likeliest tokens, without distributions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from launched import SIZES, VOCAB
from safetensors.torch import load_file, save_file

KINDS = ("near", "eagle", "medusa")
HEADS = 3
NOISE = 0.5  # standard deviation, relative to the weights'


def make_drafters(model: Path) -> None:
    """Write a folder for each kind beside the model's folder."""
    weights = load_file(model / "model.safetensors")
    for kind, make in zip(KINDS, (perturb_head, draft_eagle, draft_medusa), strict=True):
        config = json.loads((model / "config.json").read_text())
        folder = drafter_folder(model, kind)
        folder.mkdir()
        torch.manual_seed(1)
        drafted = make(weights, config)
        save_file(drafted, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        for path in model.glob("*token*"):
            shutil.copy(path, folder)


def drafter_folder(model: Path, kind: str) -> Path:
    """Return the folder of the model's drafter of this kind."""
    return model.with_name(f"{model.name}-{kind}")


def perturb_head(weights: dict[str, torch.Tensor], config: dict[str, object]) -> dict[str, torch.Tensor]:
    """Return the model's weights with noise in the last layer."""
    head = weights["lm_head.weight"]
    return weights | {"lm_head.weight": head + torch.randn_like(head) * head.float().std().to(head) * NOISE}


def draft_eagle(weights: dict[str, torch.Tensor], config: dict[str, object]) -> dict[str, torch.Tensor]:
    """Return one layer, and a projection that passes the model's hidden state on. vLLM adds the model's embeddings and
    last layer."""
    config["num_hidden_layers"] = 1
    size = SIZES["hidden"]
    layer = {
        name.removeprefix("model."): part
        for name, part in weights.items()
        if name.startswith("model.layers.0.") and "input_layernorm" not in name
    }
    hidden = torch.cat([0.1 * torch.randn(size, size), torch.eye(size)], 1)
    return layer | {"fc.weight": hidden.to(weights["lm_head.weight"])}


def draft_medusa(weights: dict[str, torch.Tensor], config: dict[str, object]) -> dict[str, torch.Tensor]:
    """Return heads that pass the model's hidden state on to a copy of the model's last layer."""
    size, head = SIZES["hidden"], weights["lm_head.weight"]
    config.clear()
    config |= {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": size, "vocab_size": VOCAB}
    config |= {"num_heads": HEADS, "num_hidden_layers": 1, "torch_dtype": "float32"}
    blocks = {f"blocks.{i}.layers.0.weight": torch.zeros(size, size).to(head) for i in range(HEADS)}
    return blocks | {f"lm_heads.{i}.weight": head.clone() for i in range(HEADS)}
