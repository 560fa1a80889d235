"""tailrace as the sampler of an exllamav3 job: `Job(input_ids, sampler=TailraceSampler(SamplingParams(…)))`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from exllamav3.generator.sampler import Sampler as JobSampler

from tailrace.errors import ParameterError
from tailrace.integrations.exllamav3.refused_fields import EXLLAMAV3
from tailrace.integrations.refusals import check_fields
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, request_key, token_for_each
from tailrace.sampling.validation import checked_ids


class TailraceSampler(JobSampler):
    """The sampler of one job. exllamav3 passes the job's ids with each row of logits, so that drafts, forced tokens and
    rewound tokens are handled.

    Args:
        params: all parameters that `Slots.add` accepts, but those of `refused_fields.EXLLAMAV3`. Without `seed` the
            noise follows from the job's own seed, or from its random one.
        eos_token_ids: for min_tokens and the methods that read EOS. Pass `config.eos_token_id_list`.
        handled_by_caller: fields of SamplingParams that the caller acts on, as for `Slots.add`.

    Raises:
        ParameterError: (a ValueError) for a field that can't act here, and for an argument of another type. In the
            call for other fields that `Slots.add` refuses.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_token_ids: Sequence[int] = (),
        handled_by_caller: Collection[str] = (),
    ) -> None:
        super().__init__()
        check_fields(params, EXLLAMAV3, "exllamav3", handled_by_caller)
        self.reqs_past_ids = True  # exllamav3's: pass the job's ids
        self.params, self.eos_token_ids = params, checked_ids("eos_token_ids", eos_token_ids, 2**32)
        self.handled_by_caller = {*handled_by_caller, "seed"}
        self._prompt: list[int] = []
        self._slots: Slots | None = None
        self._sampler: Sampler | None = None

    def forward(
        self,
        logits: torch.Tensor,
        sequence_ids: torch.Tensor | None = None,
        rand_u32: int | None = None,
        tokenizer: Any = None,
        logit_mask: torch.Tensor | None = None,
        return_state: bool = False,
    ) -> torch.Tensor:
        """Draw the job's next token, int64 of the logits' shape without the last dimension. exllamav3 calls it.

        logits: [1, 1, V]. sequence_ids: int64 [1, T]. logit_mask: what the job's filters allow, as numbers to add or as
        bits.
        """
        if sequence_ids is None or return_state:
            raise ParameterError("TailraceSampler needs the ids of one job, and returns its token", "sequence_ids")
        size = logits.shape[-1]
        row = logits.reshape(1, size).float()
        if tokenizer is not None and tokenizer.actual_vocab_size < size:
            row = row.index_fill(1, torch.arange(tokenizer.actual_vocab_size, size, device=row.device), -torch.inf)
        if logit_mask is not None:
            row = mask_row(row, logit_mask.reshape(1, -1))
        ids = sequence_ids[0].tolist()
        sampler = self._follow_ids(ids, size, rand_u32)
        sampled = sampler(row, Rows.plain([0], [0], [len(ids)]))
        return token_for_each(sampled.token_ids, row, [0])[0].view(logits.shape[:-1]).to(logits.device)

    def _follow_ids(self, ids: list[int], vocab_size: int, noise: int | None) -> Sampler:
        """Update the slot to these ids. Ids that do not continue the prompt begin another job."""
        slots, sampler, first = self._slots, self._sampler, len(self._prompt)
        if slots is not None and sampler is not None and len(ids) > first and ids[:first] == self._prompt:
            slots.adopt(0, [id for id in ids[first:] if id < vocab_size])
            return sampler
        self._prompt, self._slots = ids, Slots(1, vocab_size)
        self._slots.add(
            0,
            self.params,
            prompt=[id for id in ids if 0 <= id < vocab_size],  # an image's placeholders have no logits
            key=request_key(noise if self.params.seed is None else self.params.seed, 0),
            eos_token_ids=self.eos_token_ids,
            handled_by_caller=self.handled_by_caller,
        )
        self._sampler = Sampler(self._slots)
        return self._sampler


def mask_row(row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the row [1, V] with −inf where the mask does not allow a token.

    mask: numbers to add [1, n], or int32 [1, n] with 32 tokens per word. Tokens beyond the mask are not allowed.
    """
    ids = torch.arange(row.shape[1], device=row.device)
    if mask.dtype == torch.int32:
        inside = ids.clamp(max=32 * mask.shape[1] - 1)
        allowed = (mask[0, inside // 32] >> inside % 32 & 1).bool() & (inside == ids)
        return row.masked_fill(~allowed, -torch.inf)
    inside = ids.clamp(max=mask.shape[1] - 1)
    return torch.where(inside == ids, row + mask[0, inside], -torch.inf)
