"""`tailrace generate`: completes many prompts at once with an engine of its own, and prints the answers in their
order."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tailrace.cli.flags import ENGINE_SECTIONS, add_config_flags, add_sampling_flags, read_config, read_sampling
from tailrace.cli.local import PreparedModel, delta_of, engine, prepare
from tailrace.errors import ConfigError
from tailrace.models import choose_sampling_defaults
from tailrace.params import SamplingParams
from tailrace.text.output import TextStream
from tailrace.wire.messages import SequenceEvent, TokenLogprobs
from tailrace.wire.stream import PulledStream
from tailrace.wire.sync_client import SyncClient

MAX_TOKENS = 256  # without --max-tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add flags for prompts, their form, settings and sampling."""
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="none: all of stdin is one prompt")
    parser.add_argument("--lines", action="store_true", help="every line of stdin is a prompt")
    parser.add_argument("--chat", action="store_true", help="put each prompt to the model as a user's message")
    parser.add_argument("--system", metavar="TEXT", help="system message before each prompt; implies --chat")
    parser.add_argument("--json", action="store_true", help="one JSON object per answer and line, instead of text")
    add_config_flags(parser, ENGINE_SECTIONS)
    add_sampling_flags(parser)


@dataclass
class GeneratedText:
    """One sequence of one prompt, as it grows."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass
class PromptJob:
    """One prompt that is being answered: its stream, and per sequence the text stream and the answer."""

    prompt: str
    prompt_tokens: int
    stream: PulledStream
    events: Iterator[list[SequenceEvent]]
    texts: list[TextStream]
    answers: list[GeneratedText]

    @property
    def done(self) -> bool:
        return all(answer.finish_reason for answer in self.answers)


def run(args: argparse.Namespace) -> int:
    """Complete every prompt. Return exit code 0."""
    prompts = read_prompts(args)
    prepared = prepare(read_config(args))
    start = choose_sampling_defaults(prepared.folder, prepared.asked) | {"max_tokens": MAX_TOKENS}
    params = read_sampling(args, start, prepared.tokenizer)
    encoded = [encode(prompt, args, prepared) for prompt in prompts]
    several = len(prompts) * params.n > 1
    with engine(prepared) as client:
        for job in answer_all(prompts, encoded, params, prepared, client):
            show(job, as_json=args.json, several=several)
    return 0


def read_prompts(args: argparse.Namespace) -> list[str]:
    """Return the prompts from the arguments or stdin.

    Raises:
        ConfigError: there is no prompt, or there are two sources.
    """
    if args.prompts and args.lines:
        raise ConfigError("--lines reads prompts from stdin, so none can be given as arguments")
    if args.prompts:
        return args.prompts
    text = sys.stdin.read()
    prompts = [line for line in text.splitlines() if line.strip()] if args.lines else [text.removesuffix("\n")]
    if not any(prompts):
        raise ConfigError("no prompt: give some as arguments or on stdin")
    return prompts


def encode(prompt: str, args: argparse.Namespace, prepared: PreparedModel) -> list[int]:
    """Return the token ids of the prompt, as plain text or as a message in the model's chat template."""
    if not (args.chat or args.system):
        return prepared.tokenizer.encode(prompt)
    system = [{"role": "system", "content": args.system}] if args.system else []
    return prepared.tokenizer.encode_chat([*system, {"role": "user", "content": prompt}])


def answer_all(
    prompts: list[str], encoded: list[list[int]], params: SamplingParams, prepared: PreparedModel, client: SyncClient
) -> Iterator[PromptJob]:
    """Yield jobs in the order of the prompts, each when it is done.

    At most as many are submitted as the engine computes at once. So all running jobs are read in turn, and a stop
    string ends its sequence at once.
    """
    window = max(1, prepared.config.scheduler.max_num_seqs // params.n)
    waiting = iter(zip(prompts, encoded, strict=True))
    jobs: list[PromptJob] = []
    running: list[PromptJob] = []
    shown = 0
    while True:
        while len(running) < window and (following := next(waiting, None)) is not None:
            job = submit(*following, params, prepared, client)
            jobs.append(job)
            running.append(job)
        if not running:
            return
        for job in running:
            advance(job)
        running = [job for job in running if not job.done]
        while shown < len(jobs) and jobs[shown].done:
            yield jobs[shown]
            shown += 1


def submit(
    prompt: str, ids: list[int], params: SamplingParams, prepared: PreparedModel, client: SyncClient
) -> PromptJob:
    """Send one prompt to the engine."""
    stream = client.submit(ids, params)
    texts = [TextStream(prepared.tokenizer, params, prompt=ids) for _ in range(params.n)]
    return PromptJob(prompt, len(ids), stream, iter(stream), texts, [GeneratedText() for _ in range(params.n)])


def advance(job: PromptJob) -> None:
    """Read the events that have arrived for the job. Once all its texts have ended, it is aborted in the engine.

    Raises:
        TailraceError: the engine reports that a sequence failed.
    """
    for event in next(job.events, ()):
        answer, text = job.answers[event.index], job.texts[event.index]
        if answer.finish_reason:
            continue  # its text ended at a stop string before the engine knew of it
        if (delta := delta_of(text, event)) is None:
            continue
        answer.text += delta.text
        answer.token_ids += delta.token_ids
        answer.logprobs += delta.logprobs or []
        answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
    if job.done:
        job.stream.abort("stop")


def show(job: PromptJob, *, as_json: bool, several: bool) -> None:
    """Print a job's answers."""
    for index, answer in enumerate(job.answers):
        if as_json:
            record: dict[str, Any] = {
                "prompt": job.prompt,
                "index": index,
                "text": answer.text,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "stop_reason": answer.stop_reason,
                "prompt_tokens": job.prompt_tokens,
                "completion_tokens": job.texts[index].num_tokens,
            }
            if answer.logprobs:
                record["logprobs"] = [
                    {
                        "logprob": entry.logprob,
                        "rank": entry.rank,
                        "top": dict(zip(entry.top_ids, entry.top_logprobs, strict=True)),
                    }
                    for entry in answer.logprobs
                ]
            print(msgspec.json.encode(record).decode(), flush=True)
        else:
            heading = f"── {' '.join(job.prompt.split())[:70]}\n" if several else ""
            print(f"{heading}{answer.text}", flush=True)
