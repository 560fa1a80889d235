"""tailrace in transformers' continuous batching: the tokens are those of `generate`, alone and in a crowd."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM

from integrations.tiny_llama import make_llama
from tailrace.errors import ParameterError
from tailrace.integrations.transformers import TailraceSampling, attach_sampler, generate_batch
from tailrace.params import SamplingParams

V, EOS, MANY = 301, 2, 12
PROMPTS = [[5, 9, 9, 40], [7, 8, 9, 10, 11, 12, 13], [200], [3, 4] * 20]
MIXED = [
    SamplingParams(temperature=0.0, repetition_penalty=1.3),
    SamplingParams(temperature=1.4, min_p=0.02, repetition_penalty=1.2, seed=8),
    SamplingParams(temperature=0.9, top_n_sigma=2.0, dry_multiplier=0.8, xtc_probability=0.5, seed=9),
    SamplingParams(mirostat=2, mirostat_tau=3.0, seed=10),
]
GREEDY = GenerationConfig(eos_token_id=EOS, pad_token_id=0)
SAMPLED = GenerationConfig(eos_token_id=EOS, pad_token_id=0, do_sample=True, temperature=0.7, top_k=20)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return make_llama(V, EOS)


def small(tokens: int = 64, **more: Any) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(page_size=16, num_blocks=200, max_batch_tokens=tokens, **more)


def run(model: Any, params: Any, prompts: list[list[int]] = PROMPTS, config: Any = GREEDY, **more: Any) -> Any:
    settings = {"generation_config": config, "continuous_batching_config": small(**more)}
    return generate_batch(model, prompts, params, max_new_tokens=MANY, **settings)


def tokens_of(outputs: Any) -> list[list[int]]:
    return [output.generated_tokens for output in outputs]


def draw_by_generate(model: Any, prompt: list[int], params: SamplingParams) -> list[int]:
    ids = torch.tensor([prompt])
    sampling = TailraceSampling(params)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=sampling, max_new_tokens=MANY)
    return out[0, len(prompt) :].tolist()


def test_tokens_are_those_of_generate_alone_and_in_a_crowd(model):
    expected = [draw_by_generate(model, prompt, one) for prompt, one in zip(PROMPTS, MIXED, strict=True)]
    assert tokens_of(run(model, MIXED)) == expected
    assert tokens_of(run(model, MIXED[1:2], PROMPTS[1:2])) == expected[1:2]
    # prompts in pieces of 16 tokens, and two requests at a time
    assert tokens_of(run(model, MIXED, tokens=16, max_requests_per_batch=2)) == expected


def test_without_parameters_the_generation_config_decides(model):
    plain = [
        model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=MANY)
        for prompt in PROMPTS
    ]
    expected = [out[0, len(prompt) :].tolist() for out, prompt in zip(plain, PROMPTS, strict=True)]
    assert tokens_of(run(model, None)) == expected
    drawn = tokens_of(run(model, None, config=SAMPLED))
    assert drawn != expected
    assert drawn != tokens_of(run(model, None, config=SAMPLED))


def test_the_slots_grow_with_the_requests(model):
    """More requests than the first slots, with a state that must survive."""
    params = [SamplingParams(mirostat=2, mirostat_tau=3.0, seed=row % 3) for row in range(80)]
    found = tokens_of(run(model, params, [PROMPTS[0]] * 80, tokens=256))
    assert len({tuple(one) for one in found}) == 3
    assert found[:3] == [draw_by_generate(model, PROMPTS[0], one) for one in params[:3]]


@pytest.mark.parametrize("planted", [False, True])
def test_the_distribution_is_the_models(model, planted):
    """A G-test at 1e-9 of 1,000 first tokens. Another temperature is seen."""
    params = SamplingParams(temperature=2.5 if planted else 1.5, top_k=12, max_tokens=1)
    found = Counter(ids[0] for ids in tokens_of(run(model, params, [PROMPTS[0]] * 1000, tokens=1024)))
    with torch.no_grad():
        logits = model(torch.tensor(PROMPTS[:1])).logits[0, -1]
    values, kept = logits.topk(12)
    p = dict(zip(kept.tolist(), (values / 1.5).softmax(0).tolist(), strict=True))
    assert found.keys() <= p.keys()
    g = 2 * sum(n * math.log(n / 1000 / p[token]) for token, n in found.items())
    assert (g > 12 + 6.1 * math.sqrt(24) + 2 * 20.7) == planted  # above chi-square's quantile of 1 − 1e-9


def test_logprobs_are_of_what_is_drawn_from(model):
    params = SamplingParams(temperature=0.7, top_k=5, seed=4)
    [output] = run(model, params, PROMPTS[:1], return_logprobs=True)
    ids = list(PROMPTS[0])
    for token, logprob in zip(output.generated_tokens, output.logprobs, strict=True):
        with torch.no_grad():
            values, kept = model(torch.tensor([ids])).logits[0, -1].float().topk(5)
        expected = (values.double() / 0.7).log_softmax(0)[kept == token]
        assert logprob == pytest.approx(expected.item(), abs=1e-5)
        ids.append(token)
    assert len(output.logprobs) == MANY


def test_a_manager_takes_fields_by_name(model):
    manager = attach_sampler(model.init_continuous_batching(SAMPLED, small()))
    manager.start()
    try:
        given = [{"seed": 3}, {"seed": 3, "temperature": 1.4}, {"temperature": 0.0}, {"mirostat": 2, "seed": 3}]
        names = [manager.add_request(PROMPTS[0], max_new_tokens=6, **fields) for fields in given]
        found: dict[str, list[int]] = {}
        while len(found) < len(names):
            output = manager.get_result(timeout=10)
            assert output is not None
            found[output.request_id] = output.generated_tokens
        own = {"temperature": 0.7, "top_k": 20, "sampler_order": ("temperature", "top_k")}
        complete = [own | given[0], own | given[1], given[2], {"temperature": 0.7} | given[3]]
        for name, fields in zip(names, complete, strict=True):
            assert found[name] == draw_by_generate(model, PROMPTS[0], SamplingParams(**fields))[:6]
        for wrong, message in (
            ({"tempature": 1.0}, "did you mean temperature"),
            ({"temperature": -1.0}, "temperature must be a number in"),
            ({"stop": ("x",)}, "stop is refused by continuous batching"),
            ({"allowed_token_ids": (V,)}, "token id 301 is not in"),
            ({"params": SamplingParams(), "top_k": 3}, "top_k is given beside params"),
        ):
            with pytest.raises(ParameterError, match=message):
                manager.add_request([5], **wrong)
    finally:
        manager.stop(block=True)
        manager.destroy()


@pytest.mark.filterwarnings("ignore:Passing `no_repeat_ngram_size` with `inputs_embeds`")  # transformers' own
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences must be 1"),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGramLogitsProcessor can't run in continuous batching"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(model, fields, message):
    config = GenerationConfig(eos_token_id=EOS, pad_token_id=0, **fields)
    with pytest.raises(ParameterError, match=message):
        run(model, None, config=config)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"model": "a folder"}, "model"),
        ({"inputs": [5, 9]}, "inputs"),
        ({"inputs": ["text"]}, "inputs"),
        ({"params": {"temperature": 0.5}}, "params"),
        ({"params": [{"temperature": 0.5}]}, "params"),
    ],
)
def test_an_argument_of_another_type_is_refused_by_name(model, given, field):
    with pytest.raises(ParameterError, match=f"{field} must be"):
        generate_batch(**({"model": model, "inputs": [[5]]} | given))
    with pytest.raises(ParameterError, match="manager must be"):
        attach_sampler(model)


def test_as_many_parameters_as_prompts(model):
    with pytest.raises(ParameterError, match="params must be one for each of 4 prompts, got 2"):
        run(model, MIXED[:2])
