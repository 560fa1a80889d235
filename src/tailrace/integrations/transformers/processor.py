"""tailrace as a logits processor of transformers: it draws the tokens, and leaves no choice to `generate`.

Its rows follow the batch by the ids that `generate` passes in: the current ids count, not the drawn ones. So withdrawn
candidates of an assistant model, and the padding of rows that have ended, are handled correctly.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Sequence

import torch
from transformers import LogitsProcessor

from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampled, Sampler, Slots, request_key, token_for_each
from tailrace.sampling.validation import check_kind, checked_ids, checked_names


class TailraceLogitsProcessor(LogitsProcessor):
    """A processor that gives each row's drawn token the score 0 and all others −inf. Greedy or sampled, `generate` then
    takes the drawn token. Put it last. It refuses beam search, which needs the other scores: its beams would all be
    draws. `num_return_sequences` needs `do_sample=True`, because `generate` refuses more than one greedy sequence.

    One object may serve several calls of `generate`, one after the other. It starts again for a batch of other ids, or
    for one as long as the prompt was.

    Args:
        params: of all rows, or of each. A row of `num_return_sequences` has its prompt's parameters.
        seed: keys of the rows' noise, used instead of the parameters' seeds. With one seed, row r gets
            `request_key(seed, r)`. A seed in `params` that several rows share is spread in the same way.
        attention_mask: int [prompts or rows, T] of the prompt. 0 marks padding, which is not part of it. None: all ids
            are the prompt.
        eos_token_id: the ids that end a row. Min_tokens and the methods that read EOS need them. None and −1: no id.
        handled_by_caller: fields of SamplingParams that the caller acts on, as for `Slots.add`.

    Raises:
        ParameterError: (a ValueError) for an argument of another type. In the call also if parameters, seeds or the
            mask do not fit the batch, for beam search, and for what `Slots.add` refuses.
    """

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008, frozen
        *,
        seed: int | Sequence[int] | None = None,
        attention_mask: torch.Tensor | None = None,
        eos_token_id: int | Sequence[int] | None = (),
        handled_by_caller: Collection[str] = (),
    ) -> None:
        check_params(params)
        check_seed(seed)
        if attention_mask is not None:
            check_kind("attention_mask", attention_mask, torch.Tensor)
        self.params, self.seed, self.attention_mask = params, seed, attention_mask
        self.eos_token_ids = list_eos_ids(eos_token_id)
        self.handled_by_caller = checked_names("handled_by_caller", handled_by_caller)
        self.sampled: Sampled | None = None  # of the last call
        self._slots: Slots | None = None
        self._sampler: Sampler | None = None
        self._seen = torch.empty(0, 0, dtype=torch.int64)  # the ids of the last call
        self._prompt_width = 0
        self._prompt_lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Draw a token for each row. Return scores like `scores` that select these tokens.

        input_ids: int64 [B, T]. scores: [B, V], not modified.
        """
        self._follow_ids(input_ids, scores.shape[1])
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

    def _follow_ids(self, input_ids: torch.Tensor, vocab_size: int) -> None:
        """Update the slots to these ids."""
        seen, width = self._seen, self._prompt_width
        count, length = input_ids.shape
        same = self._slots is not None and self._slots.vocab_size == vocab_size and len(seen) == count
        longer = length > seen.shape[1] + 1  # by more than one token: for example the next turn of a chat
        if not same or longer or length <= width or not torch.equal(input_ids[:, :width], seen[:, :width]):
            self._add_prompts(input_ids, vocab_size)
        elif length == seen.shape[1] + 1 and torch.equal(input_ids[:, :-1], seen):
            self._commit_ids(input_ids[:, -1].tolist())
        else:
            self._adopt_outputs(input_ids[:, width:].tolist())
        self._seen = input_ids

    def _add_prompts(self, input_ids: torch.Tensor, vocab_size: int) -> None:
        check_search()
        count, self._prompt_width = input_ids.shape
        params, keys = per_row(self.params, self.seed, count)
        self._slots = slots = Slots(count, vocab_size)
        self._sampler, self._prompt_lengths = Sampler(slots), []
        for row, ids in enumerate(strip_padding(input_ids, self.attention_mask)):
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

    def _commit_ids(self, ids: list[int]) -> None:
        """Append one token to each row."""
        assert self._slots is not None
        size = self._slots.vocab_size
        self._slots.commit(range(len(ids)), [[id] if 0 <= id < size else [] for id in ids])

    def _adopt_outputs(self, outputs: list[list[int]]) -> None:
        """Set the outputs, after tokens were taken back or several were added."""
        assert self._slots is not None
        size = self._slots.vocab_size
        for row, ids in enumerate(outputs):
            self._slots.adopt(row, [id for id in ids if 0 <= id < size])


def check_search() -> None:
    """Raise ParameterError if `generate` calls for a beam search. A processor gets no configuration, so this looks for
    the loop of `generate` on the stack."""
    frame = sys._getframe()
    while frame := frame.f_back:
        if (
            frame.f_code.co_name == "_beam_search"
            and frame.f_globals.get("__name__") == "transformers.generation.utils"
        ):
            raise ParameterError("num_beams must be 1 with TailraceLogitsProcessor: beams are not drawn", "num_beams")


def list_eos_ids(eos_token_id: int | Sequence[int] | None) -> list[int]:
    """Return the ids as a list. None and negative ids are no ids, as in `generate`.

    Raises:
        ParameterError: the argument has other values than whole numbers.
    """
    if eos_token_id is None or isinstance(eos_token_id, int):
        eos_token_id = [] if eos_token_id is None else [eos_token_id]
    if isinstance(eos_token_id, list | tuple):
        eos_token_id = [id for id in eos_token_id if not isinstance(id, int) or id >= 0]
    return checked_ids("eos_token_id", eos_token_id, 2**32)


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
    """Return parameters and keys for this many rows.

    Raises:
        ParameterError: the numbers of parameters and rows do not fit, or seeds are given twice.
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


def strip_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[list[int]]:
    """Return the ids of each row without its padding.

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
