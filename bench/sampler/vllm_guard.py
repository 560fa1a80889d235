"""Measure what the plug-in's guard costs in vLLM: processor time per step, with the guard and without, in turns.

Run it by an environment that has vLLM and tailrace (`make test-vllm` makes .venv-vllm):
`PYTHONPATH=tests/vllm_plugin .venv-vllm/bin/python -m bench.vllm_guard [--vocab 49152] [--rows 32] [--steps 60]`.

The guard is `attempt` around all that tailrace does, and the cut of each request's drafts at the first id that is no
token. Without the guard errors go through, and drafts are taken as they come. Both sides get the same batches of whole
drafts, and draw the same tokens.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import crowd  # type: ignore[import-not-found]  # tests/vllm_plugin
import torch
from vllm.v1.sample.rejection_sampler import RejectionSampler  # type: ignore[import-not-found]
from vllm.v1.sample.sampler import Sampler  # type: ignore[import-not-found]
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata  # type: ignore[import-not-found]

from bench.lib.harness import machine, table, write_json
from bench.sampler.vllm_batches import make_batch, read_arguments
from tailrace.integrations.vllm import draws, requests, translate, verification

DRAFTS = 3
KINDS: dict[str, tuple[dict[str, Any], int]] = {  # → fields, drafts of each request
    "greedy": ({"temperature": 0.0}, 0),
    "top-k + top-p": ({"top_k": 50, "top_p": 0.9}, 0),
    "seeds": ({"seed": 1}, 0),
    "greedy, 3 drafts": ({"temperature": 0.0}, DRAFTS),
    "seeds, 3 drafts": ({"seed": 1}, DRAFTS),
}


def call(where: str, function: Callable[[], Any], then: Any = None) -> Any:
    """What `attempt` does where nothing fails, without its guard."""
    return function()


def take(keep: Callable[[int], bool], ids: list[int]) -> list[int]:
    """What `takewhile` gives where all drafts are tokens, without a look at them."""
    return ids


@contextmanager
def unguarded() -> Iterator[None]:
    """Take the guard away until the block ends."""
    places: list[tuple[Any, str, Any]] = [(one, "attempt", call) for one in (draws, requests, translate, verification)]
    places.append((verification, "takewhile", take))
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, function in places:
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name, _), function in zip(places, before, strict=True):
            setattr(module, name, function)


def measure(fields: dict[str, Any], drafts: int, rows: int, vocab: int, steps: int) -> tuple[list[float], list[float]]:
    """Processor times of the steps in milliseconds, without the guard and with it. The side that begins alternates."""
    batch = make_batch(fields, rows, vocab)
    batch.batch.refresh_metadata()
    sampler, follower = Sampler(), draws.follower_of(batch.metadata)
    assert follower is not None
    verifier, took = RejectionSampler(sampler), ([], [])
    for turn in range(steps):
        logits = torch.randn(rows * (1 + drafts), vocab, generator=batch.noise).mul(3).to(torch.bfloat16)
        best = logits.argmax(-1).view(rows, -1)[:, :drafts].tolist()
        metadata = SpecDecodeMetadata.make_dummy(best, crowd.CPU) if drafts else None

        def draw(given: torch.Tensor, metadata: Any = metadata) -> Any:
            if metadata is None:
                return sampler(given, batch.metadata).sampled_token_ids
            return verifier(metadata, None, given, batch.metadata).sampled_token_ids

        found = {}
        for guarded in (turn % 2 == 0, turn % 2 == 1):
            given = logits.clone()
            follower.ready(rows)  # of two draws the first would pay for the new tokens
            with nullcontext() if guarded else unguarded():
                begun = time.process_time()
                found[guarded] = draw(given)
                took[guarded].append((time.process_time() - begun) * 1e3)
        assert torch.equal(found[True], found[False])
        for state, tokens in zip(batch.live.values(), found[True].tolist(), strict=True):
            state.output_token_ids += [token for token in tokens if token >= 0]
    return took


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    asked = read_arguments("python -m bench.vllm_guard", __doc__, 60, argv)
    lines: list[dict[str, Any]] = []
    for name, (fields, drafts) in KINDS.items():
        without, guarded = measure(fields, drafts, asked.rows, asked.vocab, asked.steps)
        lines.append(
            {
                "case": name,
                "unguarded, ms": statistics.median(without),
                "guarded, ms": statistics.median(guarded),
                "ratio ×": statistics.median(b / a for a, b in zip(without, guarded, strict=True)),
            }
        )
    print(f"{machine()['cpu']}; {asked.rows} rows, V = {asked.vocab}, bfloat16, one thread")
    print(f"processor time per step, medians of {asked.steps} steps; ratio: the median of the steps' own ratios")
    print(table(lines))
    if asked.json:
        write_json(asked.json, {"machine": machine(), "results": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
