"""The rows of a step that tailrace draws in vLLM's V2 runner, with their edits and their forced tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from tailrace.integrations.vllm import v2_edits
from tailrace.integrations.vllm.fallbacks import fall_back
from tailrace.integrations.vllm.v2_history import DraftedRows, add_drafts, read_tokens
from tailrace.integrations.vllm.v2_requests import V2Requests
from tailrace.kernels.transfer import there
from tailrace.sampling import Rows


class PlannedRows(NamedTuple):
    """The rows that tailrace draws in a step.

    - served: of each request, whether tailrace draws for it.
    - logits: of all rows, for vLLM's edits.
    - drafted: the tokens that the model read at each row, if the server has drafts.
    """

    rows: Rows
    served: list[bool]
    logits: torch.Tensor
    drafted: DraftedRows | None

    @property
    def others(self) -> bool:
        """Return whether vLLM draws for other requests."""
        return not all(self.served)


def plan_rows(
    requests: V2Requests, logits: torch.Tensor, place: dict[str, Any], counts: list[int] | None = None
) -> PlannedRows | None:
    """Return what tailrace draws. None if vLLM draws all rows, for example when it measures memory without
    requests. counts: rows of logits per request; None: one each."""
    slots = requests.slots.slots
    indices, lengths = place["idx_mapping_np"].tolist(), place["seq_lens_upper_bound_np"].tolist()
    served = [index not in requests.refusals for index in indices]
    if any(slots[index] is None for index, is_served in zip(indices, served, strict=True) if is_served):
        requests.sampler.warm_up({logits.dtype, torch.float32}, logits.device)
        v2_edits.warm_up(logits.device)
        return None
    for index in indices:
        if index in requests.refusals:
            fall_back(requests.refusals[index])
    if not any(served):
        return None
    first = list(accumulate(counts or [1] * len(indices), initial=0))
    parts = [
        (index, row, length)
        for i, (index, length) in enumerate(zip(indices, lengths, strict=True))
        for row in range(first[i], first[i + 1])
        if served[i]
    ]
    rows = Rows.plain(*zip(*parts, strict=True))
    drafted = None
    if requests.drafting:
        found = there(rows.source, logits.device)
        rows = replace(rows, position_there=place["pos"][found].long() + 1)
        width = max(counts or [1])
        drafted = DraftedRows(found, place["pos"], place["input_ids"], place["expanded_local_pos"], width)
    if found := [row for index, row, _ in parts if v2_edits.NORMALIZE in requests.asked[index].edits]:
        logits = v2_edits.normalize_rows(logits, there(torch.tensor(found), logits.device))
    return PlannedRows(rows, served, logits, drafted)


def edit_planned(requests: V2Requests, edited: torch.Tensor, planned: PlannedRows) -> torch.Tensor:
    """Return the logits after the edits that vLLM leaves to tailrace."""
    rows, device = planned.rows, edited.device
    owners = rows.owners.tolist()
    found = [row for row, owner in enumerate(owners) if requests.asked[owner].edits]
    if not found:
        return edited
    indices, longest = [owners[row] for row in found], int(rows.position[found].max())
    read = read_tokens(requests.history, indices, longest, requests.slots.vocab_size, device)
    places = there(rows.source[found], device)
    if planned.drafted is not None:
        read = add_drafts(read, planned.drafted._replace(rows=places))
    enders = [requests.slots[index].eos_token_ids for index in indices]
    mine = v2_edits.EditedRows([requests.asked[index].params for index in indices], enders, read)
    return v2_edits.edit_rows(edited, places, mine)


def force_token(requests: V2Requests, index: int, count: int) -> bool:
    """Let the slot draw the token that its request forces after `count` output tokens. Return whether it forces
    one."""
    tokens = requests.asked[index].params.forced_token_ids
    if 0 <= count < len(tokens):
        requests.slots.force(index, tokens[count : count + 1])
        return True
    if requests.slots[index].sequence_state.forced:
        requests.slots[index].sequence_state.forced.clear()
        requests.slots.refresh_edits(index)
    return False
