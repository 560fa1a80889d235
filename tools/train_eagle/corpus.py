"""The training data of a head: the model's answers to questions, and the hidden states on the way. Knows nothing of
heads.

The same packages, seed and model give the same samples, bit for bit, on the same machine: a token depends on its own
request alone, and a hidden state does not depend on the other rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tailrace.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from tailrace.drafting.base import Draft, Drafter, DraftRequest, TargetStates
from tailrace.engine.engine import Engine
from tailrace.engine.process import build_engine
from tailrace.params import SamplingParams
from tailrace.request.options import Speculation
from tailrace.wire.messages import Failed, Submit


@dataclass(frozen=True, slots=True)
class Sample:
    """A question with its answer.

    tokens: int64 [n + 1]. states: bf16 [n, C·H], outputs of the captured layers at tokens[:n]. last: bf16 [n, H], the
    input of the output head there.
    """

    tokens: torch.Tensor
    states: torch.Tensor
    last: torch.Tensor


class StateRecorder(Drafter):
    """A drafter that drafts nothing and records the hidden states it is shown. samples: of
    finished sequences."""

    def __init__(self, layers: tuple[int, ...], num_layers: int) -> None:
        self.captures = (*layers, num_layers)
        self.samples: list[Sample] = []
        self.living: dict[
            int, tuple[list[int], list[torch.Tensor]]
        ] = {}  # slot → its tokens, and the states of its positions from 0 on

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft([]) for _ in requests]

    def observe(self, seen: TargetStates) -> None:
        for slot, tokens, first, count, row in zip(
            seen.slots, seen.tokens, seen.first, seen.count, seen.row, strict=True
        ):
            known, rows = self.living.setdefault(slot, ([], []))
            assert first == sum(map(len, rows)), "positions come in order, and none comes from a cache"
            known += tokens[len(known) :]
            rows.append(seen.hidden[row : row + count].to(torch.bfloat16, copy=True))

    def remove(self, slot: int) -> None:
        tokens, rows = self.living.pop(slot, ([], []))
        if not rows:
            return
        whole = torch.cat(rows)[: len(tokens) - 1]
        width = whole.shape[1] // len(self.captures)
        states, last = whole[:, :-width].contiguous(), whole[:, -width:].contiguous()
        self.samples.append(Sample(torch.tensor(tokens[: len(whole) + 1]), states, last))


def engine_for(folder: Path, dtype: str, threads: int, streams: int) -> Engine:
    """An engine on the CPU without prefix reuse, so that every state is computed and seen."""
    model = ModelConfig(model=str(folder), dtype=dtype, device="cpu", threads=threads)  # type: ignore[arg-type]
    return build_engine(
        EngineConfig(
            model=model, cache=CacheConfig(prefix_reuse=False), scheduler=SchedulerConfig(max_num_seqs=streams)
        )
    )


def answered(
    engine: Engine, prompts: Sequence[list[int]], tokens: int, seed: int, layers: tuple[int, ...]
) -> list[Sample]:
    """The model's answers of at most `tokens` tokens, every other one greedy, with the states of these layers.

    Raises:
        RuntimeError: a request failed.
    """
    recorder = StateRecorder(layers, engine.runner.num_layers)  # type: ignore[attr-defined]
    engine.runner.capture(recorder.captures)  # type: ignore[attr-defined]
    engine.speculator.drafter = recorder
    for i, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=0.8 if i % 2 else 0.0,
            top_p=0.95,
            seed=seed + i,
            max_tokens=tokens,
            speculation=Speculation(max_drafts=0),
        )
        engine.submit(Submit(str(i), 0, prompt, params))
    told = time.monotonic()
    while engine.has_work:
        for message in (message for messages in engine.step().values() for message in messages):
            if isinstance(message, Failed):
                raise RuntimeError(f"request {message.id}: {message.message}")
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"answers: {len(recorder.samples)} of {len(prompts)}", file=sys.stderr, flush=True)
    # the order in which they end depends on the clock
    return sorted(recorder.samples, key=lambda sample: sample.tokens.tolist())
