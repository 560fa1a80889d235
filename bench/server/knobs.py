"""Measure a server's throughput with sampling parameters on every stream, against greedy in the same run. Guidance is
compared with two plain streams for each guided one: the same prompt, and the negative prompt.

One server; the modes take turns for several rounds, so that noise affects all of them alike. The client is a process of
its own. Then the length of history: the step's sampling time with penalties after 1,000 to 30,000 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from typing import Any

import torch

from bench.lib.harness import Worker, machine, table, write_json
from bench.lib.server import HOST, WARM_UP_TOKENS, Prompts, add_server_flags, serving
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots
from tailrace.text.tokenizer import Tokenizer

NUCLEUS: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
# mode → (fields, goal as a share of greedy's throughput)
MODES: dict[str, tuple[dict[str, Any], float]] = {
    "greedy": ({"temperature": 0.0}, 1.0),
    "temperature 0.8, top-p 0.95": (NUCLEUS, 0.97),
    "… with all penalties": (NUCLEUS | PENALTIES, 0.96),
    "… with seeds": (NUCLEUS | {"seed": 7}, 0.97),
    "… with 5 logprobs": (NUCLEUS | {"logprobs": 5}, 0.93),
    "… with a sampling mask": (NUCLEUS | {"return_sampling_mask": True}, 0.93),
}
PAIRS = "two plain streams each"  # the streams that a guided stream computes
GUIDED, GUIDED_GOAL = "guidance, top-p 0.95", 0.97
HISTORIES = (1_000, 3_000, 10_000, 30_000)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.knobs", description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4)
    add_server_flags(parser)
    return parser.parse_args(argv)


def throughput(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Tokens per second of each mode."""
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    prompts = Prompts(Tokenizer.load(local.folder), args.prompt_tokens)
    negative = prompts.take(1)[0]
    fields = {mode: asked for mode, (asked, _) in MODES.items()} | {PAIRS: NUCLEUS}
    fields[GUIDED] = NUCLEUS | {"guidance_scale": 1.5, "negative_prompt": negative}
    rates: dict[str, list[float]] = {mode: [] for mode in fields}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(args, local))
        client = stack.enter_context(Worker("bench.lib.load", threads=1))
        for turn in range(-1, args.rounds):
            for mode in list(fields) if turn % 2 else list(reversed(fields)):
                given = prompts.take(args.streams) + [negative] * (args.streams if mode == PAIRS else 0)
                answer = client.ask(
                    {
                        "host": HOST,
                        "port": server["port"],
                        "streams": len(given),
                        "prompts": given,
                        "sampling": fields[mode],
                        "output_tokens": args.output_tokens if turn >= 0 else WARM_UP_TOKENS,
                    }
                )
                if turn >= 0:
                    rates[mode].append(answer["tokens"] / answer["wall_s"])
            print(f"round {turn + 1} of {args.rounds}", file=sys.stderr, flush=True)
    goals = {mode: goal for mode, (_, goal) in MODES.items()}
    lines = [line(mode, rates[mode], "greedy", rates["greedy"], goals[mode]) for mode in MODES]
    # of a pair only one stream counts
    return [*lines, line(GUIDED, rates[GUIDED], PAIRS, [rate / 2 for rate in rates[PAIRS]], GUIDED_GOAL)]


def line(mode: str, rates: list[float], base: str, base_rates: list[float], goal: float) -> dict[str, Any]:
    """The rows of the table. Each round is compared with its own baseline, since the machine's speed drifts."""
    shares = [a / b for a, b in zip(rates, base_rates, strict=True)]
    return {
        "mode": mode,
        "tok/s": statistics.median(rates),
        "against": base,
        "share": statistics.median(shares),
        "goal": goal,
    }


def histories(vocab: int = 49_152, rows: int = 32) -> list[dict[str, Any]]:
    """Sampling and committing one token per row with three penalties, by length of history. One history is like text,
    which repeats tokens; the other has only distinct tokens."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 2.5
    found = []
    for length in HISTORIES:
        rng = torch.Generator().manual_seed(length)
        line: dict[str, Any] = {"history": length}
        texts = {
            "text-like": (torch.rand(length, generator=rng) ** 6 * vocab).long(),  # a few words make up most of a text
            "all distinct": torch.randperm(vocab, generator=rng)[:length],
        }
        for kind, tokens in texts.items():
            slots = Slots(rows, vocab)
            for slot in range(rows):
                slots.add(
                    slot,
                    SamplingParams(**NUCLEUS, **PENALTIES),
                    key=slot,
                    prompt=tokens[:10].tolist(),
                    output=tokens[10:].tolist(),
                )
            sampler, where, times = Sampler(slots), Rows.plain(range(rows), range(rows), [length] * rows), []
            for _ in range(60):
                begin = time.perf_counter()
                out = sampler(logits, where)
                slots.commit(range(rows), out.tokens())
                times.append((time.perf_counter() - begin) / rows * 1e6)
            line[f"distinct, {kind}"] = int(tokens.unique().numel())
            line[f"µs/row, {kind}"] = statistics.median(times)
        found.append(line)
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    by_history = histories()
    results = throughput(args)
    record = {
        "machine": machine(),
        "streams": args.streams,
        "dtype": args.dtype,
        "results": results,
        "histories": by_history,
    }
    print(
        f"{record['machine']['cpu']}, {args.threads} threads, {args.dtype}, {args.streams} streams, "
        f"{args.rounds} rounds in turns"
    )
    print(table(results))
    print("\nthree penalties by length of history, 32 rows of V = 49,152")
    print(table(by_history))
    if args.json:
        write_json(args.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
