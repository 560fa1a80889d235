"""Compare models with states (delta rule, Mamba, Mamba 2, short convolutions) and mixtures of experts with
transformers, in turns in one run.

The models have layers of real width, few layers, and random weights in bfloat16. Both sides compute the same prompts
and decode steps with the same number of threads. Prints wall and processor time, and ratios (transformers / ours: above
1 we are faster). On a shared machine, processor time is the steadier one. On a GPU wall time is the one that counts: it
ends when the device has computed everything.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bench.lib.harness import machine, table, write_json
from tailrace import kernels
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.runners import load_runner
from tailrace.runners.flat_batch import FlatTokens

t: Any = transformers
VOCAB, BLOCK, CHUNK = 4096, 16, 2048  # CHUNK: tokens of a pass of ours
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
HEADS: dict[str, Any] = {
    "intermediate_size": 3072,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
}
DELTA: dict[str, Any] = {
    "head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
EXPERTS: dict[str, Any] = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512}
CONFIGS: dict[str, Callable[[], Any]] = {
    "qwen3.5": lambda: t.Qwen3_5TextConfig(**COMMON, **HEADS, **DELTA),
    "qwen3.5 moe": lambda: t.Qwen3_5MoeTextConfig(
        **COMMON, **HEADS, **DELTA, **EXPERTS, shared_expert_intermediate_size=512
    ),
    "qwen3 moe": lambda: t.Qwen3MoeConfig(**COMMON, **HEADS, **EXPERTS, head_dim=128),
    "lfm2": lambda: t.Lfm2Config(**COMMON, **HEADS, layer_types=["conv", "conv", "full_attention", "conv"]),
    "mamba2": lambda: t.Mamba2Config(**COMMON, num_heads=32, head_dim=64, state_size=128, n_groups=1, chunk_size=256),
    "mamba": lambda: t.MambaConfig(**COMMON, state_size=16),
}


@dataclass(frozen=True)
class Cost:
    """Seconds of one piece of work."""

    wall_s: float
    processor_s: float


def wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def measure_cost(work: Callable[[], object]) -> Cost:
    wait_for_device()
    wall, processor = time.perf_counter(), time.process_time()
    work()
    wait_for_device()
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


class Ours:
    """The runner of tailrace. options: of ModelConfig, such as quantize, a type of blocks for the weights."""

    def __init__(self, folder: Path, streams: int, positions: int, **options: Any) -> None:
        config = ModelConfig(model=str(folder), cache_dir=str(folder.parent / "cache"), dtype="bfloat16", **options)
        (folder / "tokenizer.json").write_text("{}")
        found = resolve(config, progress=False).folder
        self.runner: Any = load_runner(config, found, block_size=BLOCK, max_num_seqs=streams)
        if self.runner.state_bytes:
            self.runner.allocate_states(streams, 2, 0)
        width = -(-positions // BLOCK)
        self.tables = np.arange(streams * width, dtype=np.int32).reshape(streams, width)
        self.runner.allocate(max(streams * width, 64))

    def compute(self, ids: torch.Tensor, first: int) -> torch.Tensor:
        """Compute ids [N, T] at the positions from `first` on. Return the last logits."""
        flat = FlatTokens()
        for row in ids.tolist():
            flat.add(row, first + len(row))
        flat.wanted = [end - 1 for end in flat.query_start[1:]]
        batch = flat.make_batch(self.tables[: len(ids)], BLOCK, slots=range(len(ids)))
        return self.runner.forward(batch)

    def prefill(self, ids: torch.Tensor) -> None:
        for first in range(0, ids.shape[1], CHUNK):
            self.compute(ids[:, first : first + CHUNK], first)

    def prepare_decode(self, ids: torch.Tensor, steps: int) -> Callable[[], None]:
        self.prefill(ids)
        length = ids.shape[1]

        def decode() -> None:
            for step in range(steps):
                self.compute(ids[:, step : step + 1], length + step)

        return decode


class Theirs:
    """transformers' forward pass with its own cache."""

    def __init__(self, folder: Path, device: str) -> None:
        self.model: Any = t.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)

    @torch.inference_mode()
    def prefill(self, ids: torch.Tensor) -> Any:
        return self.model(input_ids=ids.to(self.model.device), use_cache=True, logits_to_keep=1)

    @torch.inference_mode()
    def prepare_decode(self, ids: torch.Tensor, steps: int) -> Callable[[], None]:
        ids = ids.to(self.model.device)
        found = self.prefill(ids)
        name = "past_key_values" if getattr(found, "past_key_values", None) is not None else "cache_params"
        cache = getattr(found, name)

        @torch.inference_mode()
        def decode() -> None:
            for step in range(steps):
                self.model(input_ids=ids[:, step : step + 1], **{name: cache}, use_cache=True, logits_to_keep=1)

        return decode


def compare(case: str, rounds: int, ours: Callable[[], object], theirs: Callable[[], object]) -> dict[str, Any]:
    """Measure both in turns. Return the least cost of each, and the ratios."""
    costs: tuple[list[Cost], list[Cost]] = ([], [])
    for _ in range(rounds):
        for side, work in zip(costs, (ours, theirs), strict=True):
            side.append(measure_cost(work))
    row: dict[str, Any] = {"case": case}
    for kind in ("wall_s", "processor_s"):
        mine, other = (min(getattr(cost, kind) for cost in side) for side in costs)
        name = kind.removesuffix("_s")
        row |= {f"ours {name} ms": mine * 1e3, f"transformers {name} ms": other * 1e3, f"{name} ratio": other / mine}
    return row


def measure_model(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of one model."""
    generator = torch.Generator().manual_seed(5)
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given) / "model"
        torch.manual_seed(0)
        t.AutoModelForCausalLM.from_config(CONFIGS[name]()).bfloat16().save_pretrained(folder)
        longest = max([*args.prompts, 2 * args.steps])
        theirs = Theirs(folder, args.device)
        options = {name: getattr(args, name) for name in ("device", "threads", "quantize")}
        ours = Ours(folder, max(args.streams, default=1), longest, **options)
    torch.set_num_threads(args.threads)
    kernels.set_num_threads(args.threads)
    rows = []
    for length in args.prompts:
        ids = torch.randint(2, VOCAB, (1, length), generator=generator)
        work = [lambda side=side, ids=ids: side.prefill(ids) for side in (ours, theirs)]
        rows.append(compare(f"{name} prompt {length}", args.rounds, *work))
        print(table(rows[-1:]), flush=True)
    for streams in args.streams:
        ids = torch.randint(2, VOCAB, (streams, args.steps), generator=generator)
        work = [side.prepare_decode(ids, args.steps) for side in (ours, theirs)]
        rows.append(compare(f"{name} decode {streams}", args.rounds, *work))
        print(table(rows[-1:]), flush=True)
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure the models, print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.state", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--prompts", nargs="*", type=int, default=[400, 2000, 8000], help="tokens")
    parser.add_argument("--streams", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=16, help="decode steps of a measurement")
    parser.add_argument("--quantize", default="none", help="our weights, such as q8_0; transformers has bfloat16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows = [row for name in args.models for row in measure_model(name, args)]
    print(table(rows))
    if args.json:
        options = {name: value for name, value in vars(args).items() if name != "json"}
        write_json(args.json, {"machine": machine(), "options": options, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
