"""Each field on each path of the library's integrations: it acts as the library says, or it is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM

from field_examples import company
from integrations.tiny_llama import make_llama
from tailrace.errors import ParameterError
from tailrace.integrations.llama_cpp import TailraceLlamaProcessor
from tailrace.integrations.llama_cpp.refused_fields import LLAMA_CPP
from tailrace.integrations.refusals import FieldPlace, check_names
from tailrace.integrations.transformers import TailraceSampling, generate_batch
from tailrace.integrations.transformers.refused_fields import CONTINUOUS_BATCHING, GENERATE
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.processors import REGISTERED

V, EOS, MANY = 301, 2, 5
PROMPT = [5, 9, 9, 40, 5, 9]
PATHS = {"generate": GENERATE, "continuous batching": CONTINUOUS_BATCHING, "llama-cpp-python": LLAMA_CPP}
HANDLED = ("max_tokens", "ignore_eos", "stop_token_ids")  # by the loops of the tests
CONFIG = GenerationConfig(eos_token_id=EOS, pad_token_id=0)
SMALL = ContinuousBatchingConfig(page_size=16, num_blocks=200, max_batch_tokens=256)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return make_llama(V, EOS)


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    """The processor that the example of `processors` names."""
    monkeypatch.setitem(REGISTERED, "mine", lambda row, tokens, x: row.index_fill(0, torch.arange(0, V, 2), -torch.inf))


def fields_of(name: str) -> dict[str, Any]:
    """The field with an example, and the fields that it needs."""
    return company(name) | ({"logprobs": 0} if name == "logprob_token_ids" else {})


def params_of(path: str) -> dict[str, SamplingParams]:
    """Each field that acts on the path, with an example and the fields that it needs."""
    refused = PATHS[path]
    return {
        name: SamplingParams(**{"seed": 7, **fields_of(name)})
        for name in FIELDS
        if name not in refused and not refused.keys() & company(name).keys()
    }


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[:, -1].float()


def has_ended(ids: list[int], params: SamplingParams) -> bool:
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else [EOS])}
    return len(ids) >= (params.max_tokens or MANY) or bool(ids and ids[-1] in ends)


def draw_by_hand(model: Any, params: SamplingParams) -> list[int]:
    """The library's own loop."""
    slots, found = Slots(1, V), []
    slots.add(0, params, prompt=PROMPT, eos_token_ids=[EOS], handled_by_caller=HANDLED)
    while not has_ended(found, params):
        [new] = Sampler(slots)(logits_of(model, PROMPT + found), Rows.plain([0], [0])).tokens()
        slots.commit([0], [new])
        found += new
    return found


def draw_by_llama(model: Any, params: SamplingParams) -> list[int]:
    """The processor of llama-cpp-python on the same logits, and a greedy choice."""
    processor, found = TailraceLlamaProcessor(params, eos_token_ids=[EOS]), []
    while not has_ended(found, params):
        scores = processor(np.array(PROMPT + found, np.intc), logits_of(model, PROMPT + found)[0].numpy())
        found.append(int(scores.argmax()))
    return found


def test_each_field_acts_in_llama_cpp(model):
    for name, params in params_of("llama-cpp-python").items():
        assert draw_by_llama(model, params) == draw_by_hand(model, params), name


def test_each_field_acts_in_generate(model):
    asked = params_of("generate")
    result = model.generate(
        torch.tensor([PROMPT] * len(asked)),
        attention_mask=torch.ones(len(asked), len(PROMPT), dtype=torch.int64),
        custom_generate=TailraceSampling(list(asked.values())),
        max_new_tokens=MANY,
        return_dict_in_generate=True,
    )
    for row, (name, params) in enumerate(asked.items()):
        expected = draw_by_hand(model, params)
        assert result.sequences[row, len(PROMPT) :].tolist()[: len(expected)] == expected, name
        assert len(result.logprobs[row]) == (0 if params.logprobs is None else len(expected)), name
        assert len(result.sampling_masks[row]) == (len(expected) if params.return_sampling_mask else 0), name
    assert {"logprobs", "top_p", "dry_multiplier", "max_tokens", "processors"} <= asked.keys()


def test_each_field_acts_in_continuous_batching(model):
    asked = params_of("continuous batching")
    outputs = generate_batch(
        model,
        [PROMPT] * len(asked),
        list(asked.values()),
        generation_config=CONFIG,
        continuous_batching_config=SMALL,
        max_new_tokens=MANY,
    )
    for (name, params), output in zip(asked.items(), outputs, strict=True):
        assert output.generated_tokens == draw_by_hand(model, params), name
    assert {"ignore_eos", "top_p", "dry_multiplier", "max_tokens", "processors"} <= asked.keys()


def test_most_fields_change_tokens(model):
    """The examples do something: the comparisons above would see a field that is dropped."""
    bare = draw_by_hand(model, SamplingParams(seed=7))
    drawn = [name for name, field in FIELDS.items() if field.kind in ("edit", "reshape", "truncation")]
    asked = params_of("llama-cpp-python")
    changed = [name for name in drawn if name in asked and draw_by_hand(model, asked[name]) != bare]
    assert len(changed) > len(drawn) / 3


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, refused in PATHS.items() for name in refused])
def test_each_other_field_is_refused_by_name(model, path, name):
    params = SamplingParams(**fields_of(name))
    doors = {
        "generate": lambda: model.generate(
            torch.tensor([PROMPT]), custom_generate=TailraceSampling(params), max_new_tokens=2
        ),
        "continuous batching": lambda: generate_batch(model, [PROMPT], params, generation_config=CONFIG),
        "llama-cpp-python": lambda: TailraceLlamaProcessor(params),
    }
    with pytest.raises(ParameterError, match=f"is refused by {path}") as raised:
        doors[path]()
    assert raised.value.param in company(name)
    assert PATHS[path][raised.value.param] in str(raised.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"params": {"temperature": 0.5}}, "params"),
        ({"params": None}, "params"),
        ({"params": [SamplingParams()]}, "params"),
        ({"params": SamplingParams(), "eos_token_ids": 3}, "eos_token_ids"),
        ({"params": SamplingParams(), "eos_token_ids": None}, "eos_token_ids"),
        ({"params": SamplingParams(), "eos_token_ids": ["</s>"]}, "eos_token_ids"),
        ({"params": SamplingParams(), "handled_by_caller": "stop"}, "handled_by_caller"),
        ({"params": SamplingParams(), "handled_by_caller": None}, "handled_by_caller"),
    ],
)
def test_an_argument_of_another_type_is_refused_by_name(given, name):
    with pytest.raises(ParameterError, match=f"{name} must be"):
        TailraceLlamaProcessor(**given)


NAMES = FieldPlace("the_place", "the engine", LLAMA_CPP, {"top_p": "the engine's own top_p, elsewhere"}, ("read",))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tempature", "there is no field tempature in the_place; did you mean temperature?"),
        ("Min-P", "did you mean min_p?"),
        ("topP", "did you mean the engine's own top_p, elsewhere?"),
        ("top_p", "top_p can't be had in the_place: set the engine's own top_p, elsewhere"),
        ("stop", f"stop can't be had inside the engine: {LLAMA_CPP['stop']}"),
        ("n_predict", f"n_predict can't be had inside the engine: {LLAMA_CPP['max_tokens']}"),
        ("stop_regexx", f"did you mean stop_regex? It can't be had inside the engine: {LLAMA_CPP['stop_regex']}"),
        ("else", "else has no effect: neither tailrace nor the engine reads it there"),
    ],
)
def test_a_name_without_effect_is_an_error_with_the_reason(name, text):
    with pytest.raises(ParameterError) as raised:
        check_names([name], NAMES)
    assert text in str(raised.value)
    assert raised.value.param == name


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(ParameterError, match="a name in the_place must be text, got 3"):
        check_names([3], NAMES)  # type: ignore


def test_names_that_act_or_that_others_read_pass():
    check_names(["min_p", "read"], NAMES)
    check_names(["else", "tempo"], NAMES, read_by_others=True)
    with pytest.raises(ParameterError, match="did you mean temperature"):
        check_names(["temperatur"], NAMES, read_by_others=True)
