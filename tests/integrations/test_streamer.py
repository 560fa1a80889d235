"""TailraceStreamer in the place of TextIteratorStreamer: the pieces joined are the decode of all ids, for every kind of
tokenizer and any ids."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from queue import Empty
from threading import Thread
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TextIteratorStreamer

from examples import examples
from tailrace.errors import ParameterError
from tailrace.integrations.transformers import TailraceSampling, TailraceStreamer
from tailrace.params import SamplingParams
from text.test_detokenize import any_ids
from text.vocabularies import ALL, spelled_out


@cache
def theirs(name: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=ALL[name].backend)


def streamed(streamer: TextIteratorStreamer, prompt: list[int], ids: list[int]) -> list[str]:
    """The pieces, ids coming one by one as `generate` puts them."""
    streamer.put(torch.tensor([prompt], dtype=torch.int64))
    for id in ids:
        streamer.put(torch.tensor([id]))
    streamer.end()
    return list(streamer)


@pytest.mark.few(10)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_pieces_joined_are_the_decode(name, skip, data):
    ids = data.draw(any_ids(ALL[name]))
    cut = data.draw(st.integers(0, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    whole = spelled_out(ALL[name], ids, skip)
    streamer = TailraceStreamer(theirs(name), timeout=1, skip_special_tokens=skip)
    for _ in range(2):  # it serves one generation after the other
        pieces = streamed(streamer, prompt, output)
        joined = "".join(pieces)
        if spelled_out(ALL[name], prompt, skip).endswith("�"):
            continue  # a character that begins in the prompt is left out unless the output completes it
        assert joined == whole
        assert "" not in pieces
    before = spelled_out(ALL[name], prompt, skip)
    if not before.endswith("�") and whole.startswith(before):
        streamer = TailraceStreamer(theirs(name), True, timeout=1, skip_special_tokens=skip)
        assert "".join(streamed(streamer, prompt, output)) == whole.removeprefix(before)


def ids_of(name: str, *tokens: str) -> list[int]:
    return [ALL[name].backend.token_to_id(token) for token in tokens]


# it forgets all ids at a newline, and then strips the space of what follows
HOSTILE = [
    ("pieces", ids_of("pieces", "hello", "<0x0A>", "▁hello", "lo")),
    ("pieces", ids_of("pieces", "<0xE4>", "<0xB8>", "<0x80>", "<0x0A>", "▁hello")),
]


@pytest.mark.parametrize(("name", "ids"), HOSTILE)
def test_what_the_other_streamer_loses_is_there(name, ids):
    """The planted fault is theirs, up to transformers 5.23."""
    whole = ALL[name].backend.decode(ids, skip_special_tokens=False)
    lost = "".join(streamed(TextIteratorStreamer(theirs(name), timeout=1), [], ids)) != whole
    assert lost == (Version(transformers.__version__) < Version("5.24"))
    assert "".join(streamed(TailraceStreamer(theirs(name), timeout=1), [], ids)) == whole


# ---- beside `generate`


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=len(theirs("byte-level")),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        initializer_range=0.5,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def in_a_thread(call: Callable[[], Any]) -> list[Any]:
    """What it returned, once it has; its error stays in the thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except RuntimeError as error:
            found.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found


PARAMS = [SamplingParams(seed=3, temperature=0.8, max_tokens=9), SamplingParams(seed=4, top_p=0.9)]


def test_each_row_has_a_streamer(model):
    tokenizer = theirs("byte-level")
    streamers = [TailraceStreamer(tokenizer, True, timeout=60), TailraceStreamer(tokenizer, True, timeout=60)]
    ids = torch.tensor([[104, 105, 106], [107, 108, 109]])
    sampling = TailraceSampling(PARAMS, streamer=streamers)
    [out] = in_a_thread(lambda: model.generate(ids, custom_generate=sampling, max_new_tokens=14))
    texts = ["".join(streamer) for streamer in streamers]
    assert texts == [tokenizer.decode(out[0, 3:12]), tokenizer.decode(out[1, 3:])]
    assert out[0, 12:].tolist() == [0] * 5
    assert len(texts[0]) > 4


def test_a_plain_generate_takes_it_as_its_streamer(model):
    tokenizer = theirs("byte-level")
    streamer = TailraceStreamer(tokenizer, timeout=60)
    ids = torch.tensor([[104, 105, 106]])
    [out] = in_a_thread(lambda: model.generate(ids, streamer=streamer, max_new_tokens=14, do_sample=False))
    assert "".join(streamer) == tokenizer.decode(out[0])


def test_a_stop_string_ends_the_row_and_cuts_its_text(model):
    tokenizer = theirs("byte-level")
    ids = torch.tensor([[104, 105, 106], [107, 108, 109]])
    whole = model.generate(ids, custom_generate=TailraceSampling(PARAMS), max_new_tokens=14)
    text = tokenizer.decode(whole[1, 3:])
    stop = next(char for char in text[3:] if char.isascii() and char.isprintable())
    streamers = [TailraceStreamer(tokenizer, True, timeout=60) for _ in PARAMS]
    params = [PARAMS[0], SamplingParams(seed=4, top_p=0.9, stop=(stop,))]
    sampling = TailraceSampling(params, streamer=streamers)
    [out] = in_a_thread(lambda: model.generate(ids, custom_generate=sampling, max_new_tokens=14))
    assert "".join(streamers[1]) == text[: text.index(stop)]
    assert "".join(streamers[0]) == tokenizer.decode(whole[0, 3:12])
    kept = out[1, 3:].tolist()
    ended = next(n for n in range(1, 15) if stop in tokenizer.decode(whole[1, 3 : 3 + n]))
    assert kept == whole[1, 3 : 3 + ended].tolist() + [0] * (len(kept) - ended)


def test_who_reads_hears_of_an_error(model):
    streamer = TailraceStreamer(theirs("byte-level"), timeout=60)
    ids = torch.tensor([[104, 105]])

    def broken(input_ids, scores):
        raise RuntimeError("out of memory")

    sampling = TailraceSampling(seed=1, streamer=streamer)
    in_a_thread(lambda: model.generate(ids, custom_generate=sampling, logits_processor=[broken], max_new_tokens=3))
    with pytest.raises(RuntimeError, match="out of memory"):
        list(streamer)


def broken(*_: Any) -> Any:
    raise RuntimeError("out of memory")


def no_such(model: LlamaForCausalLM, streamer: TailraceStreamer) -> None:
    """generate refuses its arguments: before it says anything to a streamer, or calls what is to draw."""
    model.generate(torch.tensor([[104]]), custom_generate=TailraceSampling(streamer=streamer), no_such_option=1)


@pytest.mark.parametrize("pooled", [False, True])
def test_errors_before_the_first_token_are_handed_on(model, pooled):
    streamer = TailraceStreamer(theirs("byte-level"))
    call = streamer.watch(lambda: no_such(model, streamer))
    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(call) if pooled else None
        if failed is None:
            Thread(target=swallowed(call), daemon=True).start()
        with pytest.raises(ValueError, match="no_such_option"):
            read(streamer)
        assert failed is None or isinstance(failed.exception(), ValueError)


def swallowed(call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with suppress(BaseException):
            call()

    return run


def read(streamer: TailraceStreamer) -> str:
    """All of the text, in a thread of its own: a reader that waits for ever is a failure here."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: "".join(streamer))
        try:
            return reading.result(30)
        except TimeoutError:
            streamer.end()  # or the pool never ends
            raise AssertionError("the reader waits for ever") from None


def test_a_plain_generate_that_fails_in_its_thread_ends_the_text(model):
    """Nobody hands the error on: the thread is seen to be gone."""
    streamer = TailraceStreamer(theirs("byte-level"))
    ids = torch.tensor([[104, 105]])
    call = swallowed(lambda: model.generate(ids, streamer=streamer, logits_processor=[broken], max_new_tokens=3))
    thread = Thread(target=call, name="the generating one", daemon=True)
    thread.start()
    with pytest.raises(RuntimeError, match=r"the generating one has ended, and the text has not.*watch"):
        read(streamer)


def test_an_error_of_the_streamer_itself_reaches_the_reader(model):
    streamer = TailraceStreamer(theirs("byte-level"))
    ids = torch.tensor([[104, 105], [104, 105]])
    with pytest.raises(ParameterError, match="for one row, got 2"):
        model.generate(ids, streamer=streamer, max_new_tokens=3)
    with pytest.raises(ParameterError, match="for one row, got 2"):
        read(streamer)


def test_an_error_that_looks_like_an_end_is_none():
    streamer = TailraceStreamer(theirs("byte-level"))
    with pytest.raises(StopIteration):
        streamer.watch(lambda: next(iter(())))()
    with pytest.raises(RuntimeError, match="generate has raised StopIteration"):
        read(streamer)


def test_a_row_that_has_ended_keeps_its_end(model):
    """The batch fails later on; the row's next generation does not begin with that error."""
    streamers = [TailraceStreamer(theirs("byte-level"), True) for _ in range(2)]
    ids, calls = torch.tensor([[104, 105], [107, 108]]), []

    def broken_at_last(input_ids, scores):
        calls.append(input_ids.shape)
        return broken() if len(calls) > 4 else scores

    params = [SamplingParams(seed=3, max_tokens=2), SamplingParams(seed=4)]
    sampling = TailraceSampling(params, streamer=streamers)
    for _ in range(2):
        calls.clear()
        with pytest.raises(RuntimeError, match="out of memory"):
            model.generate(ids, custom_generate=sampling, logits_processor=[broken_at_last], max_new_tokens=9)
        assert len(read(streamers[0])) > 0
        with pytest.raises(RuntimeError, match="out of memory"):
            read(streamers[1])


def test_what_cannot_be_streamed_is_said():
    tokenizer = theirs("byte-level")
    with pytest.raises(ParameterError, match="errors"):
        TailraceStreamer(tokenizer, errors="ignore")
    with pytest.raises(ParameterError, match="backend_tokenizer"):
        TailraceStreamer(object())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="params must be a SamplingParams, got dict"):
        TailraceStreamer(tokenizer, params={"stop": ("x",)})  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="clean_up_tokenization_spaces must be False"):
        TailraceStreamer(theirs("word piece"), clean_up_tokenization_spaces=True)
    streamer = TailraceStreamer(tokenizer, timeout=0.01)
    with pytest.raises(ParameterError, match="for one row, got 2"):
        streamer.put(torch.zeros(2, 3))
    with pytest.raises(ParameterError, match="for one row, got 2"):
        next(streamer)
    with pytest.raises(Empty):
        next(streamer)
