"""Compare vLLM's server with tailrace as its sampler and without, in turns: tokens per second of each case of sampling,
and their share of greedy's in the same round.

Both servers stay up; one is idle while the other works. The client is a process of its own. vLLM and tailrace come from
the environment that `make test-vllm` makes; what vLLM reads from the shell's variables holds for both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.lib.harness import ROOT, Worker, machine, rest, table, write_json
from bench.lib.server import HOST, WARM_UP_TOKENS, Prompts, free_port, running
from tailrace.config import ModelConfig
from tailrace.models import LocalModel, resolve
from tailrace.text.tokenizer import Tokenizer

SAMPLED: dict[str, Any] = {"temperature": 0.8}
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
NUCLEUS = SAMPLED | {"top_p": 0.9}
# case → (fields, goal: the share of greedy's tokens/s, both with tailrace)
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "greedy": ({"temperature": 0.0}, 1.0),
    "temperature": (SAMPLED, 0.95),
    "top-p": (NUCLEUS, 0.95),
    "top-k + top-p": (NUCLEUS | {"top_k": 50}, 0.95),
    "… + three penalties": (NUCLEUS | {"top_k": 50} | PENALTIES, 0.95),
    "seeds": (SAMPLED | {"seed": 7}, 0.95),
    "5 logprobs": (SAMPLED | {"logprobs": 5}, 0.9),
}
SIDES = {"vLLM": "0", "tailrace": "1"}  # → TAILRACE_VLLM
ON = b"samples for vLLM in this process"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.vllm", description=__doc__)
    parser.add_argument(
        "--python", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python", help="of an environment with both"
    )
    parser.add_argument("--model", help="as for tailrace serve")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), help="besides greedy")
    parser.add_argument("--vllm-args", default="--enforce-eager", help="further flags for vllm serve, in one string")
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args(argv)


@contextlib.contextmanager
def serving(
    args: argparse.Namespace, local: LocalModel, switch: str, places: int, context: int = 1024
) -> Iterator[int]:
    """`vllm serve` on a free port. switch: what TAILRACE_VLLM is. places: sequences at once. context: of each, in
    tokens.

    Raises:
        RuntimeError: it did not start, or the plug-in is not on, or not off; with the end of its log.
    """
    port = free_port()
    flags = ["--host", HOST, "--port", str(port), "--dtype", args.dtype, "--max-num-seqs", str(places)]
    flags += ["--max-model-len", str(context), *args.vllm_args.split()]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"} | dict(os.environ)
    command = [str(args.python), "-m", "vllm.entrypoints.cli.main", "serve", str(local.folder), *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            with log.open("wb") as output, running(command, port, env=env | {"TAILRACE_VLLM": switch}, output=output):
                if (ON in log.read_bytes()) != (switch == "1"):
                    raise RuntimeError(f"TAILRACE_VLLM={switch} has had no effect")
                yield port
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{log.read_text(errors='replace')[-2000:]}") from error


def measure(
    args: argparse.Namespace, ports: dict[str, int], prompts: Prompts, cases: list[str]
) -> dict[str, dict[str, list[float]]]:
    """Tokens per second, by side, case and round."""
    rates: dict[str, dict[str, list[float]]] = {side: {case: [] for case in cases} for side in SIDES}
    with Worker("bench.lib.load", threads=1) as client:
        for turn in range(-1, args.rounds):  # the first warms up
            for place, case in enumerate(cases if turn % 2 else list(reversed(cases))):
                given = prompts.take(args.streams)
                for side in list(SIDES) if (turn + place) % 2 else list(reversed(SIDES)):
                    rest()
                    answer = client.ask(
                        {
                            "host": HOST,
                            "port": ports[side],
                            "streams": args.streams,
                            "prompts": given,
                            "sampling": CASES[case][0],
                            "output_tokens": args.output_tokens if turn >= 0 else WARM_UP_TOKENS,
                        }
                    )
                    if turn >= 0:
                        rates[side][case].append(answer["tokens"] / answer["wall_s"])
            load = os.getloadavg()[0]
            print(f"round {turn + 1} of {args.rounds}, load {load:.1f}", file=sys.stderr, flush=True)
    return rates


def lines(rates: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """The rows of the table. Each round is compared with itself, since the machine's speed drifts."""
    own, theirs = rates["tailrace"], rates["vLLM"]
    return [
        {
            "case": case,
            "vLLM tok/s": statistics.median(theirs[case]),
            "of greedy": share(theirs[case], theirs["greedy"]),
            "tailrace tok/s": statistics.median(own[case]),
            "of greedy ": share(own[case], own["greedy"]),
            "goal": goal,
            "tailrace / vLLM": share(own[case], theirs[case]),
        }
        for case, (_, goal) in CASES.items()
        if case in own
    ]


def share(rates: list[float], base: list[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(rates, base, strict=True))


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write. Exit code 0 whatever the ratios are, 2 where there is no vLLM."""
    args = arguments(argv)
    if not args.python.is_file():
        print(f"--python: {args.python} is not there; make test-vllm makes it", file=sys.stderr)
        return 2
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    prompts = Prompts(Tokenizer.load(local.folder), args.prompt_tokens)
    cases = ["greedy", *(case for case in args.cases if case != "greedy")]
    before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        ports = {
            side: stack.enter_context(serving(args, local, switch, args.streams)) for side, switch in SIDES.items()
        }
        rates = measure(args, ports, prompts, cases)
    record = {
        "machine": machine(),
        "load": [before, os.getloadavg()[0]],
        "model": local.name,
        "dtype": args.dtype,
        "streams": args.streams,
        "tokens": [args.prompt_tokens, args.output_tokens],
        "rates": rates,
        "results": lines(rates),
    }
    about = record["machine"]
    print(f"{about['cpu']}, {about['cores']} cores, load {before:.1f} before, {record['load'][1]:.1f} after")
    print(f"{local.name}, {args.dtype}, {args.streams} streams of {args.prompt_tokens} + {args.output_tokens} tokens,")
    print(f"{args.rounds} rounds in turns; 1.00 means as fast as greedy in the same round on the same side")
    print(table(record["results"]))
    if args.json:
        write_json(args.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
