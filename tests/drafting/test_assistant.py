"""Gemma 4's assistants against transformers' own, on keys and values of its own target; and what is refused."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations import peft
from transformers.models.auto import auto_factory

from drafting.heads import Argmax
from engine.harness import Harness
from runners.tiny_models import VOCAB, save
from tailrace.config import ModelConfig, SpeculationConfig
from tailrace.drafting import assistant, load_drafter
from tailrace.drafting.assistant import Assistant, AssistantDrafter, is_assistant
from tailrace.drafting.base import DraftRequest, TargetStates
from tailrace.errors import ModelLoadError
from tailrace.models.footprint import head_bytes
from tailrace.request.options import Speculation
from tailrace.runners import load_runner
from tailrace.runners.flat_batch import block_table, lay_out

SIZE, WIDTH = 16, 64
BUILT = tuple(map(int, transformers.__version__.split(".")[:2])) >= assistant.LEAST
needs_model = pytest.mark.skipif(not BUILT, reason="this transformers can't build such a model")
TYPES = ["sliding_attention", "sliding_attention", "full_attention"]


def save_assistant(folder: Path, ordered: bool = False, **changes: Any) -> Path:
    """A random assistant for the tiny target."""
    torch.manual_seed(9)
    text = transformers.Gemma4TextConfig(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "global_head_dim": 64,
            "sliding_window": 16,
            "layer_types": TYPES,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "max_position_embeddings": 512,
            "pad_token_id": 0,
        }
        | changes
    )
    config = transformers.Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=WIDTH,
        use_ordered_embeddings=ordered,
        num_centroids=VOCAB,  # a token each: the vocabulary's size is prime
        centroid_intermediate_top_k=20,
    )
    model = transformers.Gemma4AssistantForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.dim() > 1 else None
    if ordered:
        model.masked_embedding.token_ordering.copy_(torch.randperm(VOCAB))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Our runner, transformers' model, and the tokens that both have computed."""
    folder = tmp_path_factory.mktemp("target")
    save("gemma4 text", folder)
    runner = load_runner(ModelConfig(dtype="float32", threads=1, device="cpu"), folder, block_size=SIZE)
    runner.allocate(16)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return runner, theirs


class Shown(Argmax):
    """Argmax for this vocabulary."""

    def sample(self, logits, who):
        for row, i in zip(logits, who, strict=True):
            self.shown[self.requests[i].slot].append(row.clone())
            self.tokens[i].append(int(row.argmax()))
        return [i for i in who if len(self.tokens[i]) < self.requests[i].count]


@torch.inference_mode()
def expected(theirs: Any, folder: Path, tokens: list[int], count: int) -> torch.Tensor:
    """What transformers' own generator of candidates computes."""
    drafting: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    drafting.set_attn_implementation("eager")
    out = theirs.model(torch.tensor([tokens[:-1]]), use_cache=False, return_shared_kv_states=True)
    state, last, found = out.last_hidden_state[:, -1:], torch.tensor([tokens[-1:]]), []
    for _ in range(count):
        step = drafting(
            inputs_embeds=torch.cat([theirs.get_input_embeddings()(last), state], -1),
            position_ids=torch.tensor([[len(tokens) - 1]]),
            shared_kv_states=dict(out.shared_kv_states),
        )
        found.append(step.logits[0, 0])
        state, last = step.last_hidden_state, step.logits.argmax(-1)
    return torch.stack(found)


@needs_model
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("cuts", [(), (7, 20)], ids=len)
def test_logits_are_those_of_transformers(target, ordered, cuts, tmp_path):
    """Two sequences, one of them longer than the window, in several chunks."""
    runner, theirs = target
    folder = save_assistant(tmp_path, ordered)
    assert is_assistant(folder)
    drafter = AssistantDrafter(Assistant(folder, runner), Shown(), SIZE)  # type: ignore[arg-type]
    runner.capture(drafter.captures)
    rng = random.Random(3)
    sequences = [[rng.randrange(VOCAB) for _ in range(length)] for length in (45, 9)]
    blocks = [[3, 1, 7, 5], [2]]
    for first, end in zip([0, *cuts], [*cuts, 44], strict=True):
        spans = [(first, end), (first, min(end, 8))] if first < 8 else [(first, end)]
        tables = block_table(blocks[: len(spans)])
        tokens = [sequences[i][a:b] for i, (a, b) in enumerate(spans)]
        runner.forward(lay_out(tokens, [a for a, _ in spans], tables, SIZE))
        counts = [b - a for a, b in spans]
        rows = [0, counts[0]][: len(spans)]
        drafter.observe(TargetStates(range(len(spans)), sequences, [a for a, _ in spans], counts, rows, runner.hidden))
    requests = [
        DraftRequest(i, tokens, 4 - i, blocks=blocks[i], computed=len(tokens) - 1) for i, tokens in enumerate(sequences)
    ]
    drafter.draft(requests)
    for i, tokens in enumerate(sequences):
        got, wanted = torch.stack(drafter.draft_sampler.shown[i]), expected(theirs, folder, tokens, 4 - i)
        seen = got > float("-inf")
        assert seen.all() == (not ordered)
        torch.testing.assert_close(got[seen], wanted[seen], atol=3e-4, rtol=3e-4)
        assert (
            wanted[~seen] < wanted.masked_fill(~seen, float("inf")).amin(1, keepdim=True).expand_as(wanted)[~seen]
        ).all()
    runner.capture(())


@needs_model
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": VOCAB - 1}, "vocab_size must be the target's"),
        ({"head_dim": 16}, "4 heads of 16 for sliding_attention, and the target's keys have 2 of 32"),
        ({"num_attention_heads": 3, "num_key_value_heads": 1}, "3 heads of 32 for sliding_attention"),
    ],
)
def test_what_does_not_fit_is_named(target, changes, message, tmp_path):
    with pytest.raises(ModelLoadError, match=message):
        Assistant(save_assistant(tmp_path, **changes), target[0])


@needs_model
def test_a_missing_tensor_is_named(target, tmp_path):
    folder = save_assistant(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["post_projection.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"not all there: post_projection\.weight missing"):
        Assistant(folder, target[0])


@needs_model
def test_an_adapter_in_its_folder_is_not_loaded(target, tmp_path, monkeypatch):
    folder = save_assistant(tmp_path)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "../outside"}')
    monkeypatch.setattr(auto_factory, "is_peft_available", lambda: True)
    monkeypatch.setattr(peft, "is_peft_available", lambda: True)
    loaded: list[Any] = []
    monkeypatch.setattr(peft.PeftAdapterMixin, "load_adapter", lambda *args, **kwargs: loaded.append(args))
    Assistant(folder, target[0])
    assert not loaded


@pytest.mark.skipif(BUILT, reason="this transformers can build such a model")
def test_older_versions_of_transformers_are_named(target, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_assistant", "text_config": {}}))
    with pytest.raises(ModelLoadError, match=r"transformers 5.24 or later is needed, .* is installed"):
        Assistant(tmp_path, target[0])


@needs_model
@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"temperature": 0.9, "n": 3}], ids=str)
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_tokens_are_those_without_drafts(target, fields, overlap, tmp_path):
    """In a whole engine, with forks and reused prefixes."""
    folder, runner = save_assistant(tmp_path), target[0]
    config = SpeculationConfig(drafter="mtp", model=str(folder))
    assert head_bytes(folder, 4) > 0
    found = []
    for drafting in (False, True):
        runner.capture(())
        made = partial(load_drafter, config, ModelConfig(), runner, block_size=SIZE) if drafting else None
        harness = Harness(runner, drafter=made, num_blocks=64, max_num_batched_tokens=32, overlap=overlap, max_drafts=3)
        for place, length in enumerate((70, 70, 6)):
            prompt = [(7 * i + 3) % VOCAB for i in range(length)]
            exact = Speculation(rule="exact")
            harness.submit(f"r{place}", prompt, max_tokens=20, seed=place, ignore_eos=True, speculation=exact, **fields)
        harness.run()
        assert harness.engine.speculator.failures == 0
        assert bool(harness.engine.counters.drafted_tokens) == drafting
        found.append({name: story.tokens for name, story in harness.stories.items()})
    assert found[0] == found[1]
    runner.capture(())
