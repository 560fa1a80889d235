"""Reports on tailrace's draws in vLLM's V2 runner, on the device: processed logprobs, and logits for sampling masks.

vLLM makes sampling masks of the finite logits that its sampler returns. Logprobs can't be made of these logits, because
methods like dynatemp change them after all that vLLM knows. So vLLM's logprobs are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import pad
from vllm.v1.outputs import LogprobsTensors

from tailrace.sampling.sampler import Pending


class RowReports(NamedTuple):
    """Logprobs of R rows of a step, in vLLM's form.

    - places: int64 [R], the rows.
    - ids: int64 [R, 1 + top], the drawn token and the likeliest ones. logprobs: float32 [R, 1 + top].
    - ranks: int64 [R], of the drawn tokens.
    """

    places: torch.Tensor
    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


def make_row_reports(pending: Pending, places: torch.Tensor, asked: Sequence[int | None]) -> list[RowReports]:
    """Return the logprobs of these draws; nothing if no request asks for some. asked: each request's number of
    alternatives."""
    top = max((count for count in asked if count is not None), default=None)
    if top is None:
        return []
    shown, values = (part[:, 0] for part in pending.padded_logprobs(asked, top))
    ids = torch.cat([pending.token_ids.clamp(min=0), shown[:, 1:]], 1)
    return [RowReports(places, ids, values.float(), shown[:, 0])]


def copy_survivors(logits: torch.Tensor, edited: torch.Tensor, pending: Pending, places: torch.Tensor) -> torch.Tensor:
    """Return the logits with other rows at these places: `edited`, with −inf for the ids that could not be drawn."""
    kept = pending.flag_survivors(edited.shape[1])[:, 0]
    rows = edited.index_select(0, places).masked_fill(~kept, -torch.inf)
    return logits.index_copy(0, places, rows.to(logits.dtype))


def replace_rows(theirs: LogprobsTensors, reports: RowReports) -> LogprobsTensors:
    """Return vLLM's logprobs with tailrace's in the rows that tailrace has drawn. Zeros pad a row."""
    width = theirs.logprobs.shape[1]
    parts = (reports.ids, reports.logprobs, reports.ranks[:, None])
    sizes = (width, width, 1)
    ids, logprobs, ranks = (pad(part, (0, size - part.shape[1])) for part, size in zip(parts, sizes, strict=True))
    found = {"logprob_token_ids": ids, "logprobs": logprobs, "selected_token_ranks": ranks[:, 0]}
    return theirs._replace(
        **{name: getattr(theirs, name).index_copy(0, reports.places, part) for name, part in found.items()}
    )
