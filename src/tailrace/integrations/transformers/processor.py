"""tailrace as a logits processor of transformers: it draws the tokens, and leaves nothing else to choose.

Its rows follow the batch by the ids that `generate` shows it: what is there counts, not what was drawn. So candidates
of an assistant model that are taken back, and the padding of rows that have ended, come out right.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

import torch
from transformers import LogitsProcessor

from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampled, Sampler, Slots, request_key, token_for_each


class TailraceLogitsProcessor(LogitsProcessor):
    """Scores become −inf but for each row's drawn token, whose score is 0: whatever `generate` does next, greedy or
    sampled, takes it. Put it last. Not for beam search, which needs the others' scores.

    One object may serve several calls of `generate`, one after the other: a batch of other ids, or one that is as long
    as the prompt was, begins anew.

    Args:
        params: of all rows, or of each. A row of `num_return_sequences` has those of its prompt.
        seed: keys of the rows' noise, in place of the parameters' seeds: one for each row, or one, of which row r gets
            `request_key(seed, r)`. A seed in `params` that several rows share is spread the same.
        attention_mask: int [prompts or rows, T] of the prompt: where it is 0 there is padding, which is no part of it.
            None: all ids are the prompt.
        eos_token_id: what ends a row, for min_tokens and the methods that look at EOS.
        handled_by_caller: fields of SamplingParams that the caller acts on, as for `Slots.add`.

    Raises:
        ParameterError: (a ValueError) `params` or `seed` are no parameters or seeds; in the call, where they or the
            mask do not fit the batch, and what `Slots.add` refuses.
    """

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008, frozen
        *,
        seed: int | Sequence[int] | None = None,
        attention_mask: torch.Tensor | None = None,
        eos_token_id: int | Sequence[int] = (),
        handled_by_caller: Collection[str] = (),
    ) -> None:
        check_params(params)
        check_seed(seed)
        self.params, self.seed, self.attention_mask = params, seed, attention_mask
        self.eos_token_ids = [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
        self.handled_by_caller = handled_by_caller
        self.sampled: Sampled | None = None  # of the last call
        self._slots: Slots | None = None
        self._sampler: Sampler | None = None
        self._seen = torch.empty(0, 0, dtype=torch.int64)  # the ids of the last call
        self._prompt_width = 0
        self._prompt_lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """input_ids int64 [B, T]; scores [B, V], not modified. Returns the like of `scores`."""
        self._follow(input_ids, scores.shape[1])
        assert self._sampler is not None
        rows, output = list(range(len(scores))), input_ids.shape[1] - self._prompt_width
        self.sampled = self._sampler(
            scores, Rows.plain(rows, rows, [length + output for length in self._prompt_lengths])
        )
        ids, without = token_for_each(self.sampled.token_ids, scores, rows)
        for row in without:
            warnings.warn(
                f"row {row} can't be sampled from (NaN, +inf, or nothing but −inf): its largest number is taken",
                RuntimeWarning,
                stacklevel=2,
            )
        chosen = torch.full_like(scores, -torch.inf)
        return chosen.scatter_(1, ids.to(scores.device), 0.0)

    def _follow(self, input_ids: torch.Tensor, vocab_size: int) -> None:
        """The slots have these ids from now on."""
        seen, width = self._seen, self._prompt_width
        count, length = input_ids.shape
        same = self._slots is not None and self._slots.vocab_size == vocab_size and len(seen) == count
        longer = length > seen.shape[1] + 1  # than by one token: the next turn of a chat, for one
        if not same or longer or length <= width or not torch.equal(input_ids[:, :width], seen[:, :width]):
            self._begin(input_ids, vocab_size)
        elif length == seen.shape[1] + 1 and torch.equal(input_ids[:, :-1], seen):
            self._commit(input_ids[:, -1].tolist())
        else:
            self._adopt(input_ids[:, width:].tolist())
        self._seen = input_ids

    def _begin(self, input_ids: torch.Tensor, vocab_size: int) -> None:
        count, self._prompt_width = input_ids.shape
        params, keys = per_row(self.params, self.seed, count)
        self._slots = slots = Slots(count, vocab_size)
        self._sampler, self._prompt_lengths = Sampler(slots), []
        for row, ids in enumerate(prompts(input_ids, self.attention_mask)):
            self._prompt_lengths.append(len(ids))
            handled = {*self.handled_by_caller, "seed"}
            slots.add(
                row,
                params[row],
                prompt=[id for id in ids if 0 <= id < vocab_size],  # an image's placeholder may have no logit
                key=keys[row],
                eos_token_ids=self.eos_token_ids,
                handled_by_caller=handled,
            )

    def _commit(self, ids: list[int]) -> None:
        """One more token each."""
        assert self._slots is not None
        size = self._slots.vocab_size
        self._slots.commit(range(len(ids)), [[id] if 0 <= id < size else [] for id in ids])

    def _adopt(self, outputs: list[list[int]]) -> None:
        """Some were taken back, or several have come."""
        assert self._slots is not None
        size = self._slots.vocab_size
        for row, ids in enumerate(outputs):
            self._slots.adopt(row, [id for id in ids if 0 <= id < size])


def check_params(params: object) -> None:
    """Raise ParameterError unless these are SamplingParams, or several of them."""
    several = list(params) if isinstance(params, Sequence) and not isinstance(params, str) else [params]
    if not several or not all(isinstance(one, SamplingParams) for one in several):
        raise ParameterError(f"params must be SamplingParams, or one for each row, got {params!r:.100}", "params")


def check_seed(seed: object) -> None:
    """Raise ParameterError unless it is None, an integer of 64 bits, or several of these."""
    several = list(seed) if isinstance(seed, Sequence) and not isinstance(seed, str) else [seed] * (seed is not None)
    if not all(type(one) is int and -(2**63) <= one < 2**63 for one in several):
        raise ParameterError(f"seed must be an integer of 64 bits, or one for each row, got {seed!r:.100}", "seed")


def per_row(
    params: SamplingParams | Sequence[SamplingParams], seed: int | Sequence[int] | None, count: int
) -> tuple[list[SamplingParams], list[int]]:
    """Parameters and keys of so many rows.

    Raises:
        ParameterError: there are not as many as rows, or not a whole share of them; or seeds are given twice.
    """
    single = isinstance(params, SamplingParams)
    given = [params] if single else list(params)
    if not given or count % len(given) or (not single and any(not isinstance(one, SamplingParams) for one in given)):
        raise ParameterError(f"params must be one, or one for each of {count} rows, got {len(given)}", "params")
    share = count // len(given)
    spread = [one for one in given for _ in range(share)]
    if seed is None:
        return spread, [request_key(one.seed, row % share) for row, one in enumerate(spread)]
    if any(one.seed is not None for one in given):
        raise ParameterError("seed is given beside parameters that have one: leave one of them out", "seed")
    if isinstance(seed, int):
        return spread, [request_key(seed, row) for row in range(count)]
    keys = list(seed)
    if len(keys) != count:
        raise ParameterError(f"seed must be an integer, or one for each of {count} rows, got {len(keys)}", "seed")
    return spread, keys


def prompts(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[list[int]]:
    """The ids of each row without its padding.

    Raises:
        ParameterError: the mask is not of this prompt.
    """
    if attention_mask is None:
        return input_ids.tolist()
    count, width = input_ids.shape
    if attention_mask.dim() != 2 or attention_mask.shape[1] != width or count % max(len(attention_mask), 1):
        raise ParameterError(
            f"attention_mask must be [{count}, {width}], as the prompt is, got {list(attention_mask.shape)}",
            "attention_mask",
        )
    masks = attention_mask.repeat_interleave(count // len(attention_mask), dim=0).to(input_ids.device) != 0
    return [ids[mask].tolist() for ids, mask in zip(input_ids, masks, strict=True)]
