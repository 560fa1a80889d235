"""Models with states whose linear layers have quantized weights: near the model's own logits, the same bits however a
prompt is cut, and recorded decode steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from runners.test_quantized_folder import config_for, convert_here
from runners.test_recurrent import Sequences
from runners.tiny_models import save
from tailrace.models import folder as conversions
from tailrace.models import resolve
from tailrace.runners.load_transformers import load_transformers
from tailrace.runners.quantized import QuantizedLinear
from tailrace.runners.recorded import RecordedSteps
from tailrace.runners.recurrent import KeptLinear


def quantized(name: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Sequences, Sequences]:
    """The model as it is, and with quantized weights."""
    monkeypatch.setattr(conversions, "run_child", convert_here)
    (folder / "model").mkdir()
    plain = Sequences(save(name, folder / "model"))
    (folder / "model" / "tokenizer.json").write_text("{}")
    config = config_for(folder / "model", folder / "cache", dtype="float32", quantize=kind)
    made = Sequences.__new__(Sequences)
    made.ids, made.tables = plain.ids, plain.tables
    made.runner = load_transformers(config, resolve(config, progress=False).folder, block_size=16)
    return plain, made


@pytest.mark.parametrize(("kind", "bound"), [("q8_0", 0.1), ("q4_0", 0.7)])
@pytest.mark.parametrize("name", ["qwen3.5", "lfm2", "mamba2", "mamba, wide steps", "falcon h1"])
def test_linear_layers_of_models_with_states_are_quantized(name, kind, bound, tmp_path, monkeypatch):
    plain, made = quantized(name, kind, tmp_path, monkeypatch)
    [expected], [alone] = (each.begin().step((0, 0, 50)) for each in (plain, made))
    error = ((alone - expected).norm(dim=-1) / expected.norm(dim=-1)).median()
    assert 1e-4 < error < bound
    cut = made.begin().step((0, 0, 17), (1, 0, 9))[:1] + [made.step((0, at, at + 1))[0] for at in range(17, 50)]
    assert torch.equal(torch.cat(cut), alone)
    assert isinstance(made.runner.decode_steps, RecordedSteps)
    linear = [module for module in made.runner.paged.model.modules() if isinstance(module, nn.Linear)]
    kept = [module for module in linear if isinstance(module, KeptLinear)]
    assert linear
    assert all(isinstance(module, QuantizedLinear | KeptLinear) for module in linear)
    assert len(kept) == (2 if "wide steps" in name else 0)
