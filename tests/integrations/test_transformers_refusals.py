"""What can't be had of tailrace in transformers' `generate` is an error that names the field."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM, TextStreamer

from integrations.generated_rows import (
    EOS,
    PAD,
    V,
    generate_rows,
    pad_prompts,
)
from integrations.tiny_llama import make_llama
from tailrace.errors import ParameterError
from tailrace.integrations.transformers import TailraceLogitsProcessor, TailraceSampling
from tailrace.params import SamplingParams


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return make_llama(V, EOS, PAD)


@pytest.mark.parametrize(
    ("sampling", "more", "name"),
    [
        (TailraceSampling(), {"num_beams": 2}, "custom_generate"),
        (TailraceSampling(), {"prompt_lookup_num_tokens": 3}, "custom_generate"),
        (TailraceSampling(), {"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        (TailraceSampling(SamplingParams(seed=1)), {"do_sample": True, "top_p": 0.5}, "top_p"),
        (TailraceSampling(SamplingParams(logprobs=1)), {}, "return_dict_in_generate"),
        (TailraceSampling([SamplingParams()] * 2), {}, "params"),
        (TailraceSampling(SamplingParams(seed=1), seed=2), {}, "seed"),
        (TailraceSampling(seed=[1, 2]), {}, "seed"),
        (TailraceSampling(SamplingParams(stop=("x",))), {}, "stop"),
        (TailraceSampling(SamplingParams(grammar={"kind": "regex", "source": "a"})), {}, "grammar"),  # type: ignore
    ],
)
def test_what_cannot_be_had_is_said(model, sampling, more, name):
    with pytest.raises(ParameterError) as raised:
        generate_rows(model, sampling, **more)
    assert raised.value.param == name


def test_a_mask_of_another_prompt_is_refused(model):
    processor = TailraceLogitsProcessor(attention_mask=torch.ones(3, 2))
    with pytest.raises(ParameterError, match="attention_mask must be"):
        model.generate(**pad_prompts(), logits_processor=[processor], max_new_tokens=2)


@pytest.mark.parametrize("cls", [TailraceSampling, TailraceLogitsProcessor])
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"params": "hot"}, "params"),
        ({"params": {"temperature": 1}}, "params"),
        ({"params": [None] * 3}, "params"),
        ({"params": []}, "params"),
        ({"params": SamplingParams(), "seed": 1.5}, "seed"),
        ({"params": SamplingParams(), "seed": 2**64}, "seed"),
        ({"params": SamplingParams(), "seed": True}, "seed"),
        ({"params": SamplingParams(), "seed": "7"}, "seed"),
    ],
)
def test_what_is_none_is_said_at_once(cls, given, field):
    with pytest.raises(ParameterError, match=f"{field} must be"):
        cls(**given)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"attention_mask": [[1, 1]]}, "attention_mask"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": [1.5]}, "eos_token_id"),
        ({"handled_by_caller": None}, "handled_by_caller"),
        ({"handled_by_caller": "stop"}, "handled_by_caller"),
    ],
)
def test_arguments_of_the_processor_are_checked_at_once(given, field):
    with pytest.raises(ParameterError, match=f"{field} must be"):
        TailraceLogitsProcessor(**given)


@pytest.mark.parametrize("eos", [None, -1, [-1]])
def test_no_end_is_no_error(model, eos):
    """transformers takes these for a model without an end."""
    sampling = TailraceSampling(SamplingParams(temperature=0.0))
    found = generate_rows(model, sampling, eos_token_id=eos)
    assert found == generate_rows(model, None, eos_token_id=eos, do_sample=False)


def test_streamers_must_be_some_and_one_for_each_row():
    for wrong in ("x", [None], 5):
        with pytest.raises(ParameterError, match="streamer must be"):
            TailraceSampling(streamer=wrong)
    one = TextStreamer(None)
    with pytest.raises(ParameterError, match="another one for each row"):
        TailraceSampling(streamer=[one, one])
