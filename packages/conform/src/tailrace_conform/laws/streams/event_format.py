"""streams.event-format: the body is an event stream."""

from __future__ import annotations

from tailrace_conform.cases import Case, Finding, SaysNothing, cases, judged, send
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict

FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


def problem(made: Exchange) -> str | None:
    kind = made.headers.get("content-type", "none")
    if "text/event-stream" not in kind:
        return f"the content type is {kind}"
    try:
        made.raw.decode()
    except UnicodeDecodeError as error:
        return f"the bytes are no UTF-8 at offset {error.start}"
    for line in made.raw.replace(b"\r\n", b"\n").split(b"\n"):
        if line and not line.startswith(FIELDS):
            return f"a line is no field of an event stream: {quoted(line[:80].decode(errors='replace'))}"
    for event in made.events:
        if event.parsed is None and event.data != "[DONE]":
            return f"an event's data is neither JSON nor [DONE]: {quoted(event.data[:80])}"
    return None


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made = await send(ctx, case)
    said = problem(made)
    if not said and not made.events:
        raise SaysNothing("no event came")
    return Finding(said, (made,)) if said else None


async def check(ctx: LawContext) -> Verdict:
    return await judged(ctx, cases(ctx, ["plain", "characters"], {"stream": True, "temperature": 1.0}), judge)


LAW = Law(
    "streams.event-format",
    "A stream is a valid event stream of JSON objects; comments, as for keep-alive, are allowed.",
    "Clients parse events by the specification: a bare line or broken JSON ends the answer.",
    "Every line of streamed answers is read: data, event, id, retry, a comment, or empty. The bytes must be UTF-8.",
    "A line without a field's name, data that is no JSON, a content type that is not text/event-stream.",
    check,
    needs=("stream",),
)
