"""Guessing ahead changes no token: the default model, real text, sampled with penalties, whoever guesses. And an end
inside what was guessed (case 15) is the end of everything, as a client sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from api.harness import EOS, VOCAB, LocalClient, events, front_of, make_tokenizer, saying
from e2e.prompts import prompts
from tailrace.config import CacheConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting import load_drafter
from tailrace.drafting.adaptive import DraftLengthController
from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.engine.engine import Engine
from tailrace.engine.token_bytes import TokenBytes
from tailrace.models import describe
from tailrace.params import SamplingParams
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Finished, ModelInfo, Submit, Tokens

SAMPLED = {
    "temperature": 0.8,
    "top_p": 0.95,
    "repetition_penalty": 1.05,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logprobs": 1,
}
BLOCK = 16


@pytest.fixture(scope="module")
def model(model_folder: Path, runner_of) -> Callable[..., Engine]:
    """A function that makes an engine with a drafter over a runner that is loaded once for each dtype."""

    def engine(dtype: str, name: str, **options: Any) -> Engine:
        config = ModelConfig(dtype=dtype, threads=1)
        speculation = SpeculationConfig(drafter=name, rule="exact", **{"adaptive": False} | options)
        drafter = partial(load_drafter, speculation, config, runner_of(dtype), block_size=BLOCK)
        return Engine(
            runner_of(dtype),
            describe(model_folder, "small"),
            CacheConfig(num_blocks=512, block_size=BLOCK),
            SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=256),
            speculation=speculation,
            drafter=None if name == "none" else drafter,
        )

    return engine


def said(engine: Engine, asked: list[list[int]], max_tokens: int) -> dict[str, tuple]:
    """What becomes of the prompts, all submitted at once: tokens, logprobs, ends."""
    found: dict[str, tuple[list, list, list]] = {}
    for place, prompt in enumerate(asked):
        found[f"r{place}"] = ([], [], [])
        engine.submit(Submit(f"r{place}", 0, prompt, SamplingParams(seed=place, max_tokens=max_tokens, **SAMPLED)))
    while engine.has_work:
        for message in engine.step().get(b"", []):
            tokens, logprobs, ends = found[message.id]
            if isinstance(message, Tokens):
                tokens += message.token_ids
                logprobs += [(entry.logprob, entry.top_ids) for entry in message.logprobs or ()]
            else:
                assert isinstance(message, Finished), message
                ends.append((message.reason, message.stop_token_id))
    assert engine.stats().blocks_used == 0
    return found


def compare(
    model: Callable[..., Engine], folder: Path, count: int, max_tokens: int, drafters: Sequence[tuple[str, dict]]
) -> None:
    """Logprobs too are the same to the bit: a row's logits do not depend on how many are computed beside it."""
    asked = prompts(Tokenizer.load(folder), count)
    plain = said(model("none"), asked, max_tokens)
    assert len(plain) == count
    for name, options in drafters:
        engine = model(name, **options)
        assert said(engine, asked, max_tokens) == plain, name
        counters = engine.counters
        print(f"{name}: {counters.accepted_tokens} of {counters.drafted_tokens} drafts stood, {counters.steps} steps")
        assert counters.accepted_tokens or options.get("adaptive")
        assert engine.speculator.drafter is not None


DRAFTERS = [("ngram", {}), ("suffix", {"max_drafts": 8}), ("early_exit", {"max_drafts": 3, "layers": 24})]


@pytest.mark.long
@pytest.mark.model
def test_two_prompts_say_the_same_whoever_guesses(model, model_folder):
    compare(partial(model, "bfloat16"), model_folder, 2, 18, [DRAFTERS[0], DRAFTERS[2]])


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_twenty_prompts_say_the_same_whoever_guesses(model, model_folder, dtype):
    more = [("ngram", {"adaptive": True}), ("early_exit", {})]
    compare(partial(model, dtype), model_folder, 20, 48, [*DRAFTERS, *more])


# ---- over HTTP


class Knowing(Drafter):
    """Guesses what the script will say, also after its end."""

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        drafts = []
        for ask in asks:
            begin = list(ask.tokens).index(ord("=")) + 1
            drafts.append(Draft(self.text[len(ask.tokens) - begin :][: ask.count]))
        return drafts

    def observe(self, seen) -> None:
        raise AssertionError("it captures nothing")

    def remove(self, slot: int) -> None:
        pass


class GuessingClient(LocalClient):
    """Its engine guesses ahead."""

    guess: list[int] | None = None

    async def start(self) -> ModelInfo:
        info = await super().start()
        if self.guess:
            speculator = self.engine.speculator
            speculator.drafter, speculator.config = Knowing(self.guess), SpeculationConfig(max_drafts=7)
            speculator.lengths = DraftLengthController(7, adaptive=False)
        return info


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("bytes"))


TEXT = b"one two three four five six"
ENDS = {
    "EOS": {},
    "max_tokens": {"max_tokens": 9},
    "stop string": {"stop": ["ree f"]},
    "stop string kept": {"stop": ["two", "e t"], "include_stop_str_in_output": True},
    "stop id": {"stop_token_ids": [ord("w")]},
    "stop pattern": {"stop_regex": ["th?r[a-z]*e"]},
    "min_tokens": {"stop": ["o"], "min_tokens": 4},
    "min_tokens, id": {"stop_token_ids": [ord("e")], "min_tokens": 5},
    "n": {"stop": ["four"], "n": 2},
}


async def answers(client: GuessingClient, tokenizer: Tokenizer, asked: dict) -> tuple[Any, list, int, float]:
    """The whole answer without its id and time; the streamed one's choices, joined; tokens that the engine has drawn;
    steps."""
    async with front_of(client, tokenizer) as front:
        answer = await front.complete("x=", **asked)
        assert answer.status_code == 200, answer.text
        drawn, steps = client.engine.stats().generated_tokens, client.engine.counters.steps
        stream = await front.complete("x=", stream=True, stream_options={"include_usage": True}, **asked)
        chunks = [event for event in events(stream.text) if event != "[DONE]"]
        await front.until(client.idle)
        whole = {key: value for key, value in answer.json().items() if key in ("choices", "usage")}
        return whole, joined(chunks), drawn, steps


def joined(chunks: list[dict]) -> list:
    """Of each choice: text, tokens, logprobs, reasons; and the usage."""
    parts: dict[int, list] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        text, tokens, logprobs, ends = parts.setdefault(choice["index"], ["", [], [], []])
        entries = choice["logprobs"] or {"tokens": [], "token_logprobs": []}
        tokens += entries["tokens"]
        logprobs += entries["token_logprobs"]
        ends += [(choice["finish_reason"], choice.get("stop_reason"))] if choice["finish_reason"] else []
        parts[choice["index"]][0] = text + choice["text"]
    return [parts, [chunk["usage"] for chunk in chunks if chunk.get("usage")]]


@pytest.mark.few(5)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("asked", ENDS.values(), ids=ENDS.keys())
async def test_case_15_an_end_inside_a_guess_cuts_everything_there(tokenizer, asked, known):
    """Ids, text, logprobs and usage end at the same place with and without guesses, whether the engine knows what
    tokens spell or the front end has to find the stop."""
    outcomes = []
    for guess in (None, [*TEXT, *[EOS] * 20]):
        client = GuessingClient(saying(TEXT))
        client.guess = guess
        client.token_bytes = TokenBytes.of(tokenizer, VOCAB) if known else TokenBytes()
        outcomes.append(await answers(client, tokenizer, {"max_tokens": 60, "logprobs": 2} | asked))
        if guess:
            assert client.engine.counters.accepted_tokens
    (plain, streamed, drawn, slow), (guessed, guessed_streamed, guessed_drawn, fast) = outcomes
    for usage in (guessed["usage"], *guessed_streamed[1]):  # which says what was guessed
        details = usage.pop("completion_tokens_details")
        assert details["accepted_prediction_tokens"] > 0 <= details["rejected_prediction_tokens"]
        assert details["accepted_prediction_tokens"] <= usage["completion_tokens"]  # what an end has cut is not counted
    assert guessed == plain
    assert guessed_streamed == streamed
    assert fast < slow
    if known:
        assert guessed_drawn == drawn
    choice = plain["choices"][0]
    spent, rest = divmod(plain["usage"]["completion_tokens"], len(plain["choices"]))
    told = len(choice["logprobs"]["tokens"])
    assert rest == 0
    cut = bytes(TEXT[told:spent]).decode()  # a stop is paid for; it is no part of the answer
    assert cut in asked.get("stop", [""]) or cut == "" or re.fullmatch(asked["stop_regex"][0], cut)
    assert bool(cut) == (
        choice["stop_reason"] is not None
        and isinstance(choice["stop_reason"], str)
        and "include_stop_str_in_output" not in asked
    )


def test_all_that_is_guessed_would_be_accepted():
    """The negative control of the test above: nothing but the end stands against the guesses, EOS after EOS
    included."""
    script, ids = saying(TEXT), [ord("x"), ord("=")]
    for token in [*TEXT, *[EOS] * 20]:
        assert int(script(ids).argmax()) == token
        ids.append(token)
