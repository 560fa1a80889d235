"""MTP heads in a whole engine: the tokens are those of the engine without, however the work is scheduled, and drafts
are accepted."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from drafting.heads import VOCAB
from drafting.mtp_models import FAMILIES, save_model
from engine.harness import Harness
from engine.test_structured_output import EOS, PIECES, TOKEN_BYTES, UNTHINK
from tailrace.config import GrammarConfig, ModelConfig, SpeculationConfig
from tailrace.drafting import load_drafter
from tailrace.grammar.service import Grammars
from tailrace.request.options import Grammar, MarkedSpan, Speculation, ThinkingBudget
from tailrace.runners import load_runner
from tailrace.wire.messages import Finished

PROMPTS = [[5, 6, 7, 8, 5, 6, 7], [3 + i % 50 for i in range(90)], [9] * 5]
EXACT = Speculation(rule="exact")


class Served:
    """One model, with and without its head."""

    def __init__(self, folder) -> None:
        self.config = ModelConfig(model=str(folder), dtype="float32", threads=1, device="cpu", trust_remote_code=True)
        self.runner = load_runner(self.config, folder, block_size=16)

    def run(self, drafting: bool, fields: dict[str, Any], prompts=PROMPTS, **options: Any) -> Harness:
        """All requests to their ends."""
        self.runner.capture(())
        config = SpeculationConfig(drafter="mtp", cache_gib=0.01)
        drafter = functools.partial(load_drafter, config, self.config, self.runner, block_size=16)
        given: dict[str, Any] = {"num_blocks": 96, "max_num_batched_tokens": 32, "eos": VOCAB - 1, "max_drafts": 3}
        given |= options
        harness = Harness(self.runner, drafter=drafter if drafting else None, **given)
        for place, prompt in enumerate(prompts):
            asked = {"max_tokens": 24, "seed": place, "ignore_eos": True, "speculation": EXACT} | fields
            harness.submit(f"r{place}", prompt, **asked)
        harness.run()
        assert harness.engine.speculator.failures == 0
        return harness

    def check(self, fields: dict[str, Any], prompts=PROMPTS, **options: Any) -> Harness:
        """The same tokens with and without, and some drafts are accepted."""
        plain, drafted = (self.run(drafting, fields, prompts, **options) for drafting in (False, True))
        assert tokens_of(drafted) == tokens_of(plain)
        counters = drafted.engine.counters
        assert 0.05 * counters.drafted_tokens < counters.accepted_tokens < counters.drafted_tokens
        assert counters.steps <= plain.engine.counters.steps  # the last request to end may have had no luck
        return drafted


def tokens_of(harness: Harness) -> dict[tuple, list[int]]:
    return {name: story.tokens for name, story in harness.stories.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    @functools.cache
    def load(name: str) -> Served:
        return Served(save_model(name, tmp_path_factory.mktemp(name), agreeing=True))

    return load


@pytest.fixture(params=FAMILIES)
def model(request, served) -> Served:
    return served(request.param)


@pytest.mark.few(2)
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize(
    "fields", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}]
)
def test_tokens_are_those_without_drafts(model, fields, overlap):
    harness = model.check(fields, overlap=overlap)
    assert len({token for tokens in tokens_of(harness).values() for token in tokens}) > 8


@pytest.mark.few(1)
def test_forks(model):
    model.check({"temperature": 0.9, "n": 4}, max_num_seqs=24, num_blocks=256)


@pytest.mark.few(1)
def test_preemption(model):
    harness = model.check({"temperature": 0.0, "max_tokens": 40}, PROMPTS * 2, num_blocks=13)
    assert harness.engine.stats().preemptions > 0


@pytest.mark.few(1)
def test_prefix_reuse(model):
    """The second half of the prompts finds the first half's blocks, which the head has not seen."""
    prompts = [PROMPTS[1], [*PROMPTS[1], 4, 5], [*PROMPTS[1][:70], 6, 7, 8]] * 2
    harness = model.check({"temperature": 0.0}, prompts, max_num_seqs=1)
    assert sum(story.cached for story in harness.stories.values()) > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
def test_other_rules(model, rule):
    harness = model.run(True, {"temperature": 0.8, "speculation": Speculation(rule=rule)})
    assert all(len(tokens) == 24 for tokens in tokens_of(harness).values())
    assert harness.engine.counters.accepted_tokens > 0.05 * harness.engine.counters.drafted_tokens


# ---- calls under a grammar, after thoughts with a limit

CALL = {
    "type": "object",
    "properties": {
        "name": {"enum": ["find", "send"]},
        "arguments": {
            "type": "object",
            "properties": {"to": {"enum": ["Ada", "Bo"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["to", "count"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
SPAN = MarkedSpan("<think>", "</think>", opened=True)
CALLING = {
    "grammar": Grammar(kind="json_schema", source=json.dumps(CALL), after=SPAN),
    "thinking": ThinkingBudget(max_tokens=9, span=SPAN, closing_token_ids=(UNTHINK,)),
    "ignore_eos": False,
    "max_tokens": 150,
}


@pytest.fixture(scope="module")
def grammars():
    made = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], len(PIECES))
    yield made
    made.close()


def is_call(text: str) -> bool:
    thought, marker, call = text.partition("</think>")
    value = json.loads(call)
    return (
        bool(marker)
        and len(thought) < 60
        and value.keys() == {"name", "arguments"}
        and value["name"] in ("find", "send")
        and value["arguments"].keys() == {"to", "count"}
        and value["arguments"]["to"] in ("Ada", "Bo")
        and 0 <= value["arguments"]["count"] <= 99
    )


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        *((name, 10) for name in ("deepseek", "qwen3_5")),
        *(pytest.param(name, 60, marks=pytest.mark.long) for name in FAMILIES),
    ],
)
def test_no_call_is_lost_or_wrong(name, runs, grammars, tmp_path):
    """Sampled calls after thoughts that a limit ends, with forks: each is whole, and the same as without drafts."""
    model = Served(save_model(name, tmp_path, agreeing=True, vocab=len(PIECES)))
    options: dict[str, Any] = {"grammars": grammars, "token_bytes": TOKEN_BYTES, "eos": EOS, "num_blocks": 256}
    prompts = [[3 + (7 * i + j) % 90 for j in range(3 + i % 20)] for i in range(runs)]
    fields = CALLING | {"temperature": 0.9, "n": 2}
    plain, drafted = (model.run(drafting, fields, prompts, **options) for drafting in (False, True))
    assert tokens_of(drafted) == tokens_of(plain)
    assert len(drafted.stories) == 2 * runs
    for story in drafted.stories.values():
        assert isinstance(story.end, Finished)
        assert story.end.reason == "stop"
        assert is_call("".join(PIECES[token] for token in story.tokens if token != EOS))
    counters = drafted.engine.counters
    assert 0 < counters.accepted_tokens < counters.drafted_tokens
    assert counters.steps < plain.engine.counters.steps
