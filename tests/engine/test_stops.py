"""Stop strings in the engine: the same token as the front end's matcher, in the very step, and nothing wasted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.harness import LocalClient, front_of, make_tokenizer, saying
from tailrace.engine.spelling import Spelling
from tailrace.engine.stops import StopText
from tailrace.options import Stretch
from tailrace.params import SamplingParams
from tailrace.text.stream import TextStream
from text.vocabularies import byte_level

TOKENIZER = byte_level()
SPELLING = Spelling.of(TOKENIZER, TOKENIZER.vocab_size)
PIECES = st.sampled_from(["a", "b", "ab", "ba", " ", "é", "€", "aé", "\ufffd", "\n"])


def ends_at(push, tokens: list[int]) -> int | None:
    return next((i for i, token in enumerate(tokens) if push(token)), None)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40) | st.text(alphabet="ab é€\n", max_size=40).map(TOKENIZER.encode),
    st.lists(PIECES, max_size=4, unique=True),
    st.lists(st.sampled_from(["a+b", "[ab]é", "\\s{2}", "\ufffd", "b.?a"]), max_size=2, unique=True),
    st.sampled_from([(), (Stretch("a", "b"),), (Stretch("ab", " ", True), Stretch("é", None))]),
    st.integers(0, 6),
    st.booleans(),
)  # fmt: skip
def test_it_ends_where_the_front_end_would(tokens, stops, patterns, outside, min_tokens, skip):
    params = SamplingParams(
        stop=tuple(stops), stop_regex=tuple(patterns), stop_outside=outside, min_tokens=min_tokens, skip_special_tokens=skip,
        max_tokens=1000,
    )  # fmt: skip
    text, engine = TextStream(TOKENIZER, params), StopText(params, SPELLING)
    front = ends_at(lambda token: text.feed([token]).finish_reason == "stop", tokens)
    assert ends_at(engine.push, tokens) == front


def test_only_where_bytes_are_text():
    assert SPELLING.exact


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("letters"))


@pytest.mark.parametrize("known", [True, False])
async def test_nothing_is_drawn_after_a_stop(letters, known):
    client = LocalClient(saying(b"Hello, world and all the rest of it"))
    client.spelling = Spelling.of(letters, 258) if known else Spelling()
    async with front_of(client, letters) as front:
        for stream in (False, True):
            answer = await front.chat(stop=["wor"], n=3, stream=stream)
            assert answer.status_code == 200
            if not stream:
                for choice in answer.json()["choices"]:
                    assert (choice["message"]["content"], choice["stop_reason"]) == ("Hello, ", "wor")
        await front.until(client.idle)
        late = front.metric('tailrace_request_aborted_total{cause="stop string"}')
        assert late == (0 if known else 6)
        if known:
            assert front.metric("tailrace_generation_tokens_total") == 2 * 3 * len("Hello, wor")
            assert front.metric("tailrace_wasted_tokens_total") == 0
