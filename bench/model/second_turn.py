"""Measure what the second turn of a long conversation costs a model with a state per sequence, in parts of the first.

Random weights in the shape of Qwen3.5: gated delta nets, and full attention in each fourth layer. The engine runs in
this process. The first turn is a prompt and an answer; the second has both, and a question of 32 tokens. It runs warm,
after the first turn, and cold, on an engine that has seen nothing. Both must sample the same tokens.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.lib.harness import cores, machine, table, write_json
from tailrace.config import CacheConfig, ModelConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.params import SamplingParams
from tailrace.runners import load_runner
from tailrace.wire.in_process_client import InProcessClient
from tailrace.wire.messages import ModelInfo, Tokens

VOCAB, QUESTION, BLOCK = 4096, 32, 16
GOAL = 0.05  # the second turn, in parts of the first


class Turn(NamedTuple):
    """One request: processor seconds until its first token and in all, tokens, and cached tokens of the prompt."""

    first_s: float
    total_s: float
    tokens: list[int]
    cached: int


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.second_turn", description=__doc__)
    parser.add_argument("--tokens", type=int, default=8000, help="of the first prompt")
    parser.add_argument("--answer", type=int, default=100, help="tokens of each answer")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), args)
        prompt = [Random(1).randrange(3, VOCAB) for _ in range(args.tokens)]
        client = start_engine(Path(folder), args)
        first = run_turn(client, prompt, args.answer)
        again = [*prompt, *first.tokens, *range(3, 3 + QUESTION)]
        warm = run_turn(client, again, args.answer)
        cold = run_turn(start_engine(Path(folder), args), again, args.answer)
    rows = [
        {
            "turn": name,
            "cached": turn.cached,
            "first token s": turn.first_s,
            "× first turn": turn.first_s / first.first_s,
            "whole s": turn.total_s,
        }
        for name, turn in (("first", first), ("second, warm", warm), ("second, cold", cold))
    ]
    record = {"machine": machine(), "rows": rows, "same tokens": warm.tokens == cold.tokens, "goal": GOAL}
    print(f"{record['machine']['cpu']}, {args.threads} threads; processor seconds; goal of the second turn: {GOAL}")
    print(f"warm and cold say {'the same' if record['same tokens'] else 'DIFFERENT'} tokens\n")
    print(table(rows))
    if args.json:
        write_json(args.json, record)
    return 0 if record["same tokens"] else 1


def save_model(folder: Path, args: argparse.Namespace) -> None:
    """Write the random model."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        max_position_embeddings=2 * args.tokens + 4096,
    )
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)


def start_engine(folder: Path, args: argparse.Namespace) -> InProcessClient:
    """Return the client of a new engine."""
    longest = args.tokens + 2 * args.answer + QUESTION
    config = ModelConfig(device="cpu", threads=args.threads)
    runner = load_runner(config, folder, block_size=BLOCK, max_num_seqs=4)
    engine = Engine(
        runner,
        ModelInfo("random", VOCAB, longest + BLOCK, []),
        CacheConfig(num_blocks=2 * longest // BLOCK + 8),
        SchedulerConfig(max_num_seqs=4),
    )
    return InProcessClient(engine)


def run_turn(client: InProcessClient, prompt: list[int], answer: int) -> Turn:
    """Run one request to its end."""
    begun_s, first_s = time.process_time(), 0.0
    tokens: list[int] = []
    cached = 0
    params = SamplingParams(max_tokens=answer, ignore_eos=True, seed=1, temperature=1.0)
    for events in client.submit(prompt, params):
        for event in events if isinstance(events, list) else [events]:
            if isinstance(event, Tokens):
                first_s = first_s or time.process_time() - begun_s
                cached = max(cached, event.cached_tokens)
                tokens += event.token_ids
    return Turn(first_s, time.process_time() - begun_s, tokens, cached)


if __name__ == "__main__":
    sys.exit(main())
