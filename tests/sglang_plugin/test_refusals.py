"""What of a request can't act in SGLang: an error where the request enters, which names the field and the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from batches import MANAGER, add_own_params, make_params, resolve
from sglang.srt import runtime_context
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams as Theirs
from tiny_model import V

from field_examples import ACTS
from tailrace.errors import ParameterError
from tailrace.integrations.sglang import own_fields
from tailrace.integrations.sglang.refused_fields import DRAFTS, SGLANG, THEIRS


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
        assert str(caught.value) == f"{name} can't be had inside SGLang: {reason}"
    for name, field in THEIRS.items():
        with pytest.raises(ParameterError) as caught:
            make_params({"custom_params": {name: 1}})
        where = f"SGLang's own {field}, outside of custom_params"
        assert str(caught.value) == f"{name} can't be had in custom_params: set {where}"
    names = {*Theirs.__struct_fields__, *GenerateReqInput.__dataclass_fields__}
    for field in THEIRS.values():
        assert set(field.partition(" (")[0].replace(" or ", ", ").replace(" and ", ", ").split(", ")) <= names


def test_with_drafts_fields_with_history_are_errors_and_others_are_not(model):
    runtime_context.publish(resolve(model, **NGRAM), role="tokenizer")
    theirs = {name: ({}, 1) for name in DRAFTS if name in THEIRS}
    for name, (needed, value) in {**ACTS, **theirs}.items():
        custom = {**needed, name: value}
        if name in DRAFTS:
            with pytest.raises(ParameterError, match=f"{name} can't be had inside SGLang: {DRAFTS[name]}"):
                make_params({"custom_params": {name: value}})
        elif not needed.keys() & DRAFTS.keys():
            assert own_fields.KEY in make_params({"custom_params": custom}).custom_params


WRONG: list[tuple[Any, str]] = [
    ({"dry_multiplyer": 1}, "no field dry_multiplyer in custom_params; did you mean dry_multiplier?"),
    ({"xtc_probabilty": 1}, "did you mean xtc_probability?"),
    ({"repeat_penalty": 1.1}, "no field repeat_penalty in custom_params; did you mean repetition_penalty?"),
    ({"typ_p": 0.5}, "did you mean typical_p?"),
    ({"thinking_token_budget": 5}, "did you mean SGLang's own max_thinking_tokens, outside of custom_params?"),
    ({"structured_outputs": {}}, "did you mean SGLang's own json_schema, regex"),
    ({"max_new_tokens": 5}, "did you mean SGLang's own max_new_tokens"),
    ({"nothing_known": 1}, "neither tailrace nor SGLang reads it"),
    ({own_fields.KEY: "{}"}, f"{own_fields.KEY} is a name of tailrace's own"),
    ({"xtc_probability": 2}, "xtc_probability must be a number in [0, 1], got 2"),
    ({"xtc_threshold": 0.2}, "xtc_threshold has no effect without xtc_probability"),
    ({"typical_p": True}, "typical_p must be a number in [0, 1], got true"),
    ({"typical_p": None}, "typical_p must be a number"),
    ({"p_less": 2}, "p_less must be true or false, got 2"),
    ({"allowed_token_ids": [V]}, f"allowed_token_ids: token id {V} is not in 0 … {V - 1}"),
    ({"bad_words": [""]}, "bad_words must hold strings of 1 to 1000 characters"),
    ({"bad_words": "a"}, "bad_words must be a list of texts or lists of token ids"),
    ({"sequence_bias": [["a", "b"]]}, "sequence_bias"),
    ({"sequence_bias": 3}, "sequence_bias must be a list of [text or token ids, bias]"),
    ({"DRY_MULTIPLIER": 1}, "did you mean dry_multiplier?"),
    ({"topNSigma": 1}, "did you mean top_n_sigma?"),
    ({"dry_multiplier": 1.0, "dry_sequence_breakers": [""]}, "must hold at most 64 strings of 1 to 1000 characters"),
    ({"dry_multiplier": 1.0, "dry_sequence_breakers": ["a"] * 65}, "must hold at most 64 strings"),
    ({"dry_multiplier": 1.0, "dry_sequence_breakers": ["a", 3]}, "must be a list of strings, or a list of token ids"),
    ({"bad_words": ["a" * 1001]}, "bad_words must hold strings of 1 to 1000 characters"),
    ({"bad_words": ["a" * 1000] * 33}, "bad_words must hold at most 32768 characters in all"),
    ({"sequence_bias": [["", 1.0]]}, "sequence_bias must hold strings of 1 to 1000 characters"),
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
    with pytest.raises(ParameterError, match="banned_strings can't be had inside SGLang"):
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
