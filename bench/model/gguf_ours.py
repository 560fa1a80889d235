"""The forward pass of tailrace's runner on a GGUF file, without server and sampler: a worker of gguf.py.

The first line says which file, how its weights are kept and how many threads there are. Then, per line: `prefill` of so
many tokens; `decode` of so many streams; `read` of READ_BYTES of memory by all threads; `losses` of windows of ids;
`away`, the error of a KV cache in eight bits. Answers are seconds, or nats, or differences of logits.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from tailrace import _cpu
from tailrace.config import ModelConfig
from tailrace.kernels.cpu.memory import lasting
from tailrace.models import resolve
from tailrace.models.footprint import weights_bytes
from tailrace.runners.flat_batch import FlatTokens
from tailrace.runners.load_transformers import load_transformers

BLOCK = 16
READ_BYTES = 1 << 29  # more than caches hold
READS = 5


class Ours:
    """The runner, with memory for so many streams of a window each."""

    def __init__(self, config: ModelConfig, streams: int, window: int) -> None:
        folder = resolve(config, progress=False).folder
        self.runner = load_transformers(config, folder, block_size=BLOCK, max_num_seqs=streams)
        each = -(-window // BLOCK)
        self.runner.allocate(streams * each)
        self.tables = np.arange(streams * each, dtype=np.int32).reshape(streams, each)
        self.bytes = weights_bytes(folder, self.runner.dtype.itemsize, packed=True) - self.unread_bytes()
        self.threads = ThreadPoolExecutor(config.threads)
        self.memory = lasting(READ_BYTES // 8, torch.int64).fill_(1).chunk(config.threads)

    def unread_bytes(self) -> int:
        """Of the weights those that a step does not read: an embedding that is no output projection too."""
        embedding: Any = self.runner.paged.model.get_input_embeddings()
        packed = getattr(embedding, "packed", None)
        if packed is None:
            return embedding.weight.nbytes
        return (
            0
            if getattr(self.runner.paged.model.get_output_embeddings(), "packed", None) is packed
            else packed.data.nbytes
        )

    def read(self) -> float:
        """Seconds to read READ_BYTES, the best of a few times: a system may have taken away what lay idle."""
        times = []
        for _ in range(READS):
            start = time.perf_counter()
            list(self.threads.map(lambda part: _cpu.stream(part.data_ptr(), part.nbytes), self.memory))
            times.append(time.perf_counter() - start)
        return min(times)

    def forward(self, parts: list[list[int]], ends: list[int], wanted: list[int]) -> tuple[torch.Tensor, float]:
        """Logits of the wanted tokens, and the seconds of the pass."""
        flat = FlatTokens()
        for tokens, end in zip(parts, ends, strict=True):
            flat.add(tokens, end)
        flat.wanted = wanted
        batch = flat.make_batch(self.tables[: len(parts)], BLOCK)
        start = time.perf_counter()
        logits = self.runner.forward(batch)
        return logits, time.perf_counter() - start

    def prefill(self, ids: list[int]) -> float:
        """Seconds for a prompt's first token."""
        return self.forward([ids], [len(ids)], [len(ids) - 1])[1]

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        """Seconds of `steps` steps, in each of which every stream gets its best token."""
        logits = torch.cat([self.one(i, prompt) for i, prompt in enumerate(prompts)])
        seconds = 0.0
        for step in range(steps):
            tokens = [[int(best)] for best in logits.argmax(-1)]
            ends = [len(prompt) + step + 1 for prompt in prompts]
            logits, taken = self.forward(tokens, ends, list(range(len(prompts))))
            seconds += taken
        return seconds

    def one(self, stream: int, prompt: list[int]) -> torch.Tensor:
        """The logits after a stream's prompt."""
        tables = self.tables
        self.tables = tables[stream : stream + 1]
        logits = self.forward([prompt], [len(prompt)], [len(prompt) - 1])[0].clone()
        self.tables = tables
        return logits

    def losses(self, windows: list[list[int]]) -> float:
        """Σ −log p of every token but the first of each window."""
        total = 0.0
        for ids in windows:
            logits = self.forward([ids], [len(ids)], list(range(len(ids) - 1)))[0]
            for start in range(0, len(ids) - 1, 64):
                part = logits[start : start + 64].double()
                targets = torch.tensor(ids[start + 1 : start + 1 + len(part)])
                total += float(torch.nn.functional.cross_entropy(part, targets, reduction="sum"))
        return total

    def away(self, windows: list[list[int]]) -> list[float]:
        """Of all logits, the largest and the sum of the differences that the cache's codes make, and the number of
        logits; of the tokens, how many have another likeliest token, and how many there are."""
        layers, blocks = self.runner.paged.layers, len(self.runner.paged.layers.caches[0].keys)
        coded, plain = layers.caches, self.runner.paged.make_caches(blocks)
        most, total, logits, others, tokens = 0.0, 0.0, 0, 0, 0
        for ids in windows:
            found = []
            for layers.caches in (coded, plain):
                found.append(self.forward([ids], [len(ids)], list(range(len(ids))))[0].float().clone())
            off = (found[0] - found[1]).abs()
            most, total = max(most, float(off.max())), total + float(off.sum(dtype=torch.float64))
            logits, tokens = logits + off.numel(), tokens + len(ids)
            others += int((found[0].argmax(-1) != found[1].argmax(-1)).sum())
        layers.caches = coded
        return [most, total, logits, others, tokens]


def main() -> None:
    """Answer questions until stdin closes."""
    first = json.loads(sys.stdin.readline())
    names = ("weights", "kv_cache_dtype", "threads")
    config = ModelConfig(model=first["file"], **{name: first[name] for name in names})
    ours = Ours(config, first["streams"], first["window"])
    gc.collect()
    gc.freeze()  # as in the engine's process
    print(json.dumps({"vocab": ours.runner.vocab_size, "bytes": ours.bytes}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(ours, json.loads(line))), flush=True)


def answer(model: Any, question: dict[str, Any]) -> float | list[float]:
    """Call the method that the question names."""
    name = question.pop("do")
    return getattr(model, name)(**question)


if __name__ == "__main__":
    main()
