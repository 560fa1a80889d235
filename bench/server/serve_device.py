"""A server with and without overlapped steps, greedy and sampled, on a GPU or the CPU: what sampling costs, and what
overlap gains.

Two servers, of which only one is busy at a time, take turns, mode by mode, for several rounds. Ratios are medians over
rounds of values from the same round. Sampled means temperature 0.8, top-p 0.95, penalties and seeds. A first round of a
few tokens does not count. Then bench/engine/engine_alone.py measures the engine without HTTP: its throughput while
streams only decode, and the share of time in which the device is idle. NVML's utilisation, if available, is a second
measure of that share.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from bench.lib.harness import Worker, machine, table, write_json
from bench.lib.server import HOST, WARM_UP_TOKENS, Prompts, add_server_flags, serving, summary
from tailrace.config import ModelConfig
from tailrace.models import LocalModel, resolve
from tailrace.text.tokenizer import Tokenizer

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {
        "temperature": 0.8,
        "top_p": 0.95,
        "seed": 7,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
    },
}
OVERLAPS = ("on", "off")
GOAL_SAMPLED = 0.98  # sampled / greedy
UTILISATION_EVERY_S = 0.05

Ask = Callable[[dict[str, Any]], dict[str, Any]]
Key = tuple[str, str]  # overlap, mode


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve --device …", description=__doc__)
    parser.add_argument("--device", required=True, help="as for tailrace serve: cpu, cuda, cuda:1 …")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="concurrent streams")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("http", "engine"), help="one half")
    parser.add_argument(
        "--batch-invariant", action=argparse.BooleanOptionalAction, default=True, help="as for tailrace serve"
    )
    add_server_flags(parser)
    return parser.parse_args(argv)


def run(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    prompts = Prompts(Tokenizer.load(local.folder), args.prompt_tokens)
    record: dict[str, Any] = {
        "machine": machine(),
        "model": local.name,
        **{k: v for k, v in vars(args).items() if k != "json"},
    }
    print(
        f"{record['machine']['cpu']}, device {args.device}; {local.name} in {args.dtype}, {args.rounds} rounds in turns"
    )
    print(f"{args.prompt_tokens} prompt and {args.output_tokens} output tokens")
    for half, title, asking in (("http", "over HTTP", over_http), ("engine", "the engine alone, decoding", in_engine)):
        if args.only in (None, half):
            with asking(args, local) as asked:
                record[half] = [x for n in args.streams for x in lines(args, prompts, asked, half, n)]
            print(f"\n{title}\n{table(record[half])}", flush=True)
            if args.json:
                write_json(args.json, record)
    return 0


# ---- two ways to ask


@contextlib.contextmanager
def over_http(args: argparse.Namespace, local: LocalModel) -> Iterator[dict[str, Ask]]:
    """A server for each overlap, and one client."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Worker("bench.lib.load", threads=1))
        asks: dict[str, Ask] = {}
        for overlap in OVERLAPS:
            given = f"{args.server_args} {'' if args.batch_invariant else '--no-batch-invariant'}"
            more = f"{given} --device {args.device} --max-num-seqs {max(args.streams)} --overlap {overlap}"
            server = stack.enter_context(serving(argparse.Namespace(**vars(args) | {"server_args": more}), local))
            where = {"host": HOST, "port": server["port"]}
            asks[overlap] = lambda question, where=where: client.ask(question | where)
        yield asks


@contextlib.contextmanager
def in_engine(args: argparse.Namespace, local: LocalModel) -> Iterator[dict[str, Ask]]:
    """An engine for each overlap."""
    with contextlib.ExitStack() as stack:
        asks: dict[str, Ask] = {}
        for overlap in OVERLAPS:
            worker = stack.enter_context(Worker("bench.engine.engine_alone", threads=args.threads))
            about = {
                name: getattr(args, name) for name in ("dtype", "device", "threads", "prompt_tokens", "batch_invariant")
            }
            worker.ask(about | {"model": str(local.folder), "overlap": overlap, "streams": max(args.streams)})
            asks[overlap] = worker.ask
        yield asks


# ---- measuring


def lines(
    args: argparse.Namespace, prompts: Prompts, asks: dict[str, Ask], half: str, streams: int
) -> list[dict[str, Any]]:
    """A row per overlap and mode."""
    keys: list[Key] = [(overlap, mode) for overlap in OVERLAPS for mode in MODES]
    answers: dict[Key, list[dict[str, Any]]] = {key: [] for key in keys}
    for turn in range(-1, args.rounds):
        for overlap, mode in keys if turn % 2 else reversed(keys):  # alternates which goes first
            tokens = args.output_tokens if turn >= 0 else WARM_UP_TOKENS
            question = {
                "streams": streams,
                "sampling": MODES[mode],
                "output_tokens": tokens,
                "prompts": prompts.take(streams),
            }
            with Utilisation(args.device) as busy:
                answer = asks[overlap](question)
            if turn >= 0:
                answers[overlap, mode].append(answer | {"utilisation": busy.share})
    print(f"measured: {half}, {streams} streams", file=sys.stderr, flush=True)
    return [line(answers, key, half, streams) for key in keys]


def line(answers: dict[Key, list[dict[str, Any]]], key: Key, half: str, streams: int) -> dict[str, Any]:
    """The row of one overlap and mode, over all rounds."""
    overlap, mode = key
    mine = answers[key]
    rates = {k: [answer["tokens"] / answer["wall_s"] for answer in found] for k, found in answers.items()}
    common: dict[str, Any] = {
        "overlap": overlap,
        "mode": mode,
        "streams": streams,
        "tok/s": statistics.median(rates[key]),
        "of greedy": ratio(rates[key], rates[overlap, "greedy"]),
        "goal": GOAL_SAMPLED if mode == "sampled" else "-",
        "on / off": ratio(rates["on", mode], rates["off", mode]) if overlap == "on" else "-",
    }
    used = statistics.median(answer["utilisation"] for answer in mine)
    if half == "http":
        itl = summary(mine)["itl_ms"]
        return common | {"ITL p50 ms": itl["p50"], "p99": itl["p99"], "NVML busy": used}
    parts = {name: statistics.median(answer["parts"].get(name, 0.0) for answer in mine) for name in parts_of(answers)}
    idle = statistics.median(answer["idle"] for answer in mine)
    return common | {"idle": idle, "NVML busy": used} | {f"{name} ms": ms for name, ms in parts.items()}


def parts_of(answers: dict[Key, list[dict[str, Any]]]) -> list[str]:
    """The parts of a step that occur in any of the answers."""
    return sorted({name for found in answers.values() for answer in found for name in answer["parts"]})


def ratio(mine: list[float], theirs: list[float]) -> float:
    """Median over rounds, since the machine's speed changes from round to round."""
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


class Utilisation:
    """NVML's share of time in which some kernel ran, while the block runs; nan without NVML."""

    def __init__(self, device: str) -> None:
        self.found: list[float] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, args=(int(device.partition(":")[2] or 0),), daemon=True)
        self.wanted = device != "cpu"

    @property
    def share(self) -> float:
        return statistics.fmean(self.found) if self.found else float("nan")

    def watch(self, index: int) -> None:
        try:
            pynvml = import_module("pynvml")
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            while not self.over.wait(UTILISATION_EVERY_S):
                self.found.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        except Exception:  # no library, driver or permission: the events still measure the idle share
            return

    def __enter__(self) -> Utilisation:
        if self.wanted:
            self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.over.set()
        if self.wanted:
            self.thread.join()
