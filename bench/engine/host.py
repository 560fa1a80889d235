"""Measure the engine's own time: microseconds of processor time per sequence and step, by part of the step.

    python -m bench.host [--streams 1 64 256] [--cases greedy logprobs] [--delay-ms 0] [--vllm PYTHON]

The device is scripted: all rows of logits are one row, which was prepared before. So nothing but the sampler's walk
over this row depends on the vocabulary. All streams decode. The parts are those of engine/step.py, and "wire", the
encoding of the messages. --vllm names an interpreter with vLLM, whose core is then measured in the same run
(bench/engine/host_vllm.py): it schedules, prepares inputs and updates from outputs.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch

from bench.lib.harness import ROOT, machine, table, write_json
from tailrace.config import CacheConfig, GrammarConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.ngram import NGram
from tailrace.engine import stats
from tailrace.engine.engine import Engine
from tailrace.engine.token_bytes import TokenBytes, TokenText
from tailrace.grammar.service import Grammars
from tailrace.params import SamplingParams
from tailrace.request.options import Grammar
from tailrace.runners.base import Batch, ModelRunner
from tailrace.wire.messages import ModelInfo, Submit

VOCAB = 128_256
BLOCK = 16
PROMPT = 8  # tokens
LEAST_STEPS, MOST_STEPS, LENGTH = 8, 900, 1000  # of a measurement; tokens of a stream
PARTS = ("plan", "draft", "mask", "sample", "verify", "commit", "wire")
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "logprobs": {"temperature": 0.0, "frequency_penalty": 0.1, "presence_penalty": 0.1, "logprobs": 3},
    "stop strings": {"temperature": 0.0, "stop": ["never written"]},
    "grammar": {"temperature": 0.0, "grammar": Grammar(kind="regex", source="[a-z]*")},
    "n-gram": {"temperature": 0.0},
}
ALPHABET = [bytes([97 + place % 26]) * (1 + place // 26 % 8) for place in range(VOCAB)]  # the text of each token
USUAL = ("greedy", "logprobs", "stop strings")


class OneRowRunner(ModelRunner):
    """A runner whose rows of logits are all the same row, which is in the cache of the processor.

    Args:
        delay_s: how long a pass takes, of which the processor takes nothing.
    """

    def __init__(self, delay_s: float) -> None:
        super().__init__(VOCAB, 1 << 20, torch.device("cpu"), torch.float32)
        self._row, self._delay_s = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0)), delay_s

    def allocate(self, num_blocks: int) -> None:
        pass

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        pass

    def forward(self, batch: Batch) -> torch.Tensor:
        if self._delay_s:
            time.sleep(self._delay_s)
        return self._row.expand(len(batch.wanted), VOCAB)


class ProcessorTime:
    """The processor time of each part of a step. It takes the place of the engine's clocks."""

    def __init__(self) -> None:
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def time_part(self, part: str, lane: stats.Lane = "cpu") -> Iterator[None]:
        """As Counters.time_part."""
        begun_s = time.thread_time()
        try:
            yield
        finally:
            self.spent_s[part] += time.thread_time() - begun_s


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.host", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64, 256, 1024])
    parser.add_argument("--cases", nargs="+", default=list(USUAL), choices=CASES)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of a forward pass")
    parser.add_argument("--overlap", action="store_true", help="overlap steps, as on a GPU")
    parser.add_argument("--vllm", metavar="PYTHON", help="an interpreter with vLLM")
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    rows: list[dict[str, Any]] = []
    for case in args.cases:
        for streams in args.streams:
            rows.append(measure_case(args, case, streams))
    if args.vllm:
        rows += measure_vllm(args, rows)
    print("µs of processor time per sequence and step; memory in KiB per stream")
    print(table(rows))
    if args.json:
        write_json(args.json, {"machine": machine(), "rows": rows})
    return 0


def make_engine(args: argparse.Namespace, case: str, streams: int) -> Engine:
    """Return an engine with enough slots and blocks for all streams."""
    info = ModelInfo("one row", VOCAB, 1 << 20, [2])
    scheduler = SchedulerConfig(
        max_num_seqs=streams,
        max_num_batched_tokens=max(2048, streams * PROMPT),
        max_waiting=streams + 1,
        overlap="on" if args.overlap else "off",
        max_model_len=LENGTH + 2 * PROMPT,
    )
    cache = CacheConfig(num_blocks=streams * 64, block_size=BLOCK)
    parts: dict[str, Any] = {}
    if case in ("stop strings", "grammar"):
        known = TokenBytes(tuple(ALPHABET))
        parts["token_bytes"] = replace(known, reader=lambda hidden, prompt: TokenText(known, hidden).push)
    if case == "grammar":
        parts["grammars"] = Grammars(GrammarConfig(), None, ALPHABET, frozenset(), [2], VOCAB)
    if case == "n-gram":
        parts |= {"speculation": SpeculationConfig(drafter="ngram"), "drafter": lambda sampler: NGram()}
    return Engine(OneRowRunner(args.delay_ms / 1e3), info, cache, scheduler, **parts)


def measure_case(args: argparse.Namespace, case: str, streams: int) -> dict[str, Any]:
    """Return a row of the table: the parts' time per sequence and step, of streams that all decode."""
    engine = make_engine(args, case, streams)
    params = SamplingParams(**CASES[case], max_tokens=LENGTH, ignore_eos=True, seed=1)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for place in range(streams):
        prompt = [(7919 * (place + 1) * (j + 1)) % VOCAB for j in range(PROMPT)]
        engine.submit(Submit(str(place), 1, prompt, params))
    held = (tracemalloc.get_traced_memory()[0] - before) / streams / 1024
    tracemalloc.stop()
    while engine.waiting or any(sequence.prefilling for sequence in engine.running):
        engine.step()
    for _ in range(4):
        engine.step()
    gc.collect()
    gc.freeze()
    clock = ProcessorTime()
    with patch.object(stats.Counters, "time_part", lambda counters, *given: clock.time_part(*given)):
        steps, whole_s = run_steps(engine, clock, args.seconds, streams)
    gc.unfreeze()
    scale = 1e6 / steps / streams
    parts = {part: clock.spent_s[part] * scale for part in PARTS}
    others = whole_s * scale - sum(clock.spent_s.values()) * scale
    both = parts["plan"] + parts["commit"]
    return {"case": case, "streams": streams, **parts, "other": others, "plan + commit": both, "memory": held}


def run_steps(engine: Engine, clock: ProcessorTime, seconds: float, streams: int) -> tuple[int, float]:
    """Run steps for so many seconds. Return their number, and the thread's processor time."""
    encode = msgspec.msgpack.Encoder().encode
    begun_s, until_s, steps = time.thread_time(), time.perf_counter() + seconds, 0
    while steps < MOST_STEPS and (time.perf_counter() < until_s or steps < LEAST_STEPS):
        due = engine.step()
        with clock.time_part("wire"):
            for messages in due.values():
                encode(messages)
        steps += 1
    assert len(engine.running) == streams, "a stream has ended"
    return steps, time.thread_time() - begun_s


def measure_vllm(args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return vLLM's rows: one for each number of streams."""
    command = [args.vllm, "-m", "bench.engine.host_vllm", *map(str, args.streams)]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    empty = dict.fromkeys(rows[0], float("nan"))
    return [
        {**empty, "case": "vLLM, greedy", **one, "plan + commit": one["plan"] + one["commit"]}
        for one in json.loads(answer.splitlines()[-1])
    ]


if __name__ == "__main__":
    sys.exit(main())
