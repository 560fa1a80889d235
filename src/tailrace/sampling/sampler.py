"""Logits → token ids: edit, prune, refine, draw, report; with drafts, verify. Knows no method by name, no request, no text.

On the CPU one call of the kernels does a whole step (kernels/cpu/sample.py), on a GPU a few launches (kernels/gpu/step.py). A request that
asks for what the kernels don't have goes the reference's way (sampling/reference.py, sampling/verify.py), alone. All draw by Gumbel-max
with noise that is a function of (key, position, token id): a row's token depends on its own logits, parameters, key and position alone.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch

from tailrace.errors import ParameterError
from tailrace.kernels.cpu.program import COSTLY, LEARNING, RARE, REPORTED
from tailrace.kernels.cpu.sample import APART, Outcome, Step
from tailrace.kernels.program import Mask
from tailrace.kernels.rows import Rows
from tailrace.logprobs import TokenLogprobs
from tailrace.sampling.draft_programs import unroll
from tailrace.sampling.guidance import combined, guide
from tailrace.sampling.logprobs import naming
from tailrace.sampling.slot import Slot
from tailrace.sampling.slots import Slots
from tailrace.sampling.validation import check_kind
from tailrace.sampling.verify import verify

if TYPE_CHECKING:
    from tailrace.sampling.on_gpu import OnGPU

Backend = Literal["reference", "cpu", "gpu"]


@dataclass(slots=True)
class Sampled:
    """token_ids: int64 [N, K + 1], −1 where there is none. num_tokens: int64 [N], 0 where status is not OK. status: int32 [N],
    kernels/status.py. logprobs: per request one entry per token, or None where it did not ask."""

    token_ids: torch.Tensor
    num_tokens: torch.Tensor
    status: torch.Tensor
    logprobs: list[list[TokenLogprobs] | None]

    def tokens(self) -> list[list[int]]:
        """What was drawn or accepted, request by request: what `Slots.commit` takes. Nothing where status is not OK."""
        return [row[:count] for row, count in zip(self.token_ids.tolist(), self.num_tokens.tolist(), strict=True)]


class Pending:
    """Draws on their way to the host.

    token_ids: int64 [N, K + 1] where the logits are, for whatever is launched there next: what `wait` says of them.
    """

    def __init__(self, token_ids: torch.Tensor, finish: Callable[[], Sampled]) -> None:
        self.token_ids = token_ids
        self._finish = finish
        self._sampled: Sampled | None = None

    def wait(self) -> Sampled:
        """Until they are there."""
        if self._sampled is None:
            self._sampled = self._finish()
        return self._sampled


class Sampler:
    """Draws for the requests of a step from their slots' distributions; does not commit what it drew.

    Args:
        backend: None takes the kernels of the device where the logits are.
    """

    def __init__(self, slots: Slots, backend: Backend | None = None) -> None:
        if backend is not None and (not isinstance(backend, str) or backend not in get_args(Backend)):
            raise ParameterError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}", "backend")
        check_kind("slots", slots, Slots)
        self.slots = slots
        self.backend: Backend | None = backend
        self._gpu: OnGPU | None = None
        self._ways = {"cpu": self._on_cpu, "gpu": self._on_gpu, "reference": self._by_specification}

    def warm_up(self, dtypes: set[torch.dtype], device: torch.device) -> None:
        """Be ready for logits of these dtypes: on a GPU kernels are compiled, which takes a minute each the first time on a machine."""
        check_kind("device", device, torch.device)
        if self._backend_for(device) == "gpu":
            from tailrace.sampling.on_gpu import warm_up

            for dtype in dtypes:
                warm_up(self.slots.vocab_size, dtype, device)
            self._there(device).space.room(len(self.slots.slots))  # for a row each; drafts may take more

    def __call__(self, logits: torch.Tensor, rows: Rows) -> Sampled:
        """`begin`, and wait."""
        return self.begin(logits, rows).wait()

    def begin(self, logits: torch.Tensor, rows: Rows) -> Pending:
        """logits [L, V] of bf16, f16 or f32, rows may be strided; not modified. rows: see kernels/rows.py.

        Raises:
            ParameterError: the vocabulary or the dtype differs, a slot is empty, or a number of `rows` is out of range.
        """
        check_kind("rows", rows, Rows)
        check_kind("logits", logits, torch.Tensor)
        if logits.dim() != 2 or logits.shape[1] != self.slots.vocab_size:
            raise ParameterError(
                f"logits must have {self.slots.vocab_size} columns, got {tuple(logits.shape)}", "logits"
            )
        if rows.counted is not False:
            check_kind("counted", rows.counted, bool)
            rows = replace(rows, position=self.slots.positions(rows), counted=False)
        step = Step(logits, rows, self.slots.programs)
        drafted = self._drafted(rows) if rows.width > 1 else []
        return self._ways[self._backend_for(logits.device)](logits, rows, step, drafted)

    def _backend_for(self, device: torch.device) -> Backend:
        backend = self.backend or ("cpu" if device.type == "cpu" else "gpu")
        if device.type not in ("cpu", "cuda") or (backend == "cpu" and device.type != "cpu"):
            raise ParameterError(f"logits on {device} can't be read by backend {backend}", "logits")
        return backend

    def _there(self, device: torch.device) -> OnGPU:
        """The slots' other half; made when first asked for, because it brings Triton along."""
        if self._gpu is None:
            from tailrace.sampling.on_gpu import OnGPU

            self._gpu = OnGPU(self.slots, device)
        return self._gpu

    def _on_cpu(self, logits: torch.Tensor, rows: Rows, step: Step, drafted: list[tuple[int, Slot]]) -> Pending:
        if moving := [i for i, slot in drafted if slot.unrolls]:
            step.unroll(unroll(self.slots, rows, moving), self.slots.programs)
        outcome = step.run(bool(step.flags & REPORTED))
        # no slot's record is touched where nobody is special: that would cost more than sampling
        if step.flags & LEARNING:
            self._keep_lessons(outcome, rows)
        if step.flags & COSTLY:
            self._keep_seconds(outcome, rows)
        if not step.flags & (RARE | REPORTED):
            sampled = Sampled(outcome.token_ids, outcome.num_tokens, outcome.status, [None] * rows.num_requests)
        else:
            sampled = self._read(outcome, rows, logits)
            self._by_reference(logits, rows, (outcome.status == APART).nonzero().squeeze(1).tolist(), sampled)
        return Pending(sampled.token_ids, lambda: sampled)

    def _by_specification(
        self, logits: torch.Tensor, rows: Rows, step: Step, drafted: list[tuple[int, Slot]]
    ) -> Pending:
        n = rows.num_requests
        sampled = Sampled(*step.outcome()[:3], [None] * n)
        self._by_reference(logits, rows, range(n), sampled)
        return Pending(sampled.token_ids.to(logits.device), lambda: sampled)

    def _on_gpu(self, logits: torch.Tensor, rows: Rows, step: Step, drafted: list[tuple[int, Slot]]) -> Pending:
        """The kernels draw for all; for those who ask for more than they have it is drawn again, the reference's way, meanwhile."""
        if rows.guidance is not None:
            logits, rows = combined(logits, rows)
        gpu = self._there(logits.device)
        prepared = gpu.launch(logits, rows, step.record.top if step.flags & REPORTED else None)
        ids, apart = prepared.out.token_ids.view(prepared.shape), prepared.apart
        if step.flags & REPORTED:
            apart = sorted({*apart, *self._naming(rows)})
        redrawn = Sampled(*step.outcome()[:3], [None] * rows.num_requests) if apart else None
        if redrawn is not None:
            self._by_reference(logits, rows, apart, redrawn)
            ids[apart] = redrawn.token_ids[apart].to(logits.device)
        arriving = gpu.fetch(prepared)

        def finish() -> Sampled:
            sampled = self._read(arriving(), rows)
            if redrawn is not None:
                sampled.token_ids[apart] = redrawn.token_ids[apart]
                sampled.num_tokens[apart] = redrawn.num_tokens[apart]
                sampled.status[apart] = redrawn.status[apart]
                for i in apart:
                    sampled.logprobs[i] = redrawn.logprobs[i]
            return sampled

        return Pending(ids, finish)

    def _naming(self, rows: Rows) -> list[int]:
        """The requests that name tokens whose logprobs they want."""
        owners = rows.owners.tolist()
        return [i for i, owner in enumerate(owners) if self.slots[owner].params.logprob_token_ids]

    def _drafted(self, rows: Rows) -> list[tuple[int, Slot]]:
        """The requests with drafts, and their slots.

        Raises:
            ParameterError: there are drafts that can't be verified together.
        """
        owners = rows.owners.tolist()
        drafted = [(i, self.slots[owners[i]]) for i in (rows.start.diff() > 1).nonzero().squeeze(1).tolist()]
        counts = Counter(owners)
        for i, slot in drafted:
            if counts[owners[i]] > 1 and slot.history is not None:
                raise ParameterError(
                    f"slot {owners[i]} has {counts[owners[i]]} requests with drafts in one step, and a history that they share",
                    "slot",
                )
        return drafted

    def _by_reference(self, logits: torch.Tensor, rows: Rows, requests: Iterable[int], sampled: Sampled) -> None:
        """Fill in these requests."""
        for i in requests:
            first, last = int(rows.start[i]), int(rows.start[i + 1]) - 1
            slot = self.slots[int(rows.slot[first])]
            begun_s = time.thread_time()
            tokens, described, status = verify(
                [raw_row(logits, rows, row) for row in range(first, last + 1)],
                slot,
                int(rows.position[first]),
                rows.draft[first:last].tolist(),
                rows.proposals_of(i),
                rows.rule_of(i),
                [allowed(rows, row) for row in range(first, last + 1)],
            )
            sampled.token_ids[i] = -1
            sampled.token_ids[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
            sampled.num_tokens[i], sampled.status[i] = len(tokens), status
            if slot.reported:
                sampled.logprobs[i] = [entry for entry in described if entry is not None]
            slot.took_s = time.thread_time() - begun_s

    def _keep_lessons(self, outcome: Outcome, rows: Rows) -> None:
        """What the slots that learn were told; they learn it from what is committed."""
        assert outcome.lessons is not None
        columns = (rows.owners, outcome.num_tokens, outcome.token_ids, outcome.lessons)
        for owner, count, tokens, found in zip(*(column.tolist() for column in columns), strict=True):
            slot = self.slots[owner]
            if slot.state and not slot.rare:
                slot.lessons[:] = [
                    (token, None if math.isnan(logprob) else logprob)
                    for token, logprob in zip(tokens[:count], found[:count], strict=True)
                ]

    def _keep_seconds(self, outcome: Outcome, rows: Rows) -> None:
        """What the draws of those took whose methods may be dear."""
        assert outcome.seconds is not None
        owners = rows.owners
        for i in outcome.seconds.nonzero().squeeze(1).tolist():
            self.slots[int(owners[i])].took_s = float(outcome.seconds[i])

    def _read(self, outcome: Outcome, rows: Rows, logits: torch.Tensor | None = None) -> Sampled:
        """With the requests' reports out of the kernels' arrays; None for those that did not ask. logits: where tokens are named."""
        reports: list[list[TokenLogprobs] | None] = [None] * rows.num_requests
        sampled = Sampled(outcome.token_ids, outcome.num_tokens, outcome.status, reports)
        if outcome.reports is None:
            return sampled
        # whole arrays become lists at once: a tensor per row would cost more than the sampling
        numbers, ranks = outcome.reports.numbers.tolist(), outcome.reports.ranks.tolist()
        for i, (owner, count) in enumerate(zip(rows.owners.tolist(), outcome.num_tokens.tolist(), strict=True)):
            slot = self.slots[owner]
            if slot.reported:
                params = slot.params
                reports[i] = [
                    logprobs(numbers[i][j], ranks[i][j], params.logprobs, params.report_entropy) for j in range(count)
                ]
                if params.logprob_token_ids and logits is not None and not slot.rare:
                    reports[i] = named(logits, rows, i, sampled, params.logprob_token_ids)
        return sampled


def allowed(rows: Rows, row: int) -> Mask | None:
    """The grammar's mask of a row, if it has one."""
    if rows.mask is None or rows.masks is None or (place := int(rows.mask[row])) < 0:
        return None
    return Mask(rows.masks[place].numpy().view("uint32"))


def raw_row(logits: torch.Tensor, rows: Rows, row: int) -> torch.Tensor:
    """[V]: a row's logits before its edits."""
    mine = logits[int(rows.source[row])]
    if rows.guidance is None or (companion := int(rows.guidance.companion[row])) < 0:
        return mine
    return guide(mine[None], logits[companion][None], rows.guidance.scale[row : row + 1])[0]


def named(logits: torch.Tensor, rows: Rows, i: int, sampled: Sampled, ids: tuple[int, ...]) -> list[TokenLogprobs]:
    """The entries of request i with the logprobs of these tokens, out of its rows."""
    entries, first, drawn = sampled.logprobs[i] or [], int(rows.start[i]), sampled.token_ids[i].tolist()
    return [naming(entry, drawn[j], raw_row(logits, rows, first + j), ids) for j, entry in enumerate(entries)]


def logprobs(numbers: list[float], ranks: list[int], top: int | None, entropies: bool) -> TokenLogprobs:
    """One token's, out of the kernels' arrays."""
    more = numbers[1:3] if entropies else ()
    if top is None:
        return TokenLogprobs(math.nan, 0, [], [], *more)
    return TokenLogprobs(numbers[0], ranks[0], ranks[1 : 1 + top], numbers[3 : 3 + top], *more)
