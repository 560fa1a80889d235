"""Processes a step's rows of logits that no token is sampled from: logprobs of prompts, and rows of replayed outputs
(replay.py)."""

from __future__ import annotations

import torch

from tailrace.engine.batch import ScoredRows
from tailrace.engine.isolation import Isolated
from tailrace.engine.lifecycle import Lifecycle
from tailrace.engine.sequence import LIVING, Failures, Phase
from tailrace.errors import RowError
from tailrace.sampling.prompt_logprobs import logprobs_of, replay
from tailrace.wire.messages import PromptLogprobs


def take_rows(lifecycle: Lifecycle, parts: list[ScoredRows], logits: torch.Tensor) -> Failures:
    """Send the logprobs of prompts, keep the rows of replays. Return the sequences whose logits are unusable."""
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
    """Send the logprobs of a part of a prompt.

    Raises:
        RowError: its logits are unusable. Other requests are not affected.
    """
    sequence, places = part.sequence, part.places
    request, tokens = sequence.request, [sequence.tokens[place] for place in places]
    params = request.params
    if (temperature := params.prompt_logprobs_temperature) != 1.0:
        rows = rows.float() / temperature
    try:
        found = replay(rows, tokens, params.prompt_logprobs or 0)
    except ValueError as error:
        lifecycle.counters.bad_rows["prompt"] += 1
        raise RowError(f"prompt_logprobs: {error}") from error
    named: list[list[float]] = []
    if asked := params.prompt_logprob_token_ids:
        first = params.prompt_logprob_start + 1
        ids = [asked[place - first] if place - first < len(asked) else () for place in places]
        named = logprobs_of(rows, ids)
    lifecycle.send(sequence, PromptLogprobs(request.id, request.epoch, places[0], found, named=named))
    assert sequence.wanted is not None
    sequence.wanted.done += len(places)
