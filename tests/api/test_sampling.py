"""A request's fields → SamplingParams: every field arrives, null is the default, the limit is the context's."""

from __future__ import annotations

import msgspec
import pytest

from tailrace.api.presets import PRESETS
from tailrace.api.sampling import output_limit, sampling_params
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.structured import FIELDS
from tailrace.errors import ContextLengthError, ParameterError
from tailrace.options import RepetitionDetection, Watermark
from tailrace.params import SamplingParams

# field → a value that is not its default
EVERY = {
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.5,
    "seed": 3,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "top_k": 4,
    "min_p": 0.25,
    "repetition_penalty": 1.5,
    "min_tokens": 2,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "logprobs_mode": "processed",
    "stop": ["a", "b"],
    "stop_token_ids": [1, 2],
    "allowed_token_ids": [5, 6],
    "logit_bias": {"7": -3.5},
    "bad_words": ["no"],
    "dynatemp_range": 0.2,
    "dynatemp_exponent": 2.0,
    "smoothing_factor": 0.3,
    "smoothing_curve": 1.5,
    "top_a": 0.1,
    "typical_p": 0.9,
    "tfs_z": 0.8,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.02,
    "top_n_sigma": 1.5,
    "top_h": 0.4,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "adaptive_target": 0.4,
    "adaptive_decay": 0.5,
    "penalty_last_n": 64,
    "repetition_scope": "prompt",
    "penalty_scope": "both",
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 100,
    "dry_sequence_breakers": ["a"],
    "encoder_no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 1.2,
    "exponential_decay_length_penalty": [5, 1.5],
    "p_less": True,
    "p_less_norm": True,
    "min_k": True,
    "normalize_logits": True,
    "min_k_tau": 2.0,
    "no_repeat_ngram_size": 3,
    "sequence_bias": [["ab", 1.5], [[4, 5], -2.0]],
    "forced_token_ids": [9],
    "processors": {"mine": {"x": 1}},
    "watermark": {"kind": "kgw", "key": 3},
    "sampler_order": ["top_p", "temperature"],
    "report_entropy": True,
    "logprob_token_ids": [3, 4],
    "prompt_logprobs": 4,
    "banned_strings": ["bad"],
    "banned_ignore_case": True,
    "stop_regex": "[0-9]+x",
    "banned_regex": "x[0-9]",
    "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
}
ARRIVES_AS = {
    "stop": ("a", "b"),
    "stop_token_ids": (1, 2),
    "allowed_token_ids": (5, 6),
    "logit_bias": {7: -3.5},
    "bad_words": ((110, 111), (32, 110, 111)),
    "dry_sequence_breakers": (97, 256),
    "forced_token_ids": (9,),
    "sequence_bias": (((32, 97, 98), 1.5), ((97, 98), 1.5), ((4, 5), -2.0)),
    "sampler_order": ("top_p", "temperature"),
    "exponential_decay_length_penalty": (5, 1.5),
    "watermark": Watermark(kind="kgw", key=3),
    "banned_strings": ("bad",),
    "stop_regex": ("[0-9]+x",),
    "logprob_token_ids": (3, 4),
    "banned_regex": ("x[0-9]",),
    "repetition_detection": RepetitionDetection(max_pattern_size=4, min_count=3),
}


# what can't be had with the others
ALONE = ("p_less_norm", "banned_strings", "banned_regex", "banned_ignore_case", "report_entropy", "logprob_token_ids")


def params(tokenizer, **fields) -> SamplingParams:
    request = msgspec.convert({"prompt": "x"} | fields, CompletionRequest)
    return sampling_params(request, tokenizer, {}, max_tokens=9, logprobs=None)


def test_all_at_once(tokenizer):
    got = params(tokenizer, **{name: value for name, value in EVERY.items() if name not in ALONE})
    for name, value in EVERY.items():
        if name in ALONE:
            continue
        wanted = ARRIVES_AS.get(name, value)
        actual = getattr(got, name)
        assert (sorted(actual) if name == "bad_words" else actual) == (
            sorted(wanted) if name == "bad_words" else wanted
        ), name


def test_every_sampling_field_of_the_schema_is_in_this_test():
    elsewhere = {
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "priority",
        "deadline_s",
        "stream_interval",
        "stream_interval_ms",
        "return_token_ids",
        "request_id",
        "prompt",
        "logprobs",
        "echo",
        "best_of",
        "use_beam_search",
        "length_penalty",
        "early_stopping",
        "add_special_tokens",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "preset",
        "return_sampling_params",
        "guidance_scale",
        "cfg_scale",
        "negative_prompt",
        "speculation",  # test_guidance_fields.py
        "structured_outputs",
        "guided_decoding_backend",
        *FIELDS,  # test_structured.py
    }
    assert set(CompletionRequest.__struct_fields__) == set(EVERY) | elsewhere


@pytest.mark.parametrize("name", EVERY)
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
