"""The same questions as gguf_ours.py, answered by llama.cpp: a worker in an environment of its own, which has
llama-cpp-python and no tailrace. Weights as in the file, its own choice of kernels, KV cache in float16."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp as lib  # pyright: ignore[reportMissingImports]
import numpy as np


class Llama:
    """A model and a context for so many streams of a window each."""

    def __init__(self, first: dict[str, Any]) -> None:
        threads, streams, window = first["threads"], first["streams"], first["window"]
        self.pass_tokens = first.get("batch", max(512, window))
        self.clock = time.process_time if first.get("processor") else time.perf_counter
        silent = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(silent, ctypes.c_void_p(0))
        self.silent = silent
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(first["file"].encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = streams * window
        params.n_batch = params.n_ubatch = self.pass_tokens
        params.n_seq_max = streams
        params.n_threads = params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.vocab: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(self.pass_tokens, 0, streams)

    def clear(self) -> None:
        """Forget all sequences."""
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)

    def forward(self, tokens: list[tuple[int, int, int, bool]]) -> float:
        """A pass over (token, position, stream, whether its logits are wanted). → seconds"""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, stream, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = stream
        start = time.perf_counter()
        failed = lib.llama_decode(self.context, batch)
        lib.llama_synchronize(self.context)
        taken = time.perf_counter() - start
        if failed:
            raise RuntimeError(f"llama_decode: {failed}")
        return taken

    def logits(self, place: int) -> np.ndarray:
        """The logits of one token of the pass."""
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, place), (self.vocab,))

    def prefill(self, ids: list[int]) -> float:
        """See gguf_ours.py, as for the others."""
        self.clear()
        return self.forward([(token, i, 0, i == len(ids) - 1) for i, token in enumerate(ids)])

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        self.clear()
        best = []
        for stream, prompt in enumerate(prompts):
            self.forward([(token, i, stream, i == len(prompt) - 1) for i, token in enumerate(prompt)])
            best.append(int(self.logits(len(prompt) - 1).argmax()))
        seconds = 0.0
        for step in range(steps):
            seconds += self.forward([(best[i], len(prompts[i]) + step, i, True) for i in range(len(prompts))])
            best = [int(self.logits(i).argmax()) for i in range(len(prompts))]
        return seconds

    def long(self, ids: list[int], steps: int) -> list[float]:
        """See long_context_sides.py. A prompt is read in passes as long as tailrace's."""
        self.clear()
        rows = [(token, i, 0, i == len(ids) - 1) for i, token in enumerate(ids)]
        begin = self.clock()
        for first in range(0, len(rows), self.pass_tokens):
            self.forward(rows[first : first + self.pass_tokens])
        best = int(self.logits(-1).argmax())
        middle = self.clock()
        for step in range(steps):
            self.forward([(best, len(ids) + step, 0, True)])
            best = int(self.logits(0).argmax())
        return [middle - begin, self.clock() - middle]

    def losses(self, windows: list[list[int]]) -> float:
        total = 0.0
        for ids in windows:
            self.clear()
            self.forward([(token, i, 0, True) for i, token in enumerate(ids)])
            for i, target in enumerate(ids[1:]):
                row = self.logits(i).astype(np.float64)
                most = row.max()
                total += most + np.log(np.exp(row - most).sum()) - row[target]
        return total


def main() -> None:
    """Answer questions until stdin closes."""
    first = json.loads(sys.stdin.readline())
    model = Llama(first)
    print(json.dumps({"vocab": model.vocab}), flush=True)
    for line in sys.stdin:
        question: dict[str, Any] = json.loads(line)
        name = question.pop("do")
        print(json.dumps(getattr(model, name)(**question)), flush=True)


if __name__ == "__main__":
    main()
