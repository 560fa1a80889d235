"""Each field of tailrace's in SGLang: it acts as in the library, or it is refused where the request enters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import (
    MANAGER,
    PROMPT,
    Runner,
    make_batch,
    make_logits,
    make_params,
    make_request,
    start,
)
from tiny_model import EOS, V

from field_examples import ACTS
from tailrace.errors import ParameterError
from tailrace.integrations.engine_tokenizer import encoder_of
from tailrace.integrations.sglang import own_fields
from tailrace.integrations.sglang.refused_fields import DRAFTS, SGLANG, SGLANG_DRAFTS, THEIRS
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.processors import REGISTERED, register

STEPS = 40
TOKENIZER = MANAGER.tokenizer
SAME = {"top_k": 12, "temperature": 1.5, "sampling_seed": 4}
ALONE = {"mirostat", "mirostat_tau", "mirostat_eta"}  # they replace truncations


@pytest.fixture(autouse=True)
def processor():
    def favour_three(logits, **more):
        logits[..., 3] += 9.0
        return logits

    if "sglang_test" not in REGISTERED:
        register("sglang_test", favour_three)
    yield
    REGISTERED.pop("sglang_test", None)


def make_step(step: int) -> torch.Tensor:
    """Return a step's logits, which favour three tokens most and then nine, so that sequences come again."""
    logits = make_logits(1, step)
    logits[:, 1:4] += 3.0
    logits[:, 12:] -= 20.0
    return logits


def generate(fields: dict[str, Any], late: bool = False, neighbours: int = 0) -> list[int]:
    """Draw a request's tokens in SGLang. late: SGLang reads each token a step later, as with overlapping steps."""
    runner, request = Runner(), make_request(0, fields)
    others = [make_request(place + 1, {"sampling_seed": place}) for place in range(neighbours)]
    batch, said = make_batch([*others, request]), []
    for step in range(STEPS):
        logits = make_step(step)[0].expand(neighbours + 1, V)
        ids, _ = runner.draw(
            logits, batch, [len(PROMPT) + step] * (neighbours + 1), [0] * neighbours + said[-1:] if said else None
        )
        said.append(int(ids[-1]))
        if late:
            request.output_ids.extend(said[step - 1 : step])
        else:
            request.output_ids.append(said[-1])
        for other in others:
            other.output_ids.append(0)
    assert not runner.sampler.errors
    return said


def generate_here(custom: dict[str, Any], theirs: dict[str, Any]) -> list[int]:
    """Draw the same request's tokens with the library alone."""
    fields = own_fields.make_params(custom, own_fields.read_fields(make_params(theirs)), TOKENIZER, V)
    slots = Slots(1, V)
    slots.add(0, fields, prompt=PROMPT, key=4, eos_token_ids=[EOS])
    for step in range(STEPS):
        drawn = Sampler(slots)(make_step(step), Rows.plain([0], [0]))
        slots.commit([0], drawn.tokens())
    return slots[0].history.tokens[len(PROMPT) :] if slots[0].history else []


def test_no_field_is_forgotten():
    assert len({*ACTS, *SGLANG, *THEIRS}) == len(ACTS) + len(SGLANG) + len(THEIRS)
    assert ACTS.keys() | SGLANG.keys() | THEIRS.keys() == FIELDS.keys()
    assert DRAFTS.keys() <= ACTS.keys() | THEIRS.keys()
    assert {**SGLANG, **DRAFTS} == SGLANG_DRAFTS
    assert all(reason and not reason.endswith(".") for reason in SGLANG_DRAFTS.values())


@pytest.mark.parametrize("name", ACTS)
def test_a_field_acts_as_in_the_library(model, monkeypatch, name):
    start(model, monkeypatch)
    needed, value = ACTS[name]
    theirs = {key: setting for key, setting in SAME.items() if key != "top_k" or name not in ALONE}
    idle = {other for other in needed if FIELDS[other].needs and not needed.keys() & {*FIELDS[other].needs}}
    without = generate({**theirs, "custom_params": {key: needed[key] for key in needed.keys() - idle}})
    custom = {**needed, name: value}
    said = generate({**theirs, "custom_params": custom})
    assert said != without
    assert said == generate({**theirs, "custom_params": custom}, late=True)
    assert said == generate({**theirs, "custom_params": custom}, neighbours=3)
    if expected := generate_here(custom, theirs):
        assert said == expected


def test_default_breakers_are_those_of_tailraces_server(model, monkeypatch):
    start(model, monkeypatch)
    theirs = own_fields.read_fields(make_params({}))
    made = own_fields.make_params({"dry_multiplier": 1.0}, theirs, TOKENIZER, V)
    wrapped = encoder_of(TOKENIZER)
    assert made.dry_sequence_breakers == wrapped.ids_with(("\n", ":", '"', "*")) != ()
    assert (
        own_fields.make_params(
            {"dry_multiplier": 1.0, "dry_sequence_breakers": []}, theirs, TOKENIZER, V
        ).dry_sequence_breakers
        == ()
    )
    with pytest.raises(ParameterError, match="bad_words must be given as token ids: this server has no tokenizer"):
        own_fields.make_params({"bad_words": ["a"]}, theirs, None, V)


def test_parameters_survive_the_way_to_the_scheduler(model, monkeypatch):
    start(model, monkeypatch)
    for name, (needed, value) in ACTS.items():
        theirs = own_fields.read_fields(make_params({} if name in ALONE else SAME))
        made = own_fields.make_params({**needed, name: value}, theirs, TOKENIZER, V)
        assert own_fields.unpack_params(own_fields.pack_params(made)) == made


def test_greedy_requests_take_tailraces_edits(model, monkeypatch):
    start(model, monkeypatch)
    said = generate({"temperature": 0.0, "custom_params": {"no_repeat_ngram_size": 1}})
    assert len(set(said)) == len(said)
    assert SamplingParams(temperature=0.0, no_repeat_ngram_size=1).greedy
    logits = torch.zeros(1, V)
    assert int(Runner().draw(logits, make_batch([make_request(0, {"temperature": 0.0})]), [5])[0]) == 0
