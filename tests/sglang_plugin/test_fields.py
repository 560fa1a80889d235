"""Each field of tailrace's in SGLang: it acts as in the library, or it is refused where the request enters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batches import (
    MANAGER,
    PROMPT,
    Runner,
    add_own_params,
    make_batch,
    make_logits,
    make_params,
    make_request,
    resolve,
    start,
)
from sglang.srt import runtime_context
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams as Theirs
from tiny_model import EOS, V

from tailrace.errors import ParameterError
from tailrace.integrations.sglang import own_fields
from tailrace.integrations.sglang.refused_fields import DRAFTS, SGLANG, SGLANG_DRAFTS, THEIRS
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.processors import REGISTERED, register

STEPS = 40
TOKENIZER = MANAGER.tokenizer.backend_tokenizer
PENALISED = {"presence_penalty": 20.0}
DRY = {"dry_multiplier": 50.0, "dry_allowed_length": 1}
# field → further custom params, and its own value
ACTS: dict[str, tuple[dict[str, Any], Any]] = {
    "dynatemp_range": ({}, 1.4),
    "dynatemp_exponent": ({"dynatemp_range": 1.4}, 3.0),
    "smoothing_factor": ({}, 0.5),
    "smoothing_curve": ({"smoothing_factor": 0.5}, 2.5),
    "top_a": ({}, 0.9),
    "typical_p": ({}, 0.3),
    "tfs_z": ({}, 0.3),
    "epsilon_cutoff": ({}, 0.05),
    "eta_cutoff": ({}, 0.5),
    "top_n_sigma": ({}, 0.5),
    "top_h": ({}, 0.1),
    "p_less": ({}, True),
    "p_less_norm": ({}, True),
    "min_k": ({}, True),
    "min_k_tau": ({"min_k": True}, 100.0),
    "xtc_probability": ({}, 1.0),
    "xtc_threshold": ({"xtc_probability": 1.0}, 0.01),
    "mirostat": ({"mirostat_tau": 1.0}, 2),
    "mirostat_tau": ({"mirostat": 2}, 1.0),
    "mirostat_eta": ({"mirostat": 2, "mirostat_tau": 1.0}, 50.0),
    "adaptive_target": ({}, 0.05),
    "adaptive_decay": ({"adaptive_target": 0.3}, 0.0),
    "repetition_penalty": ({}, 9.0),
    "presence_penalty": ({}, 20.0),
    "frequency_penalty": ({}, 20.0),
    "penalty_last_n": (PENALISED, 1),
    "repetition_scope": ({"repetition_penalty": 9.0}, "output"),
    "penalty_scope": (PENALISED, "both"),
    "dry_multiplier": ({"dry_allowed_length": 1}, 50.0),
    "dry_base": ({"dry_multiplier": 0.5, "dry_allowed_length": 1, "dry_sequence_breakers": []}, 1000.0),
    "dry_allowed_length": ({"dry_multiplier": 50.0}, 1),
    "dry_penalty_last_n": (DRY, 2),
    "dry_sequence_breakers": (DRY, [chr(33 + i) for i in range(60)]),
    "no_repeat_ngram_size": ({}, 1),
    "encoder_no_repeat_ngram_size": ({}, 1),
    "encoder_repetition_penalty": ({}, 50.0),
    "exponential_decay_length_penalty": ({}, [2, 4.0]),
    "normalize_logits": ({"repetition_penalty": 9.0}, True),
    "sequence_bias": ({}, [["a", 50.0]]),
    "allowed_token_ids": ({}, [1, 2, 3]),
    "bad_words": ({}, ["a", [1], [2], [3]]),
    "processors": ({}, {"sglang_test": {}}),
    "watermark": ({}, {"kind": "kgw", "key": 5, "delta": 20.0}),
    "sampler_order": ({"typical_p": 0.5, "tfs_z": 0.5}, ["tfs_z", "temperature", "typical_p"]),
    "forced_token_ids": ({}, [9, 8, 7]),
}
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
    assert DRAFTS.keys() <= ACTS.keys()
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
    wrapped = own_fields.wrap_tokenizer(TOKENIZER)
    assert made.dry_sequence_breakers == wrapped.ids_with(("\n", ":", '"', "*")) != ()
    assert (
        own_fields.make_params(
            {"dry_multiplier": 1.0, "dry_sequence_breakers": []}, theirs, TOKENIZER, V
        ).dry_sequence_breakers
        == ()
    )
    with pytest.raises(ParameterError, match="has no fast tokenizer"):
        own_fields.make_params({"bad_words": ["a"]}, theirs, None, V)


def test_parameters_survive_the_way_to_the_scheduler(model, monkeypatch):
    start(model, monkeypatch)
    for name, (needed, value) in ACTS.items():
        theirs = own_fields.read_fields(make_params({} if name in ALONE else SAME))
        made = own_fields.make_params({**needed, name: value}, theirs, TOKENIZER, V)
        assert own_fields.unpack_params(own_fields.pack_params(made)) == made


def check_refusal(model: str, custom: Any, **flags: Any) -> str:
    runtime_context.publish(resolve(model, **flags), role="tokenizer")
    with pytest.raises(ParameterError) as caught:
        make_params({"custom_params": custom})
    return str(caught.value)


NGRAM = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}


def test_each_refused_field_is_an_error_with_the_reason(model):
    runtime_context.publish(resolve(model), role="tokenizer")
    for name, reason in SGLANG.items():
        with pytest.raises(ParameterError) as caught:
            make_params({"custom_params": {name: 1}})
        assert str(caught.value) == f"custom_params: {name} has no effect in SGLang: {reason}"
    for name, field in THEIRS.items():
        with pytest.raises(ParameterError) as caught:
            make_params({"custom_params": {name: 1}})
        assert (
            str(caught.value)
            == f"custom_params: {name} is SGLang's own field: give it as {field}, outside of custom_params"
        )
    names = {*Theirs.__struct_fields__, *GenerateReqInput.__dataclass_fields__}
    for field in THEIRS.values():
        assert set(field.partition(" (")[0].replace(" or ", ", ").replace(" and ", ", ").split(", ")) <= names


def test_with_drafts_fields_with_history_are_errors_and_others_are_not(model):
    runtime_context.publish(resolve(model, **NGRAM), role="tokenizer")
    for name, (needed, value) in ACTS.items():
        custom = {**needed, name: value}
        if name in DRAFTS:
            with pytest.raises(ParameterError, match=f"{name} has no effect in SGLang with drafts: {DRAFTS[name]}"):
                make_params({"custom_params": {name: value}})
        elif not needed.keys() & DRAFTS.keys():
            assert own_fields.KEY in make_params({"custom_params": custom}).custom_params


WRONG: list[tuple[Any, str]] = [
    ({"dry_multiplyer": 1}, "dry_multiplyer is no field of tailrace's: is dry_multiplier meant?"),
    ({"xtc_probabilty": 1}, "is xtc_probability meant?"),
    ({"repeat_penalty": 1.1}, "repeat_penalty is named repetition_penalty in tailrace"),
    ({"typ_p": 0.5}, "typ_p is named typical_p in tailrace"),
    ({"thinking_token_budget": 5}, "thinking_token_budget is SGLang's own field: give it as max_thinking_tokens"),
    ({"structured_outputs": {}}, "structured_outputs is SGLang's own field"),
    ({"max_new_tokens": 5}, "max_new_tokens is SGLang's own field"),
    ({"nothing_known": 1}, "neither tailrace nor SGLang reads it"),
    ({own_fields.KEY: "{}"}, "neither tailrace nor SGLang reads it"),
    ({"xtc_probability": 2}, "xtc_probability must be a number in [0, 1], got 2"),
    ({"xtc_threshold": 0.2}, "xtc_threshold has no effect without xtc_probability"),
    ({"typical_p": True}, "typical_p must be a number in [0, 1], got true"),
    ({"typical_p": None}, "typical_p must be a number"),
    ({"p_less": 2}, "p_less must be true or false, got 2"),
    ({"allowed_token_ids": [V]}, f"allowed_token_ids: token id {V} is not in 0 … {V - 1}"),
    ({"bad_words": [""]}, "bad_words must hold non-empty words"),
    ({"bad_words": "a"}, "bad_words is of the wrong type"),
    ({"sequence_bias": [["a", "b"]]}, "sequence_bias"),
    ({"sequence_bias": 3}, "sequence_bias is of the wrong type"),
    ({"dry_multiplier": 1.0, "dry_sequence_breakers": [""]}, "dry_sequence_breakers must hold non-empty strings"),
    ({"processors": {"absent": {}}}, 'there is no "absent"'),
    ({"watermark": {"kind": "other"}}, "watermark"),
    (5, "custom_params must be an object"),
    (["a"], "custom_params must be an object"),
]


@pytest.mark.parametrize(("custom", "text"), WRONG)
def test_a_wrong_custom_param_is_an_error(model, custom, text):
    assert text in check_refusal(model, custom)


def test_custom_params_of_others_pass(model):
    """SGLang's own, and those of a custom logits processor. tailrace's own names stay tailrace's."""
    runtime_context.publish(resolve(model), role="tokenizer")
    for custom in ({}, {"thinking_budget": 3}, {"__sglang_reasoning_in_grammar": True}):
        assert make_params({"custom_params": custom}).custom_params == custom
    given = {"custom_params": {"ngram_size": 3, "token_ids": [1]}}
    assert make_params(given, custom_logit_processor="{}").custom_params == given["custom_params"]
    with pytest.raises(ParameterError, match="ngram_size has no effect"):
        make_params(given)
    with pytest.raises(ParameterError, match="banned_strings has no effect"):
        make_params({"custom_params": {"banned_strings": ["a"]}}, custom_logit_processor="{}")


BESIDE: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ({"beam_width": 2}, {}, {}, "with beam_width"),
    ({}, {"return_sampling_mask": True}, {}, "with return_sampling_mask"),
    ({"watermark": {"key": "a" * 32}}, {}, {}, "with SGLang's watermark"),
    ({}, {}, {"rl_on_policy_target": "fsdp"}, "with --rl-on-policy-target"),
]


@pytest.mark.parametrize(("fields", "given", "flags", "text"), BESIDE)
def test_own_fields_are_errors_where_others_choose_the_token(model, monkeypatch, fields, given, flags, text):
    runtime_context.publish(resolve(model, **flags), role="tokenizer")
    params = Theirs(**{**fields, "watermark": None}, custom_params={"xtc_probability": 0.5})
    if "watermark" in fields:
        params.watermark = SimpleNamespace(enabled=None)
    with pytest.raises(ParameterError, match=text):
        add_own_params(params, SimpleNamespace(**given), MANAGER)


def test_forced_tokens_beside_a_grammar_and_penalties_given_twice_are_errors(model):
    runtime_context.publish(resolve(model), role="tokenizer")
    with pytest.raises(ParameterError, match="forced_token_ids can't be had with a grammar"):
        make_params({"regex": "a+", "custom_params": {"forced_token_ids": [1]}})
    with pytest.raises(ParameterError, match="presence_penalty is given twice"):
        make_params({"presence_penalty": 1.0, "custom_params": {"presence_penalty": 1.0}})
    with pytest.raises(ParameterError, match="top_k has no effect with mirostat"):
        make_params({"top_k": 5, "custom_params": {"mirostat": 2}})


def test_greedy_requests_take_tailraces_edits(model, monkeypatch):
    start(model, monkeypatch)
    said = generate({"temperature": 0.0, "custom_params": {"no_repeat_ngram_size": 1}})
    assert len(set(said)) == len(said)
    assert SamplingParams(temperature=0.0, no_repeat_ngram_size=1).greedy
    logits = torch.zeros(1, V)
    assert int(Runner().draw(logits, make_batch([make_request(0, {"temperature": 0.0})]), [5])[0]) == 0
