"""Servers whose answers say nothing: nothing at all, spaces, one text for everything, thoughts alone. No law holds for
want of a text, and nobody is accused of what did not occur. Each "holds" that is listed here was looked at: it is
earned without a text, or with the one that there is."""

from __future__ import annotations

import pytest

from judging import foreign, judge, said
from scripted_server.honest import HonestServer
from tailrace_conform.laws import all_laws
from tailrace_conform.runner import chosen

# Without a text: events, indexes, roles and refusals are there all the same.
FRAME = {
    "streams.event-format",
    "streams.chunk-shape",
    "streams.one-ending",
    "streams.ends-or-says-why",
    "streams.done-last",
    "streams.role-once",
    "streams.n-complete",
    "streams.refusal-status",
    "errors.no-5xx",
    "errors.out-of-range",
    "errors.wrong-types",
    "errors.named-field",
    "errors.error-object",
    "errors.unknown-field",
    "errors.unknown-model",
    "errors.unknown-path",
    "errors.bad-json",
    "errors.strange-bodies",
    "errors.too-long",
}
# With any tokens: they are counted, and their logprobs are what they are.
TOKENS = {
    "streams.usage",
    "logprobs.bytes-join",
    "logprobs.chosen-in-top",
    "logprobs.sums",
    "logprobs.greedy",
    "logprobs.stream-same",
}
# With one text for everything: it is whole, with neighbours too, and a stop in the prompt does not end it.
TEXT = {"streams.deltas-join", "stops.not-in-prompt", "errors.neighbours"}
# With thoughts alone: they are drawn as any text is. What cuts, binds or names the text can't be seen.
UNSEEN = {
    *(law.id for law in chosen(all_laws(), ["stops"])),
    "streams.incremental",
    "streams.whole-characters",
    "logprobs.bytes-join",
    "knobs.logit-bias",
    "knobs.allowed-token-ids",
    "structure.tool-choice-none",
    "structure.streamed-call",
    "structure.thinking",
}
UNBOUND = {
    "structure.json-schema",
    "structure.json-object",
    "structure.choice",
    "structure.regex",
    "structure.forced-tool",
}
UNSTOPPED = {"stops.cut", "stops.several", "stops.nothing-sent"}
EARNED = {
    "answers-nothing": FRAME,
    "answers-blanks": FRAME | TOKENS,
    "answers-alike": FRAME | TOKENS | TEXT,
}
ACCUSED = {  # these servers take every field and heed none
    "answers-nothing": UNBOUND | {"knobs.min-tokens"},
    "answers-blanks": UNBOUND,
    "answers-alike": UNBOUND | UNSTOPPED,
    "answers-thoughts": UNBOUND,
}
# What would hold if nothing equalled nothing; the rest takes hundreds of draws to say that it can't be judged.
CARELESS = (
    "streams",
    "stops",
    "logprobs.bytes-join",
    "knobs.temperature-zero",
    "seeds.choices",
    "structure.tool-choice-none",
    "structure.thinking",
    "errors.neighbours",
)


@pytest.mark.few(1)
@pytest.mark.parametrize("only", [CARELESS, pytest.param((), marks=pytest.mark.long)], ids=["few", "all"])
@pytest.mark.parametrize("name", ACCUSED)
async def test_no_law_holds_for_want_of_a_text(name: str, only: tuple[str, ...]):
    async with HonestServer(name) as server:
        run = await judge(server, only)
    held = {one.law.id for one in run.judged if one.verdict.kind == "holds"}
    asked = {one.law.id for one in run.judged}
    if name in EARNED:
        assert held == EARNED[name] & asked, said(run)
    else:
        assert not held & UNSEEN, said(run)
        assert "streams.deltas-join" in held
    assert {one.law.id for one in run.findings} <= ACCUSED[name], said(run)
    assert all(one.verdict.said for one in run.judged)
    assert not foreign(run)
