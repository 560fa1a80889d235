"""A request's fields → SamplingParams: every field arrives, null is the default, the limit is the context's."""

from __future__ import annotations

import msgspec
import pytest

from field_examples import example
from tailrace.api.presets import PRESETS
from tailrace.api.sampling import change_params, output_limit, sampling_params
from tailrace.api.schema.common import PLAIN, GenerateRequest, over_http
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.structured import FIELDS as GRAMMARS
from tailrace.errors import ContextLengthError, ParameterError
from tailrace.explain.record import ExplainOptions
from tailrace.params import FIELDS, SamplingParams

# field of another type over HTTP → what is sent, and what arrives
CONVERTED = {
    "stop": (["a", "b"], ("a", "b")),
    "stop_regex": ("[0-9]+x", ("[0-9]+x",)),
    "banned_regex": ("x[0-9]", ("x[0-9]",)),
    "logit_bias": ({"7": -3.5}, {7: -3.5}),
    "explain": ({"top": 3, "ids": [5]}, ExplainOptions(top=3, ids=(5,))),
    "bad_words": (["no"], ((32, 110, 111), (110, 111))),
    "dry_sequence_breakers": (["a"], (97, 256)),
    "prediction": ({"type": "content", "content": "ab"}, (97, 98)),
    "sequence_bias": ([["ab", 1.5], [[4, 5], -2.0]], (((4, 5), -2.0), ((32, 97, 98), 1.5), ((97, 98), 1.5))),
}
# whose values the endpoints find: test_guidance_fields.py, test_structured.py, test_channels.py, test_lengths.py,
# test_logprobs.py
OF_ENDPOINTS = {"max_tokens", "logprobs", "guidance_scale", "negative_prompt", "grammar", "thinking", "stop_outside"}
ARRIVES = CONVERTED | {name: (msgspec.to_builtins(example(field)), example(field)) for name, field in PLAIN.items()}


def params(tokenizer, logprobs=None, **fields) -> SamplingParams:
    request = msgspec.convert({"prompt": "x"} | fields, CompletionRequest)
    return sampling_params(request, tokenizer, {}, max_tokens=9, logprobs=logprobs)


@pytest.mark.parametrize("name", ARRIVES)
def test_every_field_arrives(tokenizer, name):
    needed = FIELDS[name].needs[:1]
    beside = {of: ARRIVES[of][0] for of in needed if of in ARRIVES}
    sent, wanted = ARRIVES[name]
    got = getattr(params(tokenizer, 0 if "logprobs" in needed else None, **beside | {name: sent}), name)
    assert (tuple(sorted(got)) if name in ("bad_words", "sequence_bias") else got) == wanted
    assert wanted != FIELDS[name].default


def test_every_field_of_the_schema_is_in_this_test():
    elsewhere = {
        "model",
        "stream",
        "stream_options",
        "cache_salt",
        "priority",
        "deadline_s",
        *("truncation_length", "num_ctx"),  # test_prompt_length.py
        "stream_interval",
        "stream_interval_ms",
        "return_token_ids",
        "return_tokens_as_token_ids",  # test_logprobs.py
        "request_id",
        "prompt",
        "echo",
        "best_of",
        "use_beam_search",
        "length_penalty",
        "early_stopping",
        "add_special_tokens",
        "preset",
        "return_sampling_params",
        "timings_per_token",
        "return_progress",  # test_prompt_progress.py
        "resumable",  # test_resume.py
        "cfg_scale",  # test_guidance_fields.py
        "structured_outputs",
        "guided_decoding_backend",
        *GRAMMARS,  # test_structured.py
    }
    assert set(ARRIVES) | OF_ENDPOINTS == {name for name, field in FIELDS.items() if field.http}
    of_chats = {"grammar", "thinking", "stop_outside"}
    assert set(CompletionRequest.__struct_fields__) == elsewhere | set(ARRIVES) | OF_ENDPOINTS - of_chats


def test_what_the_schema_declares_by_hand_is_as_the_fields_say():
    """GenerateRequest names some fields for the code that reads them: their types must be the declared ones."""
    for field in msgspec.structs.fields(GenerateRequest):
        if field.name in PLAIN:
            assert field.type == over_http(PLAIN[field.name]), field.name
        elif field.name in FIELDS:
            assert FIELDS[field.name].http == "converted", field.name


@pytest.mark.parametrize("name", ARRIVES)
def test_null_and_absence_are_the_default(tokenizer, name):
    default = getattr(SamplingParams(), name)
    assert getattr(params(tokenizer), name) == getattr(params(tokenizer, **{name: None}), name) == default


def test_one_stop_string_is_a_list_of_one(tokenizer):
    assert params(tokenizer, stop="end").stop == ("end",)


def test_the_limit():
    assert output_limit(10, 100, None, "max_tokens", "prompt") == 90
    assert output_limit(10, 100, 90, "max_tokens", "prompt") == 90
    assert output_limit(99, 100, None, "max_tokens", "prompt") == 1
    with pytest.raises(ParameterError, match=r"max_tokens must be an integer in \[1, 90\], got 91"):
        output_limit(10, 100, 91, "max_tokens", "prompt")
    with pytest.raises(ContextLengthError, match="maximum context length is 100 tokens, but the prompt alone has 100"):
        output_limit(100, 100, None, "max_tokens", "prompt")
    with pytest.raises(ParameterError, match=r"max_completion_tokens must be an integer in \[1") as caught:
        output_limit(10, 100, 0, "max_completion_tokens", "messages")
    assert caught.value.param == "max_completion_tokens"


def test_the_models_defaults_fill_what_a_request_leaves_out(tokenizer):
    request = msgspec.convert({"prompt": "x", "top_p": 0.5}, CompletionRequest)
    got = sampling_params(request, tokenizer, {"temperature": 0.6, "top_p": 0.9}, max_tokens=9, logprobs=None)
    assert (got.temperature, got.top_p) == (0.6, 0.5)


def test_a_preset_is_a_starting_point(tokenizer):
    for name, fields in PRESETS.items():
        got = params(tokenizer, preset=name)
        assert all(getattr(got, field) == value for field, value in fields.items())
        assert params(tokenizer, preset=name, temperature=0.123).temperature == 0.123


def test_mirostat_drops_the_models_default_truncations_but_not_the_requests(tokenizer):
    request = msgspec.convert({"prompt": "x", "mirostat": 2}, CompletionRequest)
    got = sampling_params(request, tokenizer, {"top_p": 0.9, "temperature": 0.6}, max_tokens=9, logprobs=None)
    assert (got.mirostat, got.top_p, got.temperature) == (2, 1.0, 0.6)
    with pytest.raises(ParameterError, match="top_p has no effect with mirostat"):
        params(tokenizer, mirostat=2, top_p=0.5)


def test_a_bias_of_text_goes_to_all_its_spellings(tokenizer):
    got = params(tokenizer, logit_bias={"no": 5.0, "7": 1.0})
    assert got.logit_bias == {7: 1.0}
    assert sorted(got.sequence_bias) == [((32, 110, 111), 5.0), ((110, 111), 5.0)]


def test_the_default_breakers_come_with_dry_alone(tokenizer):
    assert params(tokenizer).dry_sequence_breakers == ()
    assert set(params(tokenizer, dry_multiplier=0.8).dry_sequence_breakers) == {10, 58, 34, 42}


COMPANIONS = [name for name, field in FIELDS.items() if field.needs and field.kind != "report" and name in ARRIVES]


def off(name: str) -> dict:
    """The switches of a field's method, each at a value that turns it off."""
    return {switch: msgspec.to_builtins(FIELDS[switch].default) for switch in FIELDS[name].needs}


@pytest.mark.parametrize("name", COMPANIONS)
def test_other_fields_of_a_method_that_is_turned_off_have_no_effect(tokenizer, name):
    """User interfaces send their whole panel. Without any switch such a field is a mistake."""
    companion = {name: ARRIVES[name][0]}
    for switch, value in off(name).items():
        assert params(tokenizer, **companion, **{switch: value}) == params(tokenizer)
    assert params(tokenizer, **companion, **off(name)) == params(tokenizer)
    with pytest.raises(ParameterError, match=f"{name} has no effect without"):
        params(tokenizer, **companion)
    with pytest.raises(ParameterError, match=f"{name} has no effect without"):
        params(tokenizer, **companion, **dict.fromkeys(FIELDS[name].needs))


@pytest.mark.parametrize("name", [name for name in COMPANIONS if FIELDS[name].range is not None])
def test_a_field_of_a_method_that_is_off_may_have_any_number(tokenizer, name):
    """Some panels write 0 into every field of a method that is off."""
    for value in (0, FIELDS[name].range.high + 1):
        assert params(tokenizer, **off(name), **{name: value}) == params(tokenizer)


def test_off_is_every_value_at_which_the_method_is_not_run(tokenizer):
    assert (
        params(tokenizer, adaptive_target=-0.5, adaptive_decay=0.5).adaptive_decay == FIELDS["adaptive_decay"].default
    )


def test_one_of_several_switches_is_enough(tokenizer):
    got = params(tokenizer, repetition_penalty=1.0, presence_penalty=0.5, penalty_last_n=64)
    assert got.penalty_last_n == 64
    request = msgspec.convert({"prompt": "x", "repetition_penalty": 1.0, "penalty_last_n": 64}, CompletionRequest)
    got = sampling_params(request, tokenizer, {"presence_penalty": 1.5}, max_tokens=9, logprobs=None)
    assert got.penalty_last_n == 64  # the model's own default is a penalty that looks there


def test_defaults_of_a_method_that_the_request_turns_off_go_with_it(tokenizer):
    defaults = {"xtc_probability": 0.5, "xtc_threshold": 0.2, "temperature": 0.6}
    for fields in ({"xtc_probability": 0}, {"temperature": 0}):
        request = msgspec.convert({"prompt": "x"} | fields, CompletionRequest)
        got = sampling_params(request, tokenizer, defaults, max_tokens=9, logprobs=None)
        assert (got.xtc_probability, got.xtc_threshold) == (0.0, FIELDS["xtc_threshold"].default)
    assert params(tokenizer, preset="creative", temperature=0).xtc_probability == 0.0


def test_reports_are_never_silenced(tokenizer):
    with pytest.raises(ParameterError, match="return_sampling_mask has no effect without"):
        params(tokenizer, top_p=1.0, return_sampling_mask=True)


def test_what_if_a_method_were_off(tokenizer):
    before = params(tokenizer, repetition_penalty=1.2, penalty_last_n=64)
    what_if = msgspec.convert({"repetition_penalty": 1.0}, GenerateRequest)
    assert change_params(before, what_if, ["repetition_penalty"], tokenizer) == params(tokenizer)
