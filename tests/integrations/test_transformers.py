"""tailrace in transformers' own `generate`: the tokens are those of its processors on equal noise, those of the
library, and the same alone as in a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    LlamaForCausalLM,
    LogitsProcessor,
    T5Config,
    TopKLogitsWarper,
)

from integrations.generated_rows import (
    EOS,
    LENGTHS,
    MANY,
    PAD,
    PROMPTS,
    WIDTH,
    V,
    generate_rows,
    pad_prompts,
    read_outputs,
)
from integrations.tiny_llama import make_llama
from tailrace import kernels
from tailrace.integrations.transformers import TailraceLogitsProcessor, TailraceSampling
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, request_key


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return make_llama(V, EOS, PAD)


# ---- what `generate` would draw from


CONFIGURED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_k": 20},
    {"top_p": 0.8, "min_p": 0.02, "top_k": 0},
    {"typical_p": 0.9, "epsilon_cutoff": 3e-3, "top_k": 0},
    {"eta_cutoff": 3e-3, "temperature": 1.3, "top_k": 100},
    {"top_h": 0.6, "top_k": 0},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "top_p": 0.9},
    {"top_p": 0.9, "renormalize_logits": True, "suppress_tokens": [5, 6, 7]},
    {"bad_words_ids": [[9], [10, 11]], "min_new_tokens": 6, "temperature": 0.5},
]


@pytest.mark.parametrize("config", CONFIGURED, ids=" ".join)
def test_without_params_it_draws_what_generate_would(model, config, monkeypatch):
    """Their draw is replaced by the same Gumbel noise; all else is theirs."""
    step = 0

    def draw(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        nonlocal step
        noise = [
            kernels.gumbel(request_key(4, row), LENGTHS[row] + step, torch.arange(V), 0)
            for row in range(len(probabilities))
        ]
        step += 1
        return (probabilities.double().log() + torch.stack(noise)).argmax(1, keepdim=True)

    ours = generate_rows(model, TailraceSampling(seed=4), do_sample=True, **config)
    monkeypatch.setattr(torch, "multinomial", draw)
    theirs = model.generate(**pad_prompts(), max_new_tokens=MANY, do_sample=True, **config)
    assert ours == read_outputs(theirs)
    assert generate_rows(model, TailraceSampling(seed=5), do_sample=True, **config) != ours


@pytest.mark.parametrize("config", [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}], ids=" ".join)
def test_greedy_is_greedy(model, config):
    theirs = read_outputs(model.generate(**pad_prompts(), max_new_tokens=MANY, do_sample=False, **config))
    assert generate_rows(model, TailraceSampling(), do_sample=False, **config) == theirs
    own = SamplingParams(temperature=0.0, **config)
    assert generate_rows(model, TailraceSampling(own)) == theirs


class Ban(LogitsProcessor):
    """The caller's own."""

    def __call__(self, input_ids, scores):
        return scores.index_fill(1, torch.arange(0, V, 2), -torch.inf)


def test_the_callers_own_processors_run_before(model):
    own = SamplingParams(top_k=30, seed=1)
    for sampling, more in ((TailraceSampling(own), {}), (TailraceSampling(seed=1), {"do_sample": True, "top_k": 30})):
        drawn = generate_rows(model, sampling, logits_processor=[Ban()], **more)
        assert all(id % 2 or id == PAD for row in drawn for id in row)
    top = TopKLogitsWarper(1)  # another than the configuration's own 50
    greedy = read_outputs(model.generate(**pad_prompts(), max_new_tokens=MANY))
    assert generate_rows(model, TailraceSampling(seed=1), do_sample=True, logits_processor=[top]) == greedy
    assert generate_rows(model, TailraceSampling(own), do_sample=True, logits_processor=[top]) == greedy


# ---- each row its own


MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.4, min_p=0.02, repetition_penalty=1.2, seed=8),
    SamplingParams(temperature=0.9, top_n_sigma=2.0, dry_multiplier=0.8, xtc_probability=0.5, seed=9),
]


def by_hand(model: Any, prompt: list[int], params: SamplingParams) -> list[int]:
    """The library's own loop, without a cache."""
    slots = Slots(1, V)
    slots.add(0, params, prompt=prompt, eos_token_ids=[EOS])
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + MANY and (len(ids) == len(prompt) or ids[-1] != EOS):
            logits = model(torch.tensor([ids])).logits[:, -1].float()
            [new] = Sampler(slots)(logits, Rows.plain([0], [0])).tokens()
            slots.commit([0], [new])
            ids += new
    return ids[len(prompt) :]


def test_each_row_has_its_own_methods_and_is_the_same_alone(model):
    together = generate_rows(model, TailraceSampling(MIXED))
    for row, (prompt, params) in enumerate(zip(PROMPTS, MIXED, strict=True)):
        assert generate_rows(model, TailraceSampling(params), [prompt]) == [together[row]]
        assert by_hand(model, prompt, params) == together[row]


def test_the_processor_alone_is_the_same(model):
    together = generate_rows(model, TailraceSampling(MIXED))
    batch = pad_prompts()
    processor = TailraceLogitsProcessor(MIXED, attention_mask=batch["attention_mask"], eos_token_id=EOS)
    for sample in (False, True):  # and an object serves several calls
        out = model.generate(**batch, logits_processor=[processor], max_new_tokens=MANY, do_sample=sample)
        assert read_outputs(out) == together


def test_candidates_of_an_assistant_change_nothing(model):
    torch.manual_seed(4)
    assistant = LlamaForCausalLM(model.config).double().eval()
    assistant.load_state_dict(
        {name: value + 0.05 * torch.randn_like(value) for name, value in model.state_dict().items()}
    )
    params = SamplingParams(temperature=0.8, repetition_penalty=1.3, top_p=0.95, seed=11)
    ids = torch.tensor([PROMPTS[1]])
    more = {"attention_mask": torch.ones_like(ids), "max_new_tokens": MANY}
    alone = model.generate(ids, logits_processor=[TailraceLogitsProcessor(params, eos_token_id=EOS)], **more)
    processor = TailraceLogitsProcessor(params, eos_token_id=EOS)
    drafted = model.generate(ids, logits_processor=[processor], assistant_model=assistant, **more)
    assert drafted.tolist() == alone.tolist()
    assert len(set(alone[0, len(PROMPTS[1]) :].tolist())) > 4


def test_return_sequences_have_noise_of_their_own(model):
    params = [SamplingParams(seed=1), SamplingParams(seed=2, temperature=0.5), SamplingParams(seed=3)]
    drawn = generate_rows(model, TailraceSampling(params), num_return_sequences=2, do_sample=True)
    assert len(drawn) == 6
    assert drawn[::2] == generate_rows(model, TailraceSampling(params))
    assert all(first != second for first, second in zip(drawn[::2], drawn[1::2], strict=True))
    key = request_key(2, 1)
    assert generate_rows(model, TailraceSampling(SamplingParams(temperature=0.5), seed=[key]), PROMPTS[1:2]) == [
        drawn[3]
    ]


def test_a_seed_for_all_rows_is_spread_and_none_is_fresh(model):
    same = [PROMPTS[0]] * 3
    rows = generate_rows(model, TailraceSampling(seed=7), same, do_sample=True)
    assert rows == generate_rows(model, TailraceSampling(SamplingParams(seed=7, top_k=50)), same)
    assert rows[0] != rows[1] != rows[2]
    assert generate_rows(model, TailraceSampling(), same, do_sample=True) != rows


def test_an_encoder_and_a_decoder():
    torch.manual_seed(0)
    config = T5Config(vocab_size=V, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    ids = torch.tensor([[5, 6, 7, 1]])
    more = {"max_new_tokens": 6, "attention_mask": torch.ones_like(ids)}
    theirs = model.generate(ids, repetition_penalty=1.5, **more)
    ours = model.generate(
        ids, custom_generate=TailraceSampling(SamplingParams(temperature=0.0, repetition_penalty=1.5)), **more
    )
    assert ours.tolist() == theirs.tolist()


# ---- ends and reports


def test_rows_end_by_their_own_parameters(model):
    free = generate_rows(model, TailraceSampling(MIXED))
    stop = free[2][4]
    first = free[2].index(stop) + 1
    ended = [
        MIXED[0],
        SamplingParams(temperature=1.4, min_p=0.02, repetition_penalty=1.2, seed=8, max_tokens=3),
        SamplingParams(
            temperature=0.9,
            top_n_sigma=2.0,
            dry_multiplier=0.8,
            xtc_probability=0.5,
            seed=9,
            stop_token_ids=(stop,),
        ),
    ]
    out = model.generate(**pad_prompts(), custom_generate=TailraceSampling(ended), max_new_tokens=MANY)
    rows = out[:, WIDTH:].tolist()
    assert rows[0][: len(free[0])] == free[0]
    assert rows[1] == free[1][:3] + [PAD] * (len(rows[1]) - 3)
    assert rows[2] == free[2][:first] + [PAD] * (len(rows[2]) - first)


def test_logprobs_and_masks_are_those_of_the_tokens(model):
    params = [
        SamplingParams(
            temperature=0.7, top_p=0.8, logprobs=2, logprobs_mode="processed", return_sampling_mask=True, seed=1
        ),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=5, return_sampling_mask=True, max_tokens=4, seed=3),
    ]
    out = model.generate(
        **pad_prompts(),
        custom_generate=TailraceSampling(params),
        max_new_tokens=MANY,
        return_dict_in_generate=True,
        output_logits=True,
    )
    rows = read_outputs(out.sequences)
    rows[2] = rows[2][:4]
    assert [len(entries) for entries in out.logprobs] == [len(rows[0]), 0, 0]
    assert [len(masks) for masks in out.sampling_masks] == [len(rows[0]), 0, 4]
    for place, id in enumerate(rows[0]):
        kept = out.sampling_masks[0][place].long()
        expected = (out.logits[place][0, kept].double() / 0.7).log_softmax(0)[kept == id]
        assert out.logprobs[0][place].logprob == pytest.approx(expected.item(), abs=1e-6)
    assert all(len(mask) == 5 and id in mask for id, mask in zip(rows[2], out.sampling_masks[2], strict=True))


def test_a_row_without_a_number_is_warned_of_and_touches_no_other(model):
    class Break(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores[1] = torch.nan
            scores[1, 77] = 1.0
            return scores

    whole = generate_rows(model, TailraceSampling(MIXED))
    with pytest.warns(RuntimeWarning, match="row 1 can't be sampled from"):
        rows = generate_rows(model, TailraceSampling(MIXED), logits_processor=[Break()])
    assert (rows[0], rows[2]) == (whole[0], whole[2])
    assert set(rows[1]) == {77}
