"""What the plug-ins of vLLM and of its descendant Aphrodite share around the V1 runner. Imports no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

import torch
from torch.nn.functional import pad

from tailrace.sampling import Slots
from tailrace.sampling.sampler import Pending

GREEDY_BELOW = 1e-5  # the engines': such a temperature is none
# names that the engines themselves read among the extra arguments
READ_BY_ENGINE = ("kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "session_id")


class RowFollower:
    """A logits processor that changes no logits. It knows which request is in which row.

    - slots: of the requests that tailrace serves.
    - rows: row → request, which has its slot in `slot`, or −1.
    """

    slots: Slots
    rows: dict[int, Any]

    def is_argmax_invariant(self) -> bool:
        """Return that greedy tokens stay."""
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits unchanged."""
        return logits

    def follow_update(self, update: Any, process: Callable[..., Any], kind: type) -> None:
        """Follow the requests that have left, joined or moved. process: the engine's function that applies an update to
        a mapping of rows. kind: of the requests."""
        before = list(self.rows.values())
        process(self.rows, update, kind)
        staying = set(self.rows.values())
        for left in before:
            if left not in staying and left.slot >= 0:
                self.slots.remove(left.slot)


def list_logprobs(
    pending: Pending, ids: torch.Tensor, asked: Sequence[int | None], top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the logprobs of all places of all requests in order: ids, values, and ranks of the sampled tokens.

    Each row has the sampled token first, then the likeliest. Zeros pad the row of a request that asked for fewer than
    another, because the engine looks up all ids of a row.

    Args:
        ids: int64 [N, W]. asked: how many of the likeliest tokens each request reports. top: the largest of them.
    """
    padding = (0, 0, 0, ids.shape[1] - pending.token_ids.shape[1])
    shown, values = (pad(part, padding) for part in pending.padded_logprobs(list(asked), top))
    listed = torch.cat([ids.clamp(min=0)[:, :, None], shown[:, :, 1:]], 2).to(torch.int32)
    return listed.flatten(0, 1), values.float().flatten(0, 1), shown[:, :, 0].flatten()


def merge_outputs(own: Any, served: list[int], found: Any) -> Any:
    """Return the engine's output with these requests' rows replaced by tailrace's. `own` stays as it is."""
    ids = own.sampled_token_ids.clone()
    ids[served] = found.sampled_token_ids.to(ids.dtype)
    theirs, reports = own.logprobs_tensors, found.logprobs_tensors
    if theirs is not None and reports is not None and theirs.logprobs.dim() == 2 and theirs.logprob_token_ids.numel():
        width = min(theirs.logprobs.shape[1], reports.logprobs.shape[1])
        listed, values, ranks = (part.clone().unflatten(0, ids.shape) for part in theirs[:3])
        places = (len(served), ids.shape[1])
        listed[served, :, :width] = reports.logprob_token_ids[:, :width].to(listed.dtype).unflatten(0, places)
        values[served, :, :width] = reports.logprobs[:, :width].unflatten(0, places)
        ranks[served] = reports.selected_token_ranks.to(ranks.dtype).unflatten(0, places)
        theirs = type(theirs)(*(part.flatten(0, 1) for part in (listed, values, ranks)), *theirs[3:])
    return replace(own, sampled_token_ids=ids, logprobs_tensors=theirs)


def has_other_plugins(engine: str) -> bool:
    """Return whether another package than the engine and tailrace adds logits processors or a general plug-in."""
    points = [
        point for kind in ("logits_processors", "general_plugins") for point in entry_points(group=f"{engine}.{kind}")
    ]
    return any(point.value.partition(".")[0] not in (engine, "tailrace") for point in points)
