"""Measure the cost per token from token ids to the bytes of events, against a usual front end.

One process, one thread, tokens of several streams in turns: detokenize and look for stops; the same with 5 logprobs,
formatted; chunks as bytes. The baseline in the same run is what baseline.py does per token: the tokenizers
library's DecodeStream, a hold-back as wide as the longest stop, a pydantic model per chunk. Then the cost per token by
length of output, and both as whole front ends over HTTP (egress_http.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from bench.lib.harness import cores, machine, table, write_json
from bench.server import baseline
from bench.server.egress_http import over_http
from tailrace.api.logprobs import Labels, chat_logprobs
from tailrace.api.schema.chat import ChatChunk, ChatChunkChoice, ChatDelta
from tailrace.api.streaming import frame_chunk
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.params import SamplingParams
from tailrace.text.output import TextStream
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import TokenLogprobs

STOPS = ("</answer>", "\n\nUser:")
LENGTHS = (1_000, 10_000, 60_000)
HEAD: Any = {"id": "chatcmpl-0123456789abcdef", "created": 1, "model": "model", "system_fingerprint": "fp_0123456789"}


def text_tokens(tokenizer: Tokenizer, count: int) -> list[int]:
    """Ids of English prose and code."""
    import pydoc_data.topics

    ids = tokenizer.encode("\n".join(pydoc_data.topics.topics.values()), add_special_tokens=False)
    return (ids * (1 + count // len(ids)))[:count]


def entry(id: int, top: int) -> TokenLogprobs:
    """Logprobs of a token with `top` alternatives: 32-bit numbers with all their digits, as models give them."""
    scores = numpy.float32(-0.48) - numpy.arange(top, dtype=numpy.float32) * numpy.float32(0.7313)
    return TokenLogprobs(float(numpy.float32(-0.48)), 1, [(id + i) % 40_000 for i in range(top)], scores.tolist())


# ---- one call = one token of one stream


def ours(
    tokenizer: Tokenizer, top: int | None, as_bytes: bool
) -> Callable[[], Callable[[int, TokenLogprobs | None], Any]]:
    """Our stream; with `as_bytes` up to the event's bytes, as the chat endpoint makes them."""
    labels = Labels(tokenizer)
    params = SamplingParams(stop=STOPS, logprobs=top, max_tokens=None)

    def make() -> Callable[[int, TokenLogprobs | None], Any]:
        text = TextStream(tokenizer, params)

        def push(id: int, logprobs: TokenLogprobs | None) -> Any:
            delta = text.feed((id,), None if logprobs is None else (logprobs,))
            if not delta.text and not delta.logprobs:
                return None
            shown = None
            if top is not None:
                shown = chat_logprobs(labels, delta, top)
            if not as_bytes:
                return shown or delta.text
            return frame_chunk(ChatChunk(**HEAD, choices=[ChatChunkChoice(0, ChatDelta(content=delta.text), shown)]))

        return push

    return make


def usual(
    tokenizer: Tokenizer, top: int | None, as_bytes: bool
) -> Callable[[], Callable[[int, TokenLogprobs | None], Any]]:
    """What the best-known servers do for this part: baseline.py."""
    backend = tokenizer.backend

    def make() -> Callable[[int, TokenLogprobs | None], Any]:
        text = baseline.Text(backend, STOPS)

        def push(id: int, logprobs: TokenLogprobs | None) -> Any:
            if text.push((id,)):
                raise AssertionError("a stop in the bench's text")
            new, shown = text.take(finished=False), None
            if logprobs is not None:
                shown = baseline.logprobs_of(backend, (id,), (logprobs,))
            if not as_bytes:
                return shown or new
            choice = baseline.BaselineChoice(
                index=0, delta=baseline.BaselineDelta(content=new), logprobs=shown, finish_reason=None
            )
            chunk = baseline.Chunk(**HEAD, choices=[choice])
            return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n".encode()

        return push

    return make


def per_token(
    make: Callable[[], Callable[[int, TokenLogprobs | None], Any]], ids: list[int], top: int | None, streams: int
) -> float:
    """µs per token: the streams in turns, one token each; the best of three rounds."""
    entries = {id: entry(id, top) for id in set(ids)} if top is not None else {}
    best = float("inf")
    for _ in range(3):
        pushes = [make() for _ in range(streams)]
        per_stream = len(ids) // streams
        begin = time.perf_counter()
        for place in range(per_stream):
            for s, push in enumerate(pushes):
                id = ids[(place + 37 * s) % len(ids)]
                push(id, entries.get(id))
        best = min(best, (time.perf_counter() - begin) / (per_stream * streams) * 1e6)
    return best


def inside(tokenizer: Tokenizer, streams: int, tokens: int) -> list[dict[str, Any]]:
    """Every case, ours and the usual way."""
    ids = text_tokens(tokenizer, tokens)
    found = []
    for name, top, as_bytes, goal in (
        ("detokenize + stops", None, False, 1.5),
        ("… + 5 logprobs", 5, False, 5.0),
        ("… as events", None, True, None),
        ("… as events with 5 logprobs", 5, True, None),
    ):
        mine = per_token(ours(tokenizer, top, as_bytes), ids, top, streams)
        peer = per_token(usual(tokenizer, top, as_bytes), ids, top, streams)
        found.append({"case": name, "µs/token": mine, "goal": goal or "-", "usual µs": peer, "×": peer / mine})
    return found


def by_length(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """µs per token of the last 1,000 tokens of one stream of each length."""
    ids = text_tokens(tokenizer, max(LENGTHS))
    found = []
    for length in LENGTHS:
        line: dict[str, Any] = {"tokens": length}
        for name, make in (("µs/token", ours(tokenizer, None, True)), ("usual µs", usual(tokenizer, None, True))):
            push = make()
            for id in ids[: length - 1000]:
                push(id, None)
            begin = time.perf_counter()
            for id in ids[length - 1000 : length]:
                push(id, None)
            line[name] = (time.perf_counter() - begin) * 1e3
        found.append(line)
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.egress", description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=100_000, help="per case inside the process")
    parser.add_argument("--http-tokens", type=int, default=512, help="per stream over HTTP; 0 leaves it out")
    parser.add_argument("--front-ends", type=int, default=1, help="over HTTP also ours in so many processes")
    parser.add_argument("--model", help="whose tokenizer (default: the small default model)")
    parser.add_argument("--json", type=Path, help="write the results here too")
    args = parser.parse_args(argv)
    folder = resolve(ModelConfig(model=args.model)).folder
    tokenizer = Tokenizer.load(folder)
    record: dict[str, Any] = {"machine": machine(), "inside": inside(tokenizer, args.streams, args.tokens)}
    print(f"{record['machine']['cpu']}, {cores()} cores; {args.streams} streams")
    print(table(record["inside"]))
    record["lengths"] = by_length(tokenizer)
    print("\nevents of one stream, by its length")
    print(table(record["lengths"]))
    if args.http_tokens:
        record["http"] = over_http(args.streams, args.http_tokens, STOPS, args.front_ends)
        print("\nwhole front ends over HTTP, scripted engine; saturated: it steps as fast as it can, all cores taken")
        print(table(record["http"]))
    if args.json:
        write_json(args.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
