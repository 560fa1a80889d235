"""tailrace's processor in the real llama-cpp-python, on the model that TAILRACE_GGUF names: what it draws is what the
library draws from the same logits, and its grammar's choice is an exact draw from what the grammar leaves."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from llama_cpp import Llama, LlamaGrammar, LogitsProcessorList, StoppingCriteriaList
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from tailrace.errors import ParameterError
from tailrace.integrations.llama_cpp import TailraceLlamaProcessor
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots

PROMPT, MANY = b"Once upon a time", 8
ALL = [
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.9, "top_p": 0.9, "seed": 3},
    {"temperature": 1.3, "min_p": 0.05, "dry_multiplier": 0.8, "xtc_probability": 0.5, "seed": 4},
    {"top_n_sigma": 1.5, "no_repeat_ngram_size": 2, "presence_penalty": 1.0, "seed": 5},
    {"mirostat": 2, "mirostat_tau": 3.0, "seed": 6},
]


@pytest.fixture(scope="module")
def llm() -> Llama:
    return Llama(os.environ["TAILRACE_GGUF"], n_ctx=256, logits_all=True, verbose=False, n_threads=1, seed=1)


def said(llm: Llama, processor: Any, prompt: bytes = PROMPT, **more: Any) -> list[int]:
    """The new ids. With temperature 0.8 llama.cpp draws itself: there is one token left to draw."""
    tokens = llm.tokenize(prompt)
    llm.reset()
    stream = llm.generate(tokens, logits_processor=LogitsProcessorList([processor]), **{"temp": 0.0, **more})
    found = [token for _, token in zip(range(MANY), stream, strict=False)]
    stream.close()
    return found


def by_hand(llm: Llama, params: SamplingParams) -> list[int]:
    """The library's own loop on llama.cpp's logits."""
    ids = llm.tokenize(PROMPT)
    first = len(ids)
    slots = Slots(1, llm.n_vocab())
    slots.add(0, params, prompt=ids, eos_token_ids=[llm.token_eos()])
    llm.reset()
    llm.eval(ids)
    while len(ids) < first + MANY:
        logits = torch.from_numpy(np.array(llm.scores[len(ids) - 1 : len(ids)]))
        [new] = Sampler(slots)(logits, Rows.plain([0], [0])).tokens()
        slots.commit([0], [new])
        ids += new
        llm.eval(new)
    return ids[first:]


@pytest.mark.parametrize("fields", ALL, ids=" ".join)
def test_it_draws_what_the_library_draws(llm, fields):
    params = SamplingParams(**fields)
    processor = TailraceLlamaProcessor(params, eos_token_ids=[llm.token_eos()])
    expected = by_hand(llm, params)
    assert said(llm, processor) == expected
    assert said(llm, processor) == expected  # it begins anew
    assert said(llm, processor, temp=0.8, top_k=40) == expected


def test_seeds_differ_and_none_is_fresh(llm):
    found = {tuple(said(llm, TailraceLlamaProcessor(SamplingParams(temperature=1.5, seed=seed)))) for seed in range(3)}
    assert len(found) == 3
    processor = TailraceLlamaProcessor(SamplingParams(temperature=1.5))
    assert said(llm, processor) != said(llm, processor)


def test_a_strided_field_is_read_and_not_written():
    records = np.zeros(50, dtype=np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True))
    records["logit"][7] = 9.0
    before = records.copy()
    found = TailraceLlamaProcessor(SamplingParams(temperature=0.0))(np.array([1, 2], np.intc), records["logit"])
    assert found.argmax() == 7
    assert (found < -100).sum() == 49
    assert np.isfinite(found).all()
    assert (records == before).all()


@pytest.mark.parametrize("exact", [True, False])
def test_a_grammar_after_it_is_kept(llm, exact):
    """Also by a processor that expects none: llama.cpp would end the process if no score were left."""
    grammar = LlamaGrammar.from_string('root ::= "red" | "blue" | "green"', verbose=False)
    for seed in range(4):
        processor = TailraceLlamaProcessor(SamplingParams(temperature=2.0, top_k=50, seed=seed), grammar=exact)
        text = llm.detokenize(said(llm, processor, b"My favourite colour is", grammar=grammar)).decode()
        assert text.strip() in ("red", "blue", "green")


@pytest.mark.parametrize("planted", [False, True])
def test_the_largest_that_a_grammar_leaves_is_an_exact_draw(planted):
    """A G-test at 1e-9 over 4,000 seeds. The planted fault, the same seed each time, is seen."""
    logits = np.random.default_rng(0).normal(size=40).astype(np.float32) * 2
    allowed = np.arange(0, 40, 3)
    kept = [i for i in allowed if i in set(np.argsort(-logits, kind="stable")[:20])]
    weights = np.exp(logits[kept].astype(np.float64) / 0.8)
    expected = dict(zip(kept, weights / weights.sum(), strict=True))

    def counts(seeds: Any) -> Counter[int]:
        found: Counter[int] = Counter()
        for seed in seeds:
            params = SamplingParams(temperature=0.8, top_k=20, seed=seed)
            scores = TailraceLlamaProcessor(params)(np.array([1], np.intc), logits)
            found[int(allowed[scores[allowed].argmax()])] += 1
        return found

    def g(found: Counter[int]) -> float:
        total = sum(found.values())
        return 2 * sum(n * math.log(n / total / expected[i]) for i, n in found.items())

    limit = len(kept) + 6.1 * math.sqrt(2 * len(kept)) + 2 * 20.7  # above chi-square's quantile of 1 − 1e-9
    if not planted:
        found = counts(range(4000))
        assert set(found) <= set(kept)
        assert g(found) < limit
    else:
        assert g(counts([5] * 4000)) > limit


def test_under_a_grammar_greedy_takes_the_largest_edited_logit_and_xtc_its_own_position():
    """The rest of a greedy row is ordered by edited logits, and the rest of a row with XTC is of that position."""
    logits = np.linspace(0, 5, 30).astype(np.float32)
    params = SamplingParams(temperature=0.0, repetition_penalty=5.0)
    scores = TailraceLlamaProcessor(params)(np.array([28, 27], np.intc), logits)
    assert np.argsort(-scores)[:3].tolist() == [29, 26, 25]
    kept = set()
    for length in range(1, 30):
        params = SamplingParams(xtc_probability=0.5, xtc_threshold=0.05, seed=1)
        kept.add(int((TailraceLlamaProcessor(params)(np.zeros(length, np.intc), logits) > -1000).sum()))
    assert len(kept) == 2


def test_mirostat_learns_from_the_grammars_choice():
    logits = np.linspace(0, 5, 30).astype(np.float32)
    params, after = SamplingParams(mirostat=2, mirostat_tau=2.0, mirostat_eta=5.0, seed=2), []
    for choice in (29, 26):
        processor = TailraceLlamaProcessor(params)
        processor(np.array([1], np.intc), logits)
        after.append(processor(np.array([1, choice], np.intc), logits))
    assert (after[0] != after[1]).any()


def test_a_field_that_cannot_act_is_refused_at_once():
    with pytest.raises(ValueError, match="stop is refused by llama-cpp-python: the call's own stop"):
        TailraceLlamaProcessor(SamplingParams(stop=("x",)))
    assert TailraceLlamaProcessor(SamplingParams(stop=("x",)), handled_by_caller=["stop"]).grammar


def test_where_a_grammar_leaves_none_of_the_kept_the_likeliest_comes():
    logits = np.linspace(0, 5, 30).astype(np.float32)
    scores = TailraceLlamaProcessor(SamplingParams(top_k=3, seed=1))(np.array([1], np.intc), logits)
    assert scores[:20].argmax() == 19
    assert scores[27:].min() > scores[:27].max() + 1000


def test_what_cannot_be_drawn_from_is_an_error():
    with pytest.raises(RuntimeError, match="can't be sampled from"):
        TailraceLlamaProcessor(SamplingParams())(np.array([1], np.intc), np.full(9, np.nan, np.float32))


def complete(llm: Llama, fields: dict[str, Any], eos_token_ids: Any = None, **more: Any) -> str:
    """Return the text that a call gives as the docs say."""
    eos = [llm.token_eos()] if eos_token_ids is None else eos_token_ids
    processor = TailraceLlamaProcessor(SamplingParams(**fields), eos_token_ids=eos)
    given = {
        "logits_processor": LogitsProcessorList([processor]),
        "stopping_criteria": StoppingCriteriaList([processor.check_step]),
    }
    answer: Any = llm(PROMPT.decode(), max_tokens=MANY, temperature=0, **given, **more)
    return answer["choices"][0]["text"]


def test_the_criterion_stops_nothing(llm):
    fields = {"temperature": 1.3, "seed": 3}
    expected = llm.detokenize(by_hand(llm, SamplingParams(**fields))).decode()
    assert complete(llm, fields) == expected
    assert complete(llm, fields, grammar=LlamaGrammar.from_string('root ::= " red"', verbose=False)) == " red"


@pytest.mark.parametrize(
    ("fields", "eos", "text"),
    [
        ({"allowed_token_ids": [10**6]}, None, "allowed_token_ids: token id 1000000 is not in 0"),
        ({"logit_bias": {10**6: 1.0}}, None, "logit_bias: token id 1000000 is not in 0"),
        ({"processors": {"absent": {}}}, None, 'there is no "absent"'),
        ({}, [-1], "eos_token_ids must be a list of whole numbers"),
    ],
    ids=str,
)
def test_an_error_of_a_field_reaches_the_caller(llm, fields, eos, text):
    """llama-cpp-python alone prints it, and draws by itself."""
    with pytest.raises(ParameterError) as caught:
        complete(llm, fields, eos)
    assert text in str(caught.value)
    assert complete(llm, {"temperature": 0.0})


def test_a_call_that_drops_the_processor_is_an_error(llm):
    with pytest.raises(RuntimeError, match="has not asked tailrace for this token: leave out the call's logit_bias"):
        complete(llm, {}, logit_bias={5: 1.0})
    drafter = LlamaPromptLookupDecoding(num_pred_tokens=4)
    path = os.environ["TAILRACE_GGUF"]
    drafted = Llama(path, n_ctx=256, logits_all=True, verbose=False, n_threads=1, draft_model=drafter)
    with pytest.raises(RuntimeError, match="draft_model"):
        complete(drafted, {"logit_bias": {28: 100.0}})
