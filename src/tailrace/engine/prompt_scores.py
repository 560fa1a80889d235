"""Logprobs of prompt tokens, from the logits of a step."""

from __future__ import annotations

import torch

from tailrace.engine.batch import PromptRows
from tailrace.engine.isolation import Isolated
from tailrace.engine.lifecycle import Lifecycle
from tailrace.engine.sequence import LIVING, Failures
from tailrace.errors import RowError
from tailrace.sampling.prompt_logprobs import replay
from tailrace.wire.messages import PromptLogprobs


def send_prompt_logprobs(lifecycle: Lifecycle, parts: list[PromptRows], logits: torch.Tensor) -> Failures:
    """Send the logprobs of these parts of prompts. Returns the sequences whose logits are unusable."""
    failures: Failures = []
    for part in parts:
        sequence, request, end = part.sequence, part.sequence.request, part.start + part.count
        if part.count == 0 or sequence.phase not in LIVING:
            continue
        rows, tokens = logits[part.row : part.row + part.count], sequence.tokens[part.start : end]
        with Isolated("prompt_logprobs", request.id) as attempt:
            try:
                found = replay(rows, tokens, request.params.prompt_logprobs or 0)
            except ValueError as error:  # the logits of this prompt are unusable: nobody else's business
                lifecycle.counters.bad_rows["prompt"] += 1
                raise RowError(f"prompt_logprobs: {error}") from error
            lifecycle.send(sequence, PromptLogprobs(request.id, request.epoch, part.start, found))
            sequence.prompt_logprobs_sent = end
        if attempt.error is not None:
            failures.append((sequence, attempt.error))
    return failures
