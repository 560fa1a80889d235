"""`tailrace explain`: completes a prompt and says why each token came, as a table, one token's ladder, or a file.

The model runs in an engine of its own, or behind a server (--url). The records are those of the API: see
explain_table.py and explain_html.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from tailrace.api.explanations import encode_records
from tailrace.api.logprobs import Labels
from tailrace.api.schema.explain import TokenExplanation
from tailrace.cli.chat_backends import check_single_answer, post
from tailrace.cli.explain_html import page
from tailrace.cli.explain_table import ladder, table
from tailrace.cli.flags import (
    ENGINE_SECTIONS,
    add_config_flags,
    add_sampling_flags,
    given_sampling,
    read_config,
    read_sampling,
)
from tailrace.cli.generate import encode
from tailrace.cli.local import delta_of, engine, prepare
from tailrace.errors import ConfigError
from tailrace.explain.record import ExplainOptions
from tailrace.models import choose_sampling_defaults
from tailrace.params import SamplingParams
from tailrace.text.output import TextStream

MAX_TOKENS = 64  # without --max-tokens


class Answer(msgspec.Struct, frozen=True):
    """A prompt's answer. params: the sampling fields that are not at their defaults. explanations: one per token."""

    prompt: str
    text: str
    params: dict[str, Any]
    explanations: list[TokenExplanation]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add flags for the prompt, its form, the output, settings and sampling."""
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument("--token", type=int, metavar="N", help="show the ladder of this token of the output, from 0")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="candidates to show of each token, 1 to 100")
    parser.add_argument("--html", metavar="FILE", help="write a page that needs nothing else, instead of a table")
    parser.add_argument("--json", metavar="FILE", help="write the records as the API has them, instead of a table")
    parser.add_argument("--chat", action="store_true", help="put the prompt to the model as a user's message")
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt; implies --chat")
    parser.add_argument("--url", help="of a running server, such as http://localhost:8000; none: start an engine here")
    parser.add_argument("--api-key", help="for --url")
    add_config_flags(parser, ENGINE_SECTIONS)
    add_sampling_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Answer the prompt, and show why each token came. Return exit code 0.

    Raises:
        ConfigError: there is no such token, or a file can't be written.
    """
    options = ExplainOptions(args.top)
    answer = remote_answer(args, options) if args.url else local_answer(args, options)
    count = len(answer.explanations)
    if args.token is not None and not 0 <= args.token < count:
        raise ConfigError(f"--token must be an integer in [0, {count - 1}], for {count} tokens came; got {args.token}")
    chosen = answer.explanations if args.token is None else [answer.explanations[args.token]]
    if args.json:
        write(args.json, msgspec.json.encode(msgspec.structs.replace(answer, explanations=chosen)))
    if args.html:
        write(args.html, page(answer.prompt, answer.params, chosen).encode())
    if not (args.json or args.html):
        print("\n".join(table(chosen) if args.token is None else ladder(chosen[0])))
    return 0


def write(path: str, data: bytes) -> None:
    """Write a file, and say so.

    Raises:
        ConfigError: it can't be written.
    """
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error
    print(f"wrote {path}", file=sys.stderr)


def local_answer(args: argparse.Namespace, options: ExplainOptions) -> Answer:
    """Return the answer of an engine process that ends with it.

    Raises:
        TailraceError: the engine refused the request, or died.
    """
    prepared = prepare(read_config(args))
    start = choose_sampling_defaults(prepared.folder, prepared.asked) | {"max_tokens": MAX_TOKENS}
    params = msgspec.structs.replace(read_sampling(args, start, prepared.tokenizer), explain=options)
    check_single_answer(params)
    prompt, labels = encode(args.prompt, args, prepared), Labels(prepared.tokenizer)
    text, said = TextStream(prepared.tokenizer, params, prompt=prompt), ""
    found: list[msgspec.Raw] = []
    with engine(prepared) as client, client.submit(prompt, params) as stream:
        for events in stream:
            for delta in (delta_of(text, event) for event in events):
                if delta is None:
                    continue
                said += delta.text
                found += encode_records(labels, delta)
                if delta.finish_reason:
                    records = [msgspec.json.decode(one, type=TokenExplanation) for one in found]
                    return Answer(args.prompt, said, shown_params(params), records)
    raise AssertionError("a stream ends with a reason")


def shown_params(params: SamplingParams) -> dict[str, Any]:
    """Return the parameters that are not at their defaults, without `explain`."""
    return msgspec.to_builtins(msgspec.structs.replace(params, explain=None), str_keys=True)


def remote_answer(args: argparse.Namespace, options: ExplainOptions) -> Answer:
    """Return the answer of the server at args.url.

    Raises:
        RequestError: the server refused the request. EngineDeadError: it can't be reached.
    """
    params = read_sampling(args, {}, None)
    check_single_answer(params)
    given = msgspec.to_builtins({name: getattr(params, name) for name in given_sampling(args)}, str_keys=True)
    body = {"max_tokens": MAX_TOKENS, **given, "explain": {"top": options.top}}
    if args.__dict__.get("model.model"):
        body["model"] = args.__dict__["model.model"]
    if args.chat or args.system:
        system = [{"role": "system", "content": args.system}] if args.system else []
        messages = [*system, {"role": "user", "content": args.prompt}]
        choice = post(args, "/v1/chat/completions", {**body, "messages": messages})["choices"][0]
        text = choice["message"].get("content") or ""
    else:
        choice = post(args, "/v1/completions", {**body, "prompt": args.prompt})["choices"][0]
        text = choice["text"]
    return Answer(args.prompt, text, given, msgspec.convert(choice["explanations"], list[TokenExplanation]))
