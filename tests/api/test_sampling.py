"""A request's fields → SamplingParams: every field arrives, null is the default, the limit is the context's."""

from __future__ import annotations

import msgspec
import pytest

from tailrace.api.sampling import output_limit, sampling_params
from tailrace.api.schema.completions import CompletionRequest
from tailrace.errors import ContextLengthError, ParameterError
from tailrace.params import SamplingParams

# field → a value that is not its default
EVERY = {
    "n": 2, "temperature": 0.5, "top_p": 0.5, "seed": 3, "presence_penalty": 1.0, "frequency_penalty": -1.0, "top_k": 4,
    "min_p": 0.25, "repetition_penalty": 1.5, "min_tokens": 2, "ignore_eos": True, "include_stop_str_in_output": True,
    "skip_special_tokens": False, "logprobs_mode": "processed", "stop": ["a", "b"], "stop_token_ids": [1, 2],
    "allowed_token_ids": [5, 6], "logit_bias": {"7": -3.5}, "bad_words": ["no"],
}  # fmt: skip
ARRIVES_AS = {
    "stop": ("a", "b"), "stop_token_ids": (1, 2), "allowed_token_ids": (5, 6), "logit_bias": {7: -3.5},
    "bad_words": ((110, 111), (32, 110, 111)),
}  # fmt: skip


def params(tokenizer, **fields) -> SamplingParams:
    request = msgspec.convert({"prompt": "x"} | fields, CompletionRequest)
    return sampling_params(request, tokenizer, {}, max_tokens=9, logprobs=None)


def test_all_at_once(tokenizer):
    got = params(tokenizer, **EVERY)
    for name, value in EVERY.items():
        wanted = ARRIVES_AS.get(name, value)
        actual = getattr(got, name)
        assert (sorted(actual) if name == "bad_words" else actual) == (
            sorted(wanted) if name == "bad_words" else wanted
        ), name


def test_every_sampling_field_of_the_schema_is_in_this_test():
    elsewhere = {
        "model", "stream", "stream_options", "max_tokens", "priority", "return_token_ids", "request_id", "prompt",
        "logprobs", "echo", "add_special_tokens",
    }  # fmt: skip
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
    with pytest.raises(ContextLengthError, match="context is 100 tokens, but the prompt alone has 100"):
        output_limit(100, 100, None, "max_tokens", "prompt")
    with pytest.raises(ParameterError, match=r"max_completion_tokens must be an integer in \[1") as caught:
        output_limit(10, 100, 0, "max_completion_tokens", "messages")
    assert caught.value.param == "max_completion_tokens"


def test_the_models_defaults_fill_what_a_request_leaves_out(tokenizer):
    request = msgspec.convert({"prompt": "x", "top_p": 0.5}, CompletionRequest)
    got = sampling_params(request, tokenizer, {"temperature": 0.6, "top_p": 0.9}, max_tokens=9, logprobs=None)
    assert (got.temperature, got.top_p) == (0.6, 0.5)
