"""Stop strings in the engine: the same token as the front end's matcher, in the very step, and nothing wasted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.harness import LocalClient, front_of, make_tokenizer, saying
from examples import examples
from tailrace.engine.checks.stop_strings import StopStringCheck
from tailrace.engine.token_bytes import TokenBytes
from tailrace.params import SamplingParams
from tailrace.request.options import MarkedSpan
from tailrace.text.output import TextStream
from text.vocabularies import ALL

SPELLINGS = {name: TokenBytes.of(tokenizer, tokenizer.vocab_size) for name, tokenizer in ALL.items()}
PIECES = st.sampled_from(["a", "b", "ab", "ba", " ", "é", "€", "aé", "\ufffd", "\n", "st", "op", "lo"])
PATTERNS = st.sampled_from(["a+b", "[ab]é", "\\s{2}", "\ufffd", "b.?a", "h.*o"])


def ends_at(push, tokens: list[int]) -> int | None:
    return next((i for i, token in enumerate(tokens) if push(token)), None)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_it_ends_where_the_front_end_would(name, data):
    tokenizer = ALL[name]
    any_ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40)
    prompt, tokens = (
        data.draw(any_ids),
        data.draw(any_ids | st.text(alphabet="ab é€\n", max_size=40).map(tokenizer.encode)),
    )
    params = SamplingParams(
        stop=tuple(data.draw(st.lists(PIECES, max_size=4, unique=True))),
        stop_regex=tuple(data.draw(st.lists(PATTERNS, max_size=2, unique=True))),
        stop_outside=data.draw(
            st.sampled_from([(), (MarkedSpan("a", "b"),), (MarkedSpan("ab", " ", True), MarkedSpan("é", None))])
        ),
        min_tokens=data.draw(st.integers(0, 6)),
        skip_special_tokens=data.draw(st.booleans()),
        max_tokens=1000,
    )
    text = TextStream(tokenizer, params, prompt=prompt)
    token_bytes = SPELLINGS[name]
    assert token_bytes.reader is not None
    engine = StopStringCheck(params, token_bytes.reader(params.hidden(token_bytes.special), prompt))
    front = ends_at(lambda token: text.feed([token]).finish_reason == "stop", tokens)
    assert ends_at(engine.push, tokens) == front


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("letters"))


@pytest.mark.parametrize("known", [True, False])
async def test_nothing_is_drawn_after_a_stop(letters, known):
    client = LocalClient(saying(b"Hello, world and all the rest of it"))
    client.token_bytes = TokenBytes.of(letters, 258) if known else TokenBytes()
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
