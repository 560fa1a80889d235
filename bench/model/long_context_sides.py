"""The sides of long_context.py that run in this environment: tailrace's runner and transformers, each in a process of
its own. The first line says which. Then `long` times a prompt and the decode steps behind it; `read` reads memory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.model.gguf_ours import BLOCK, Ours, answer
from tailrace import kernels
from tailrace.config import ModelConfig
from tailrace.models import resolve


class LongContext:
    """tailrace's runner, which reads a prompt in passes of so many tokens."""

    def __init__(self, first: dict[str, Any]) -> None:
        config = make_config(first, first["kv_cache_dtype"])
        self.ours = Ours(config, 1, first["window"])
        self.batch, self.clock = first["batch"], clock_of(first)
        self.read = self.ours.read

    def about(self) -> dict[str, Any]:
        """The vocabulary; the bytes that a step reads of the weights and of each position; the multiplications of a
        token with the weights of the layers, and with each position that it sees."""
        runner = self.ours.runner
        config = runner.paged.model.config.get_text_config()
        layers = runner.paged.attention
        heads = config.num_attention_heads
        return {
            "vocab": runner.vocab_size,
            "bytes": self.ours.bytes,
            "weights": self.ours.bytes / runner.dtype.itemsize - runner.vocab_size * config.hidden_size,
            "position_bytes": runner.block_bytes / BLOCK,
            "position_products": sum(heads * (layer.head_dim + layer.value_dim) for layer in layers),
        }

    def long(self, ids: list[int], steps: int) -> list[float]:
        """Return the seconds of the prompt, and of the decode steps with the best token each."""
        begin, logits = self.clock(), torch.empty(0)
        for first in range(0, len(ids), self.batch):
            part = ids[first : first + self.batch]
            logits, _ = self.ours.forward([part], [first + len(part)], [len(part) - 1])
        middle = self.clock()
        for step in range(steps):
            logits = self.ours.forward([[int(logits[0].argmax())]], [len(ids) + step + 1], [0])[0]
        return [middle - begin, self.clock() - middle]


class PlainTransformers:
    """transformers' own forward pass: SDPA and DynamicCache."""

    def __init__(self, first: dict[str, Any]) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(first["threads"])
        folder = resolve(make_config(first, "auto"), progress=False).folder
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        self.clock = clock_of(first)

    def about(self) -> dict[str, Any]:
        return {"vocab": self.model.config.get_text_config().vocab_size}

    @torch.inference_mode()
    def long(self, ids: list[int], steps: int) -> list[float]:
        begin = self.clock()
        found = self.model(input_ids=torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        middle = self.clock()
        for _ in range(steps):
            best = found.logits[:, -1:].argmax(-1)
            found = self.model(input_ids=best, past_key_values=found.past_key_values, use_cache=True)
        return [middle - begin, self.clock() - middle]


def make_config(first: dict[str, Any], code: str) -> ModelConfig:
    """Weights in bfloat16, whatever the file has."""
    return ModelConfig(
        model=first["file"],
        dtype="bfloat16",
        kv_cache_dtype=code,  # pyright: ignore[reportArgumentType]
        threads=first["threads"],
        device="cpu",
    )


def clock_of(first: dict[str, Any]) -> Callable[[], float]:
    return time.process_time if first["processor"] else time.perf_counter


def main() -> None:
    """Answer questions until stdin closes."""
    first = json.loads(sys.stdin.readline())
    kernels.set_num_threads(first["threads"])
    side = LongContext(first) if first["kv_cache_dtype"] else PlainTransformers(first)
    print(json.dumps(side.about()), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(side, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
