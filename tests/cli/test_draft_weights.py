"""`--draft-weights` and `--draft-quantize`: a copy of the model in fewer bits drafts for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from api.harness import make_tokenizer
from cli.test_several_models import read
from engine.harness import Harness
from tailrace.cli.local import prepare
from tailrace.config import Config
from tailrace.drafting import load_drafter
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models.footprint import weights_bytes
from tailrace.request.options import Speculation
from tailrace.runners import load_runner

VOCAB = 258
OWN = ("--device", "cpu", "--dtype", "float32", "--threads", "1", "--drafter", "draft_model")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A Llama that reads bytes."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(5)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 256}
    config = LlamaConfig(vocab_size=VOCAB, num_attention_heads=4, num_key_value_heads=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer(folder)
    return folder


def settings(model: Path, cache: Path, *flags: str) -> Config:
    return prepare(read("--model", str(model), "--cache-dir", str(cache), *flags), progress=False).config


def test_a_copy_of_the_model_in_fewer_bits_drafts(model, tmp_path):
    """Its folder is the converted one, its drafts are often right, and the tokens are those without drafts."""
    flags = (*OWN, "--draft-model", str(model), "--draft-quantize", "q8_0", "--draft-cache-gib", "0.01")
    config = settings(model, tmp_path, *flags)
    assert config.model.model == str(model)
    copy = Path(config.speculation.model or "")
    assert copy != model
    assert {t.dtype for n, t in load_file(copy / "model.safetensors").items() if "proj" in n} == {torch.uint8}
    assert weights_bytes(copy, 4, packed=True) < weights_bytes(model, 4, packed=True) / 2
    found, runner = [], load_runner(config.model, model, block_size=16)
    for drafting in (False, True):
        made = partial(load_drafter, config.speculation, config.model, runner, block_size=16)
        harness = Harness(runner, drafter=made if drafting else None, eos=VOCAB - 1)
        for place, prompt in enumerate(([5, 9, 80], [7] * 20)):
            exact = Speculation(rule="exact")
            harness.submit(f"r{place}", prompt, max_tokens=24, ignore_eos=True, speculation=exact)
        harness.run()
        found.append({name: story.tokens for name, story in harness.stories.items()})
    assert found[0] == found[1]
    counters = harness.engine.counters
    assert counters.accepted_tokens > 0.5 * counters.drafted_tokens > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--drafter", "ngram", "--draft-quantize", "q4_0"), r"speculation.quantize q4_0 \(--draft-quantize\) is for"),
        (("--drafter", "none", "--draft-weights", "quantized"), r"speculation.weights quantized \(--draft-weights\)"),
        (("--drafter", "draft_model", "--draft-quantize", "q4_0"), "with --draft-model"),
        (("--drafter", "eagle", "--draft-model", "x", "--draft-quantize", "q4_0"), "is for --drafter draft_model"),
    ],
)
def test_formats_of_no_draft_model_are_refused(model, flags, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        settings(model, tmp_path, "--device", "cpu", *flags)


def test_what_a_draft_model_can_not_become_is_named(model, tmp_path):
    with pytest.raises(ModelLoadError, match=r"the draft model \(--draft-model\): model.weights quantized keeps codes"):
        settings(model, tmp_path, *OWN, "--draft-model", str(model), "--draft-weights", "quantized")
