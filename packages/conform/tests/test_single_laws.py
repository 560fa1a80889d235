"""What a law does in a case that no fault of faults.py brings about."""

from __future__ import annotations

from typing import Any

import pytest

from judging import judge
from scripted_server.honest import HonestServer
from tailrace_conform.context import LawContext
from tailrace_conform.laws.logprobs.bytes_join import look
from tailrace_conform.laws.seeds import high_bits
from tailrace_conform.laws.streams import gone_client
from tailrace_conform.laws.streams.whole_characters import split
from tailrace_conform.reply import ReplyChoice, ReplyToken
from tailrace_conform.seeded import SeededAnswer
from tailrace_conform.verdict import Verdict


@pytest.mark.parametrize("fault", ["", "gone-goes-on"])
async def test_metrics_that_go_away_meanwhile_blame_nobody(fault: str, monkeypatch: pytest.MonkeyPatch):
    by_metrics = gone_client.by_metrics

    async def without(*args: Any) -> Verdict:
        server.metrics = False
        return await by_metrics(*args)

    monkeypatch.setattr(gone_client, "by_metrics", without)
    monkeypatch.setattr(gone_client, "PATIENCE_S", 0.5)
    async with HonestServer(fault) as server:
        run = await judge(server, ["streams.gone-client"])
    assert [(one.verdict.kind, one.verdict.said) for one in run.judged] == [
        ("inconclusive", "the metrics are no longer there once the clients have left")
    ]


@pytest.mark.parametrize(
    ("streamed", "plain", "shown"),
    [
        ("ab😀", "ab😀", None),
        ("ab\ufffd", "ab\ufffd", None),  # the model itself wrote it, or both show what max_tokens has cut
        ("ab", "ab\ufffd", None),  # cut, and left out by one of the two
        ("ab\ufffd", "ab", None),
        ("ab\ufffd\ufffd", "ab\ufffd", None),
        ("ab\ufffd", "ab😀", "streamed"),  # the other has the character
        ("ab\ufffd\ufffd\ufffd\ufffd", "ab😀", "streamed"),
        ("ab😀", "ab\ufffd", "plain"),
        ("a\ufffd\ufffdb", "a😀b", "streamed"),
        ("a\ufffdb", "a\ufffdb\ufffd", None),
        ("a\ufffd\ufffdb", "a😀b\ufffd", "streamed"),
        ("b", "ab\ufffd", None),  # they differ before it: another law's matter
    ],
)
def test_where_a_character_was_split(streamed: str, plain: str, shown: str | None):
    assert split(streamed, plain) == {"streamed": streamed, "plain": plain, None: None}[shown]


@pytest.mark.parametrize(
    ("tokens", "text", "right"),
    [
        (["a", "<|im_end|>", "b"], "ab", True),  # left out of the text, as servers do
        (["a", "<|im_end|>", "b"], "a<|im_end|>b", True),
        (["<b>", "a", "<|im_end|>", "b"], "<b>ab", True),
        (["a", "<x", "b"], "ab", False),  # a token like any other
        (["a", "<|im_end|>"], "aa", False),
        (["a", "<|im_end|>", "b"], "a", False),
    ],
)
def test_special_tokens_may_be_left_out_of_the_text(tokens: list[str], text: str, right: bool):
    choice = ReplyChoice(0, text, ends=["length"], tokens=[ReplyToken(one, None, -1.0) for one in tokens])
    assert (look(choice)[1] is None) == right


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("", "inconclusive", "seeds that differ by 2^16 give the same answer at times, but not always"),
        ("seed-cut", "broken", "seeds that differ by 2^32 give the same answer"),
    ],
)
async def test_one_bit_that_collides_by_chance_leaves_the_others_to_be_tested(
    fault: str, kind: str, said: str, monkeypatch: pytest.MonkeyPatch
):
    asked = high_bits.answer
    first: dict[int, SeededAnswer] = {}

    async def answer(ctx: LawContext, seed: int) -> SeededAnswer:
        """The first seed's answer is also that of the seed plus 2^16."""
        if seed - 2**16 in first:
            return first[seed - 2**16]
        found = await asked(ctx, seed)
        if not first:
            first[seed] = found
        return found

    monkeypatch.setattr(high_bits, "answer", answer)
    async with HonestServer(fault) as server:
        run = await judge(server, ["seeds.high-bits"])
    assert [(one.verdict.kind, one.verdict.said) for one in run.judged] == [(kind, said)]
