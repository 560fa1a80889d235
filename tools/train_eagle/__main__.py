"""Train an EAGLE-3 head (arXiv 2503.01840) for a model on the CPU, on the model's own answers about text of installed
packages.

    python -m tools.train_eagle FOLDER
    tailrace serve --drafter eagle --draft-model FOLDER

The head learns the model's distributions, not the text: the target at each position is what the model would generate
next. The head also learns to continue its own drafts (--depth, the paper's training-time test). The same command writes
the same file, bit for bit, on the same machine with the same packages and the same --threads, because the number of
steps is fixed and no decision depends on a clock.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.runners.load_checks import usable_cores
from tailrace.text.tokenizer import Tokenizer
from tools.train_eagle.corpus import answered, engine_for
from tools.train_eagle.head import configured, ends_of
from tools.train_eagle.questions import questions
from tools.train_eagle.training import length, listed, save, trained


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The model, the amount of data, and the length of the training."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.train_eagle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the head goes: config.json and model.safetensors")
    parser.add_argument("--model", help="as for tailrace serve; the default model without it")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of the model, and of products in training"
    )
    parser.add_argument("--answers", type=int, default=512, help="that the model gives")
    parser.add_argument("--answer-tokens", type=int, default=192, help="of an answer, at most")
    parser.add_argument("--streams", type=int, default=64, help="answers at a time")
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--batch", type=int, default=8, help="answers in a step")
    parser.add_argument("--depth", type=int, default=2, help="guesses in a row that are trained")
    parser.add_argument("--vocab", type=int, default=8192, help="tokens that the head knows: the most frequent ones")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning, at its highest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=usable_cores())
    args = parser.parse_args(argv)
    for name in ("answers", "answer_tokens", "streams", "steps", "batch", "depth", "vocab", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    return args


def main(argv: list[str] | None = None) -> int:
    """Get answers, train, write."""
    args = arguments(argv)
    start = time.perf_counter()
    local = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    torch.set_num_threads(args.threads)
    engine = engine_for(local.folder, args.dtype, args.threads, args.streams)
    runner: Any = engine.runner
    layers = (1, runner.num_layers // 2 - 1, runner.num_layers - 4)  # as published
    prompts = questions(Tokenizer.load(local.folder), args.answers, args.seed)
    samples = answered(engine, prompts, args.answer_tokens, args.seed, layers)
    engine.close()
    print(f"{len(samples)} samples, {sum(map(length, samples))} positions, {time.perf_counter() - start:.0f} s")
    config = configured(local.folder, layers, min(args.vocab, runner.vocab_size))
    weights, losses, agreement = trained(config, samples, ends_of(runner), args)
    save(args.folder, config, weights)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last, {time.perf_counter() - start:.0f} s in all")
    print(f"held-out samples: the head's draft 1, 2, … is the model's most likely token: {listed(agreement)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
