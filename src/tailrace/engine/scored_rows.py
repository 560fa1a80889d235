"""What becomes of a step's rows of logits that nothing is sampled from: logprobs of prompts, and rows of outputs that
are replayed (replay.py)."""

from __future__ import annotations

import torch

from tailrace.engine.batch import ScoredRows
from tailrace.engine.isolation import Isolated
from tailrace.engine.lifecycle import Lifecycle
from tailrace.engine.sequence import LIVING, Failures, Phase
from tailrace.errors import RowError
from tailrace.sampling.prompt_logprobs import replay
from tailrace.wire.messages import PromptLogprobs


def take_rows(lifecycle: Lifecycle, parts: list[ScoredRows], logits: torch.Tensor) -> Failures:
    """Send the logprobs of prompts, keep the rows of replays. Returns the sequences whose logits are unusable."""
    failures: Failures = []
    for part in parts:
        sequence, wanted, count = part.sequence, part.sequence.wanted, len(part.places)
        if wanted is None or sequence.phase not in (*LIVING, Phase.UNCONDITIONAL):
            continue
        rows = logits[part.row : part.row + count]
        if sequence.request.replay is not None:
            wanted.waiting.extend(rows.clone().unbind(0))
            wanted.done += count
            continue
        with Isolated("prompt_logprobs", sequence.request.id) as attempt:
            send_logprobs(lifecycle, part, rows)
        if attempt.error is not None:
            failures.append((sequence, attempt.error))
    return failures


def send_logprobs(lifecycle: Lifecycle, part: ScoredRows, rows: torch.Tensor) -> None:
    """The logprobs of a part of a prompt.

    Raises:
        RowError: its logits are unusable: nobody else's business.
    """
    sequence, start, count = part.sequence, part.places[0], len(part.places)
    request, tokens = sequence.request, sequence.tokens[start : start + count]
    try:
        found = replay(rows, tokens, request.params.prompt_logprobs or 0)
    except ValueError as error:
        lifecycle.counters.bad_rows["prompt"] += 1
        raise RowError(f"prompt_logprobs: {error}") from error
    lifecycle.send(sequence, PromptLogprobs(request.id, request.epoch, start, found))
    assert sequence.wanted is not None
    sequence.wanted.done += count
