"""The client of a serving benchmark: keeps a number of streams open and notes when each piece of each answer arrives.

Run as a worker (see harness.Worker), so that it shares no interpreter with the server. It reads raw sockets and only
notes (time, bytes) while the clock runs. Everything is parsed afterwards, because the server needs the cores.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

READ_BYTES = 1 << 16


async def fetch(
    host: str, port: int, body: dict[str, Any], until: float | None = None
) -> tuple[float, list[tuple[float, bytes]]]:
    """One request: when it was sent and what arrived when, in seconds of time.perf_counter. until: when the client
    leaves."""
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(payload)}\r\nconnection: close\r\n\r\n"
    )
    pieces: list[tuple[float, bytes]] = []
    sent = time.perf_counter()
    writer.write(head.encode() + payload)
    if until is not None:
        asyncio.get_running_loop().call_later(until - sent, writer.close)
    while piece := await reader.read(READ_BYTES):
        pieces.append((time.perf_counter(), piece))
    writer.close()
    return sent, pieces


def parse(sent: float, pieces: list[tuple[float, bytes]], expected_tokens: int | None) -> dict[str, Any]:
    """When each event with text arrived (in seconds after the request was sent), the text, and its number of tokens.

    Raises:
        RuntimeError: the server refused or broke off, or the number of tokens is wrong.
    """
    whole = b"".join(piece for _, piece in pieces)
    if not whole.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server answers {whole[:500]!r}")
    arrivals: list[float] = []
    texts: list[str] = []
    usage: dict[str, Any] | None = None
    buffer = b""
    for at, piece in pieces:
        buffer += piece
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            data = line.strip()
            if not data.startswith(b"data: {"):
                continue
            event = json.loads(data[6:])
            usage = event.get("usage") or usage
            if text := "".join(choice.get("text") or "" for choice in event["choices"]):
                arrivals.append(at - sent)
                texts.append(text)
    tokens = None if usage is None else usage["completion_tokens"]
    if tokens is None or expected_tokens not in (None, tokens) or b"data: [DONE]" not in whole:
        raise RuntimeError(f"expected {expected_tokens} tokens and [DONE], got usage {usage}")
    return {"arrivals": arrivals, "end": pieces[-1][0] - sent, "tokens": tokens, "text": "".join(texts)}


async def stream(question: dict[str, Any], prompts: list[list[int]]) -> list[tuple[float, list[tuple[float, bytes]]]]:
    """One client: its prompts one after another."""
    bodies = [asked(question, prompt, question["output_tokens"]) for prompt in prompts]
    return [await fetch(question["host"], question["port"], body) for body in bodies]


def asked(question: dict[str, Any], prompt: list[int], max_tokens: int, **options: bool) -> dict[str, Any]:
    """The body of a request. options: further ones of the stream."""
    return {
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, **options},
        **question["sampling"],
        "prompt": prompt,
    }


async def endless(question: dict[str, Any], prompts: list[list[int]], first: int, since: float, until: float) -> int:
    """One client that sends requests until the time is over: how many tokens it got since `since`. first: tokens of its
    first answer."""
    answers = []
    for i, prompt in enumerate(prompts):
        limit = question["output_tokens"] if i else first
        body = asked(question, prompt, limit, continuous_usage_stats=True)
        _, pieces = await fetch(question["host"], question["port"], body, until)
        cut = time.perf_counter() >= until
        answers.append((pieces, None if cut else limit))
        if cut:  # parsed only now, after the clock has stopped
            return sum(counted(pieces, since, limit) for pieces, limit in answers)
    raise RuntimeError("not enough prompts for the time")


def counted(pieces: list[tuple[float, bytes]], since: float, limit: int | None) -> int:
    """Tokens of an answer that arrived since then, from the usage in each event. limit: the total it must have; None:
    the client left.

    Raises:
        RuntimeError: the server refused or failed, or the number of tokens is wrong.
    """
    before = after = 0
    buffer = b""
    for at, piece in pieces:
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"the server says {event['error']}")
                after = event["usage"]["completion_tokens"] if event.get("usage") else after
                before = after if at < since else before
    whole = b"".join(piece for _, piece in pieces)
    if pieces and not whole.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server answers {whole[:500]!r}")
    if limit is not None and (after != limit or b"data: [DONE]" not in whole):
        raise RuntimeError(f"expected {limit} tokens and [DONE], got {after}")
    return after - before


async def keep(question: dict[str, Any]) -> dict[str, Any]:
    """A constant number of streams for `seconds` after a ramp of `ramp_s`: throughput without the beginning and the
    end, during which some streams would run alone. First answers have different lengths, so that streams don't end
    together."""
    streams, prompts, full = question["streams"], question["prompts"], question["output_tokens"]
    since = time.perf_counter() + question["ramp_s"]
    until = since + question["seconds"]
    got = await asyncio.gather(
        *(
            endless(question, prompts[i::streams], max(1, full * (i + 1) // streams), since, until)
            for i in range(streams)
        )
    )
    return {"wall_s": question["seconds"], "tokens": sum(got)}


async def mixed(question: dict[str, Any]) -> dict[str, Any]:
    """Requests of different lengths: {prompt, output_tokens, at}. With `streams` so many are open all the time and `at`
    is ignored. Otherwise each is sent at its time, in seconds, whatever has become of the others. Latencies count from
    that time: if the client is late, the request has waited."""
    start = time.perf_counter()
    requests = question["requests"]
    answers: list[dict[str, Any]] = []

    async def ask(request: dict[str, Any], due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        body = asked(question, request["prompt"], request["output_tokens"])
        _, pieces = await fetch(question["host"], question["port"], body)
        answers.append({"due": due, "pieces": pieces, "tokens": request["output_tokens"]})

    async def client() -> None:
        for request in left:
            await ask(request, time.perf_counter())

    left = iter(requests)
    streams = question.get("streams")
    works = [client() for _ in range(streams)] if streams else [ask(each, start + each["at"]) for each in requests]
    await asyncio.gather(*works)
    wall_s = time.perf_counter() - start
    parsed = [parse(answer["due"], answer["pieces"], answer["tokens"]) for answer in answers]
    return {"wall_s": wall_s, "tokens": sum(request["tokens"] for request in parsed), "requests": parsed}


async def measure(question: dict[str, Any]) -> dict[str, Any]:
    """All clients at once: client i has the prompts i, i + streams, … until_eos: answers may end before they have all
    their tokens."""
    streams, prompts = question["streams"], question["prompts"]
    start = time.perf_counter()
    answers = await asyncio.gather(*(stream(question, prompts[i::streams]) for i in range(streams)))
    wall_s = time.perf_counter() - start
    expected = None if question.get("until_eos") else question["output_tokens"]
    requests = [parse(sent, pieces, expected) for answer in answers for sent, pieces in answer]
    return {"wall_s": wall_s, "tokens": sum(request["tokens"] for request in requests), "requests": requests}


def main() -> None:
    """Answer questions until stdin closes."""
    for line in sys.stdin:
        question = json.loads(line)
        way = keep if "seconds" in question else mixed if "requests" in question else measure
        print(json.dumps(asyncio.run(way(question))), flush=True)


if __name__ == "__main__":
    main()
