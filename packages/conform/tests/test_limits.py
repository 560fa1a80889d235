"""A run always ends: no request, no law and no probe goes on for ever, whatever the server does; and reasons are plain
English."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import tailrace_conform
from judging import FOREIGN
from scripted_server.honest import HonestServer
from scripted_server.http_frame import Asked, Events, HttpFrame, Plain
from tailrace_conform.context import BUDGETS, LawContext
from tailrace_conform.errors import ConformError
from tailrace_conform.law import Law
from tailrace_conform.laws import all_laws
from tailrace_conform.plain import quoted
from tailrace_conform.report.text import summary
from tailrace_conform.runner import Runner, chosen
from tailrace_conform.target import EVENTS, TargetServer
from tailrace_conform.verdict import Verdict

HASTY = replace(BUDGETS["quick"], patience=1)


async def for_ever(ctx: LawContext) -> Verdict:
    await asyncio.sleep(3600)
    raise AssertionError


async def test_a_law_ends_undecided_when_its_time_is_over():
    law = Law("a.slow", "s", "w", "m", "v", for_ever)
    async with HonestServer() as server:
        target = TargetServer(server.url, timeout_s=30.0)
        runner = Runner(target, [law], HASTY)
        await runner.prepare()
        target.timeout_s = 0.1
        one = await runner.judge(law)
        await target.close()
    assert one.verdict.kind == "inconclusive"
    assert one.verdict.said == "not decided within 0.1 s, the most that a law may take"


async def test_an_endless_stream_is_left_by_its_events_not_by_the_clock():
    async with HonestServer("stream-endless") as server:
        target = TargetServer(server.url, "scripted", timeout_s=3600.0)
        body = {"model": "scripted", "prompt": "a", "max_tokens": 4, "stream": True}
        made = await target.request("/completions", body)
        await target.close()
    assert made.failure == "no end after 80 events, far more than max_tokens allows"
    assert EVENTS < len(made.events) < 200
    assert made.raw.startswith(b"data: ")
    assert target.unanswered == [made]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_endless_body_is_left_by_its_bytes(streamed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tailrace_conform.target.LARGEST", 1 << 20)

    async def lines():
        while True:
            yield b":" + b"x" * 10_000 + b"\n"

    async def handle(asked: Asked) -> Plain | Events:
        return Events(lines())

    async with HttpFrame(handle) as frame:
        target = TargetServer(frame.url, "m", timeout_s=3600.0)
        made = await target.request("/completions", {"stream": streamed})
        await target.close()
    assert made.failure == "no end after 1 MiB"
    assert len(made.raw) < 2 << 20


class OnceEach(HttpFrame):
    """Answers the first request of a connection as if more might come, and closes it when the second one does."""

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await super()._one(reader, writer)
        await reader.read(1)
        return False


async def test_a_connection_that_the_server_closes_after_its_answer_is_no_fault():
    async def handle(asked: Asked) -> Plain | Events:
        return Plain({})

    async with OnceEach(handle) as frame:
        target = TargetServer(frame.url, "m", timeout_s=30.0)
        made = [await target.request("/completions", {}) for _ in range(3)]
        await target.close()
    assert [one.failure for one in made] == [""] * 3


@pytest.mark.parametrize("count", [1, 2])
async def test_a_server_that_goes_away_ends_the_run_and_no_law_is_blamed(count):
    async def stop(ctx: LawContext) -> Verdict:
        await server.__aexit__()
        await ctx.generate()
        raise AssertionError

    laws = [Law(name, "s", "w", "m", "v", check) for name, check in (("a.last", stop), ("a.never", for_ever))]
    server = HonestServer()
    async with server:
        target = TargetServer(server.url, timeout_s=30.0)
        run = await Runner(target, laws[:count], BUDGETS["quick"]).run()
        await target.close()
    assert [(one.law.id, one.verdict.kind) for one in run.judged] == [("a.last", "inconclusive")]
    assert [law.id for law in run.unjudged] == ["a.never"][: count - 1]
    assert run.interrupted  # so that the exit code is no success
    assert summary(run).endswith(f"the server is gone, {count - 1} law{'s' * (count == 1)} left out")


async def test_a_list_of_models_that_never_answers_is_no_death():
    async with HonestServer("models-fail") as server:
        target = TargetServer(server.url, "scripted", timeout_s=30.0)
        run = await Runner(target, chosen(all_laws(), ["errors.strange-bodies"]), BUDGETS["quick"]).run()
        await target.close()
    assert [one.verdict.kind for one in run.judged] == ["inconclusive"]


async def test_a_server_that_never_says_what_it_offers_ends_the_run():
    async def handle(asked: Asked) -> Plain | Events:
        if asked.path == "/models":
            return Plain({"data": [{"id": "m"}]})
        await asyncio.sleep(3600)
        raise AssertionError

    async with HttpFrame(handle) as frame:
        target = TargetServer(frame.url, timeout_s=30.0)
        target.timeout_s = 0.2
        with pytest.raises(ConformError, match=r"did not say within .* s what it offers"):
            await Runner(target, [], HASTY).run()
        await target.close()


def test_no_reason_is_made_of_what_python_calls_things():
    """Each is a habit that put Python's words into reasons."""
    for file in Path(tailrace_conform.__path__[0]).rglob("*.py"):
        text = file.read_text()
        assert "!r}" not in text, file
        assert "repr(" not in text, file
        assert ".__name__}" not in text.replace("{__name__}", "").replace('f"{__name__}.', ""), file


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (b"\xffa", '"\ufffda"'),
        ([b"a", True, {"k": 1.5}], '["a", true, {"k": 1.5}]'),
        ("a \x1b[31m", '"a \\u001b[31m"'),
        ("\ud83d", '"\\ud83d"'),
        ("a" * 300, '"' + "a" * 199 + "…"),
    ],
)
def test_values_are_shown_as_json(value: object, shown: str):
    assert quoted(value) == shown
    assert not FOREIGN.search(quoted(value))


@pytest.mark.parametrize(
    "text",
    [
        "got None",
        "KeyError: 'a'",
        "a NoneType",
        "Traceback (most",
        "not str",
        "b' sea'",
        "['a', 'b']",
        "{'a': 1}",
        "inf s",
    ],
)
def test_words_of_python_are_noticed(text: str):
    assert FOREIGN.search(text)
