"""Compare an answer that edits a file of 300 lines with and without the old file as its prediction, and with and
without the n-gram drafter.

The answer is scripted, so that every engine writes the same edited file: in each step the logit of the script's next
token is raised above all others. So acceptance is that of a model that makes exactly this edit. The prompt has the old
file, which the n-gram drafter searches too.

The forward pass of a step is not computed. It counts as --step-ms, and --token-ms for each of its tokens, as on a GPU
whose steps read the weights. Everything else is real (scheduling, drafting, verification, sampling over the whole
vocabulary), and counts with the processor time that it takes in the engine's thread. So other processes on the machine
hardly change the figures. With --step-ms 0 the model itself computes each step, and the clock is the wall's. With
--processor-time, too, it is the processor time of the whole process, which with one thread is that of an idle machine.

Time is from the first token of the answer to its last one. The four ways take turns, and every ratio is against the
plain way in the same round.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from bench.lib.harness import ROOT, machine, table, write_json
from tailrace.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.ngram import NGram
from tailrace.engine import speculation, step
from tailrace.engine.engine import Engine
from tailrace.engine.process import build_engine
from tailrace.models import describe, resolve
from tailrace.params import SamplingParams
from tailrace.runners.base import Batch
from tailrace.runners.scripted import ScriptedRunner
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import ModelInfo, Submit

FILE = "src/tailrace/engine/lifecycle.py"
OTHER = "src/tailrace/text/stop_strings.py"
Name = Literal["none", "ngram"]
DRAFTERS: tuple[Name, ...] = get_args(Name)
WAYS: dict[str, tuple[Name, bool]] = {  # name → the drafter, whether the request has a prediction
    "plain": ("none", False),
    "prediction": ("none", True),
    "ngram": ("ngram", False),
    "ngram, prediction": ("ngram", True),
}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.prediction", description=__doc__)
    parser.add_argument("--edits", nargs="+", default=list(EDITS), choices=list(EDITS))
    parser.add_argument("--lines", type=int, default=300, help="of the file")
    parser.add_argument("--output-tokens", type=int, default=10**6, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=10.0, help="of a step; 0: the model's own time")
    parser.add_argument("--token-ms", type=float, default=0.1, help="more for each token of a step")
    parser.add_argument("--processor-time", action="store_true", help="of the model, on a machine that others use")
    parser.add_argument("--max-drafts", type=int, default=8, help="of the n-gram drafter")
    parser.add_argument("--model", help="folder or hub id; the small default model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


# ---- edits: the lines of a file → the edited file


def rename(lines: list[str]) -> list[str]:
    """A name of many lines becomes a longer one."""
    return [re.sub(r"\bsequence\b", "running_sequence", line) for line in lines]


def insert(lines: list[str]) -> list[str]:
    """Twelve new lines, each at a place of its own."""
    edited = list(lines)
    for place in sorted(random.Random(1).sample(range(len(lines)), 12), reverse=True):
        edited.insert(place, f"        log.debug('at {place}: %d blocks are free', self.cache.num_free)\n")
    return edited


def delete(lines: list[str]) -> list[str]:
    """Two lines are gone at each of twelve places."""
    gone = {place + i for place in random.Random(1).sample(range(len(lines)), 12) for i in range(2)}
    return [line for place, line in enumerate(lines) if place not in gone]


def reorder(lines: list[str]) -> list[str]:
    """The methods have another order."""
    head, *blocks = re.split(r"(?m)^(?=    def )", "".join(lines))
    random.Random(1).shuffle(blocks)
    return [head, *blocks]


def replace(lines: list[str]) -> list[str]:
    """Another file: nothing is predicted but by chance."""
    return (ROOT / OTHER).read_text().splitlines(keepends=True)[: len(lines)]


EDITS: dict[str, Callable[[list[str]], list[str]]] = {
    "nothing": list,
    "rename": rename,
    "insert": insert,
    "delete": delete,
    "reorder": reorder,
    "nothing in common": replace,
}


# ---- measuring


class Clock:
    """The time of simulated forward passes, and this thread's processor time for all else."""

    def __init__(self) -> None:
        self.simulated_s = 0.0

    def perf_counter(self) -> float:
        """Return seconds."""
        return self.simulated_s + time.thread_time()

    def thread_time(self) -> float:
        """Return seconds of this thread."""
        return time.thread_time()


class TimedRunner(ScriptedRunner):
    """A runner that computes nothing. Its forward pass takes a given time."""

    def __init__(self, vocab_size: int, clock: Clock, step_s: float, token_s: float) -> None:
        super().__init__(vocab_size, len, 1 << 15)
        self._clock, self._step_s, self._token_s = clock, step_s, token_s

    def forward(self, batch: Batch) -> torch.Tensor:
        """Let the time pass. Return zeros."""
        self._clock.simulated_s += self._step_s + self._token_s * len(batch.positions)
        return torch.zeros(len(batch.wanted), self.vocab_size)


class ScriptedAnswers:
    """An engine whose model is made to write a given answer."""

    def __init__(self, engine: Engine, read_clock: Callable[[], float]) -> None:
        self.engine, self.number, self.read_clock = engine, 0, read_clock
        self.forward, engine.runner.forward = engine.runner.forward, self.run_step  # type: ignore[method-assign]
        self.prompt: list[int] = []
        self.answer: list[int] = []
        self.steps = 0

    def run_step(self, batch: Batch) -> torch.Tensor:
        """Compute the step, then raise the logits of the answer's next tokens."""
        logits = self.forward(batch).clone()
        self.steps += 1
        for row, place in enumerate((batch.positions[batch.wanted] + 1 - len(self.prompt)).tolist()):
            if 0 <= place < len(self.answer):
                logits[row, self.answer[place]] = 1e4
        return logits

    def write(self, prompt: list[int], answer: list[int], prediction: list[int]) -> tuple[float, int]:
        """Return the seconds and the steps of the answer, without its first token."""
        self.prompt, self.answer, self.number = prompt, answer, self.number + 1
        params = SamplingParams(temperature=0.0, max_tokens=len(answer), ignore_eos=True, prediction=tuple(prediction))
        self.engine.submit(Submit(str(self.number), 1, prompt, params))
        written: list[int] = []
        start = 0.0
        while self.engine.has_work:
            for message in self.engine.step().get(b"", []):
                if not written:
                    start, self.steps = self.read_clock(), 0
                written += getattr(message, "token_ids", [])
        assert written == answer, "the engine has written something else"
        return self.read_clock() - start, self.steps


def make_engine(args: argparse.Namespace, folder: Path, clock: Clock | None, drafter: Name) -> Engine:
    """Return an engine with this drafter. clock: of simulated passes; None: the model computes."""
    scheduler = SchedulerConfig(max_num_seqs=1)
    drafting = SpeculationConfig(drafter=drafter, max_drafts=args.max_drafts)
    if clock is None:
        model = ModelConfig(model=str(folder), dtype=args.dtype, threads=args.threads)
        return build_engine(EngineConfig(model=model, scheduler=scheduler, speculation=drafting))
    vocab_size = describe(folder, "timed").vocab_size
    runner = TimedRunner(vocab_size, clock, args.step_ms / 1e3, args.token_ms / 1e3)
    info, make_drafter = ModelInfo("timed", vocab_size, runner.max_model_len, []), None
    if drafter == "ngram":
        make_drafter = lambda sampler: NGram()  # noqa: E731
    return Engine(runner, info, CacheConfig(), scheduler, speculation=drafting, drafter=make_drafter)


def measure_edit(
    engines: dict[Name, ScriptedAnswers], tokenizer: Tokenizer, args: argparse.Namespace, edit: str
) -> list[dict[str, Any]]:
    """Return a row for each way."""
    lines = (ROOT / FILE).read_text().splitlines(keepends=True)[: args.lines]
    old = tokenizer.encode("".join(lines), add_special_tokens=False)
    answer = tokenizer.encode("".join(EDITS[edit](lines)), add_special_tokens=False)[: args.output_tokens]
    prompt = tokenizer.encode("Edit this file:\n" + "".join(lines) + "\nThe edited file:\n")
    found: dict[str, list[tuple[float, int]]] = {way: [] for way in WAYS}
    for turn in range(args.rounds):
        for way in sorted(WAYS, reverse=turn % 2 == 1):
            drafter, predicted = WAYS[way]
            found[way].append(engines[drafter].write(prompt, answer, old if predicted else []))
    print(f"measured: {edit}", file=sys.stderr, flush=True)
    plain = found["plain"]
    return [
        {
            "edit": edit,
            "tokens": len(answer),
            "way": way,
            "steps": round(statistics.median(steps for _, steps in runs)),
            "tokens/s": statistics.median(len(answer) / seconds for seconds, _ in runs),
            "steps ratio": statistics.median(p[1] / r[1] for p, r in zip(plain, runs, strict=True)),
            "time ratio": statistics.median(p[0] / r[0] for p, r in zip(plain, runs, strict=True)),
            "lowest": min(p[0] / r[0] for p, r in zip(plain, runs, strict=True)),
        }
        for way, runs in found.items()
    ]


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    tokenizer = Tokenizer.load(local.folder)
    clock = Clock() if args.step_ms else None
    if clock is not None:
        step.time = speculation.time = clock  # type: ignore[assignment]
    wall = time.process_time if args.processor_time else time.perf_counter
    read_clock = wall if clock is None else clock.perf_counter
    engines: dict[Name, ScriptedAnswers] = {
        n: ScriptedAnswers(make_engine(args, local.folder, clock, n), read_clock) for n in DRAFTERS
    }
    engines["none"].write([1, 2, 3], list(range(5, 105)), [])  # warm up
    engines["ngram"].write([1, 2, 3], list(range(5, 105)), [])
    results = [row for edit in args.edits for row in measure_edit(engines, tokenizer, args, edit)]
    about = machine()
    cost = f"{args.step_ms} ms a step and {args.token_ms} ms a token" if args.step_ms else f"{args.threads} threads"
    cost += ", processor time" if args.processor_time else ""
    print(f"{about['cpu']}, {local.name}, {cost}, {args.rounds} rounds in turns")
    print("ratios: of the plain way's steps and time to this way's, in the same round, median")
    print(table(results))
    if args.json:
        write_json(args.json, {"machine": about, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
