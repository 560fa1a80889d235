"""The ends of single rows of a batch, and the reports on their tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation import BaseStreamer, StoppingCriteria

from tailrace.base.logprobs import TokenLogprobs
from tailrace.integrations.transformers.processor import TailraceLogitsProcessor
from tailrace.integrations.transformers.streamer import TailraceStreamer
from tailrace.params import SamplingParams

Row = tuple[SamplingParams, BaseStreamer | None]


class RowEnds(StoppingCriteriaList):
    """transformers' criteria, and those that end single rows. It records where each row ended, and the reports."""

    def __init__(
        self, criteria: StoppingCriteriaList, processor: TailraceLogitsProcessor, prompt_width: int, rows: list[Row]
    ) -> None:
        super().__init__(criteria)
        self.alone = any(has_end(params) for params, _ in rows)
        if self.alone:
            self.append(PadAfterwards())
        self.processor, self.prompt_width, self.rows = processor, prompt_width, rows
        self.lengths: list[int | None] = [None] * len(rows)  # of the output, once it has ended
        self._asks = any(params.logprobs is not None or params.return_sampling_mask for params, _ in rows)
        self._logprobs: list[list[TokenLogprobs]] = [[] for _ in rows]
        self._masks: list[list[torch.Tensor]] = [[] for _ in rows]

    def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        """Return the rows that end by their newest token, bool [B]."""
        done = super().__call__(input_ids, scores, **more)
        length, newest = input_ids.shape[1] - self.prompt_width, input_ids[:, -1].cpu()
        if self._asks:
            self._collect_reports()
        ended = done.tolist()
        for row in range(len(self.rows)):
            if self.lengths[row] is None:
                ended[row] = self._put_token(row, length, newest[row : row + 1]) or ended[row]
                if ended[row]:
                    self._end_row(row, length)
            else:
                ended[row] = True
        return torch.tensor(ended, device=done.device)

    def begin(self, input_ids: torch.Tensor) -> None:
        """Pass the prompt to the streamers."""
        for row, (_, streamer) in enumerate(self.rows):
            if streamer is not None:
                streamer.put(input_ids[row : row + 1].cpu())

    def _put_token(self, row: int, length: int, newest: torch.Tensor) -> bool:
        """Take a row's new token, and release its text. True: the row ends here by its own parameters."""
        params, streamer = self.rows[row]
        if streamer is not None:
            streamer.put(newest)
        if length == params.max_tokens or (int(newest) in params.stop_token_ids and length > params.min_tokens):
            return True
        return isinstance(streamer, TailraceStreamer) and streamer.finished

    def _end_row(self, row: int, length: int) -> None:
        self.lengths[row] = length
        if (streamer := self.rows[row][1]) is not None:
            streamer.end()

    def _collect_reports(self) -> None:
        sampled = self.processor.sampled
        assert sampled is not None
        masks = None if sampled.sampling_mask is None else sampled.sampling_mask.parts()
        width = sampled.token_ids.shape[1]
        for row, (params, _) in enumerate(self.rows):
            if self.lengths[row] is None:
                self._logprobs[row].extend(sampled.logprobs[row] or ())
                if masks is not None and params.return_sampling_mask:
                    self._masks[row].append(masks[row * width])

    def get_reports(self) -> tuple[list[list[TokenLogprobs]], list[list[torch.Tensor]]]:
        """Return the logprobs and sampling masks of each row's output."""
        return self._logprobs, self._masks


class PadAfterwards(StoppingCriteria):
    """A criterion that ends nothing. Its attribute makes `generate` pad rows that have ended."""

    eos_token_id = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def has_end(params: SamplingParams) -> bool:
    """Return whether the row may end by a rule that transformers does not know."""
    return bool(params.max_tokens or params.stop_token_ids or params.stop or params.stop_regex)
