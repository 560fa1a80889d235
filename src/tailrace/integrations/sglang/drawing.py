"""Logits of SGLang's batch → token ids: plain rows by the stateless call, rows with fields of tailrace's own by slots.

SGLang's batch has its requests' numbers as tensors. The requests themselves come with the batch (hooks.py), so the
numbers are read on the host, and nothing waits for the device but the positions of seeded rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from sglang.srt.runtime_context import get_parallel, get_server_args
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from tailrace.integrations.sglang.own_fields import KEY, ORDER, find_seed, read_fields, unpack_params
from tailrace.params import SamplingParams
from tailrace.sampling import KeySource, Rows, Sampler, SequenceState, Slots, sample

FOLLOWED = "tailrace_followed"  # attribute of SGLang's request
PLAIN = ("temperature", "top_p", "top_k", "min_p")


@dataclass(slots=True, eq=False)
class SlottedRequest:
    """One request with fields of tailrace's own. The object lives as long as SGLang's request.

    - slot: the request's slot; −1: none.
    - known: number of output tokens that the slot has.
    """

    params: SamplingParams
    key: int
    state: SequenceState = field(default_factory=SequenceState)
    slot: int = -1
    known: int = 0


class DrawStep(NamedTuple):
    """What the draw knows of the step, besides the logits [N · width, V] and SGLang's batch of N requests.

    - positions: int [N · width] of the drawn tokens, on any device.
    - requests: SGLang's N requests. None: they are not known.
    - last: int [N], the last token of each request's input, on any device. None: it is not known.
    - width: rows of each request.
    - scaled: the logits are already divided by the temperatures.
    """

    positions: torch.Tensor
    requests: list[Any] | None = None
    last: torch.Tensor | None = None
    width: int = 1
    scaled: bool = False


class OutputUnknownError(Exception):
    """SGLang has not read tokens that a request's fields need."""


class Drawer:
    """Draws the tokens of one place in SGLang. Requests without a seed get new keys, the same on all ranks that draw
    for the same requests.

    Args:
        place: its name, so that two places of a process have different keys.
    """

    def __init__(self, place: str) -> None:
        self.keys = KeySource.shared(*get_key_parts(), place)
        self.slots = Slots(0, 1)
        self.owners: dict[int, SlottedRequest] = {}
        self.sampler = Sampler(self.slots)

    def draw(self, logits: torch.Tensor, info: SamplingBatchInfo, step: DrawStep) -> torch.Tensor:
        """Draw a token for each row, int64 [N · width]. SGLang needs one even for a row from which none can be drawn. A
        test for such rows would wait for the device."""
        deterministic = info.sampling_seed is not None
        own = {i: self._follow(one, deterministic) for i, one in enumerate(step.requests or ()) if needs_slot(one)}
        if not own:
            return self._draw_plain(logits, info, step, None).clamp(min=0)
        ids = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        others = [i for i in range(len(info)) if i not in own]
        if others:
            rows = torch.tensor(spread(others, step.width), device=logits.device)
            ids[rows] = self._draw_plain(logits[rows], info, step, others)
        rows = spread(own, step.width)
        ids[torch.tensor(rows, device=logits.device)] = self._draw_own(logits, own, rows, step)
        return ids.clamp(min=0)

    def _draw_plain(
        self, logits: torch.Tensor, info: SamplingBatchInfo, step: DrawStep, only: list[int] | None
    ) -> torch.Tensor:
        """Draw for requests with SGLang's own fields alone. only: their places in the batch; None: all."""
        if info.is_all_greedy:
            return sample(logits, temperature=0.0)
        if step.requests is None:
            fields, seeds = read_tensors(info, step, logits.shape[1])
            positions = step.positions
        else:
            chosen = step.requests if only is None else [step.requests[i] for i in only]
            fields, seeds = read_requests(chosen, step, info.sampling_seed is not None)
            places = step.positions if only is None else step.positions[spread(only, step.width)]
            positions = places if any(seed is not None for seed in seeds) else 0
        keys = [self.keys.key_of(None) if seed is None else seed for seed in seeds]
        return sample(logits, sampler_order=ORDER, seed=keys, position=positions, **fields)

    def _draw_own(
        self, logits: torch.Tensor, own: dict[int, SlottedRequest], rows: list[int], step: DrawStep
    ) -> torch.Tensor:
        """Draw for requests with fields of tailrace's own. rows: theirs among the logits."""
        assert step.requests is not None
        positions, requests = step.positions.tolist(), {i: step.requests[i] for i in own}
        self._find_slots(own, requests, logits.shape[1])
        if step.width == 1 and any(self.slots.reads_output(one.slot) for one in own.values()):
            behind = any(positions[i] > count_known(one) for i, one in requests.items())
            last = step.last.tolist() if behind and step.last is not None else None  # waits for the device
            for i, followed in own.items():
                self._commit(followed, requests[i], positions[i], None if last is None else last[i])
        slots = [own[row // step.width].slot for row in rows]
        found = self.sampler.begin(logits, Rows.plain(slots, rows, [positions[row] for row in rows]))
        return found.token_ids[:, 0].to(logits.device)

    def _follow(self, request: Any, deterministic: bool) -> SlottedRequest:
        followed = getattr(request, FOLLOWED, None)
        if followed is None:
            key = self.keys.key_of(find_seed(request.sampling_params.sampling_seed, deterministic))
            followed = SlottedRequest(unpack_params(get_own_text(request)), key)
            setattr(request, FOLLOWED, followed)
        return followed

    def _find_slots(self, own: dict[int, SlottedRequest], requests: dict[int, Any], vocab_size: int) -> None:
        """Give each request the slot of its number in SGLang's pool, unless it has the slot."""
        largest = max(one.kv.req_pool_idx for one in requests.values())
        if largest >= len(self.slots.slots) or self.slots.vocab_size != vocab_size:
            self._make_slots(max(largest + 1, 2 * len(self.slots.slots)), vocab_size)
        for i, followed in own.items():
            slot = requests[i].kv.req_pool_idx
            if self.owners.get(slot) is not followed:
                if self.slots.slots[slot] is not None:
                    self.slots.remove(slot)
                self._fill_slot(slot, followed, requests[i])

    def _fill_slot(self, slot: int, followed: SlottedRequest, request: Any) -> None:
        output = list(request.output_ids)
        size = self.slots.vocab_size
        self.slots.add(
            slot,
            followed.params,
            prompt=[id for id in request.origin_input_ids if 0 <= id < size],  # an image's may have no logit
            output=output,
            key=followed.key,
            eos_token_ids=sorted(request.eos_token_ids or ()),
            sequence_state=followed.state,
            handled_by_caller=("seed",),
        )
        self.owners[slot] = followed
        followed.slot, followed.known = slot, len(output)

    def _commit(self, followed: SlottedRequest, request: Any, position: int, last: int | None) -> None:
        """Bring the slot's output up to the tokens before this position. last: the token that SGLang has not read yet.

        Raises:
            OutputUnknownError: more tokens are missing.
        """
        count = position - len(request.origin_input_ids)
        output = list(request.output_ids[followed.known : count])
        if last is not None and len(request.output_ids) == count - 1:
            output.append(last)
        if followed.known + len(output) != count:
            raise OutputUnknownError(f"{count} output tokens, of which SGLang knows {len(request.output_ids)}")
        self.slots.commit([followed.slot], [output])
        followed.known = count

    def _make_slots(self, count: int, vocab_size: int) -> None:
        """Begin again with empty slots. The requests keep their keys and their methods' state."""
        self.slots, self.owners = Slots(count, vocab_size), {}
        self.sampler = Sampler(self.slots)

    def begin_again(self) -> None:
        """Empty all slots after an error: it is unknown which tokens they got."""
        self._make_slots(len(self.slots.slots), self.slots.vocab_size)


def get_own_text(request: Any) -> str:
    """Return the parameters that the front end has added to a request; "" if it has no fields of tailrace's own."""
    custom = request.sampling_params.custom_params
    return custom.get(KEY, "") if isinstance(custom, dict) else ""


def needs_slot(request: Any) -> bool:
    """Return whether a request has fields of tailrace's own, and a number in SGLang's pool. A step with a grammar is
    drawn when ended requests have already left the pool; their tokens are dropped."""
    return bool(get_own_text(request)) and request.kv.req_pool_idx is not None


def count_known(request: Any) -> int:
    """Return the number of a request's tokens that SGLang has read."""
    return len(request.origin_input_ids) + len(request.output_ids)


def spread(places: Any, width: int) -> list[int]:
    """Return the rows of these requests."""
    return [place * width + column for place in places for column in range(width)]


def read_tensors(info: SamplingBatchInfo, step: DrawStep, vocab_size: int) -> tuple[dict[str, Any], list[int | None]]:
    """Return fields and seeds of all rows from the batch's tensors."""

    def widen(values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(step.width) if step.width > 1 else values

    fields: dict[str, Any] = {"temperature": 1.0 if step.scaled else widen(info.temperatures.view(-1))}
    if info.need_top_p_sampling:
        fields["top_p"] = widen(info.top_ps)
    if info.need_top_k_sampling or info.is_any_greedy:  # SGLang's greedy rows have top-k 1
        fields["top_k"] = widen(torch.where(info.top_ks >= vocab_size, 0, info.top_ks))
    if info.need_min_p_sampling:
        fields["min_p"] = widen(info.min_ps)
    seeds = info.sampling_seed
    return fields, [None] * (len(info) * step.width) if seeds is None else widen(seeds).tolist()


def read_requests(
    requests: Sequence[Any], step: DrawStep, deterministic: bool
) -> tuple[dict[str, Any], list[int | None]]:
    """Return fields and seeds of these requests' rows from their parameters. deterministic: see `find_seed`."""
    given = [read_fields(one.sampling_params) for one in requests]
    fields: dict[str, Any] = {}
    for name in PLAIN:
        values = [one.get(name, NEUTRAL[name]) for one in given]
        if name == "temperature" and step.scaled:
            values = [0.0 if value == 0.0 else 1.0 for value in values]
        fields[name] = [value for value in values for _ in range(step.width)]
    seeds = [find_seed(one.sampling_params.sampling_seed, deterministic) for one in requests]
    return fields, [seed for seed in seeds for _ in range(step.width)]


NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def get_key_parts() -> list[object]:
    """Return the source of keys for requests without a seed: equal on all ranks that sample the same rows, and
    different on others."""
    parallel, arguments = get_parallel(), get_server_args()
    ranks = [getattr(parallel, name, 0) for name in ("dp_rank", "attn_dp_rank")]
    return [getattr(arguments, "random_seed", None), *ranks]
