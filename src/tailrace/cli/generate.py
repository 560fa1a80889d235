"""tailrace generate: continue prompts with an engine process of its own, without HTTP."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tailrace.api.problems import from_failed
from tailrace.cli.local import prepare
from tailrace.cli.options import add_config, add_sampling, read_config, read_sampling
from tailrace.params import SamplingParams
from tailrace.text.stream import Delta, TextStream
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Failed, Finished, Tokens
from tailrace.wire.sync import SyncClient, SyncStream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tailrace generate`."""
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="without any: one prompt per line of stdin")
    parser.add_argument("--chat", action="store_true", help="each prompt is a user's message, through the chat template")
    parser.add_argument("--json", action="store_true", help="one JSON object per choice")
    add_sampling(parser)
    add_config(parser, "model", "cache", "scheduler")


def run(arguments: argparse.Namespace) -> int:
    """All prompts at once, batched; answers in their order."""
    config = read_config(arguments)
    prompts: list[str] = arguments.prompts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    local = prepare(config)
    params = read_sampling(arguments, {"max_tokens": 128, **local.defaults})
    client = SyncClient(local.engine)
    eos = client.start().eos_token_ids
    try:
        streams = [client.submit(encode(local.tokenizer, text, arguments.chat), params) for text in prompts]
        for prompt, stream in zip(prompts, streams, strict=True):
            for index, delta in enumerate(collect(stream, local.tokenizer, params, eos)):
                show(prompt, index, delta, arguments.json)
    finally:
        client.close()
    return 0


def encode(tokenizer: Tokenizer, text: str, chat: bool) -> list[int]:
    """A prompt's ids."""
    return tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)


def collect(stream: SyncStream, tokenizer: Tokenizer, params: SamplingParams, eos: list[int]) -> list[Delta]:
    """The whole of each choice.

    Raises:
        TailraceError: a sequence failed.
    """
    from msgspec.structs import replace

    whole = replace(params, output_kind="final")
    texts = [TextStream(tokenizer, whole, eos) for _ in range(params.n)]
    ends: dict[int, Delta] = {}
    for events in stream:
        for event in events:
            if isinstance(event, Failed):
                raise from_failed(event)
            text = texts[event.index]
            delta = text.feed(event.token_ids, event.logprobs) if isinstance(event, Tokens) else _flush(text, event)
            if delta.finish_reason is not None:
                ends[event.index] = delta
                stream.abort_sequence(event.index)
    return [ends[index] for index in sorted(ends)]


def _flush(text: TextStream, event: Any) -> Delta:
    assert isinstance(event, Finished)
    return text.flush(event.reason, event.stop_token_id)


def show(prompt: str, index: int, delta: Delta, as_json: bool) -> None:
    """One choice on stdout."""
    if as_json:
        entry = {"prompt": prompt, "index": index, "text": delta.text, "finish_reason": delta.finish_reason,
                 "tokens": len(delta.token_ids)}  # fmt: skip
        print(json.dumps(entry, ensure_ascii=False), flush=True)
    else:
        print(delta.text, flush=True)
