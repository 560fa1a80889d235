"""A step on a GPU: the slots' programs and edits are brought to the device as far as they have changed, and the kernels launched.

What the host knows of a slot is the truth; the device follows. A token that is committed costs the entries it changes, in one copy together
with the step's rows.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tailrace.kernels.cpu.sample import Outcome, Reports
from tailrace.kernels.gpu.columns import BEFORE, COLUMNS, DENSE, DRAFT, FORCED, MASK, POSITION, RULE, SLOT, SOURCE
from tailrace.kernels.gpu.program import PENALISED, SHIFTED, has, idle, is_lean, record
from tailrace.kernels.gpu.state import State, Tables
from tailrace.kernels.gpu.step import Out, Step, Work, Workspace, even, run
from tailrace.kernels.program import Edit, Program
from tailrace.kernels.proposals import side_by_side
from tailrace.kernels.rows import RULES, Rows
from tailrace.kernels.transfer import there
from tailrace.kernels.types import readable
from tailrace.params import SamplingParams
from tailrace.sampling.edit_table import EditTable, can_follow, changes
from tailrace.sampling.guidance import guide_rows
from tailrace.sampling.slots import Slots

EXACT, BLOCK, REJECTION = RULES.index("exact"), RULES.index("block"), RULES.index("rejection")
UNKNOWN = -1  # no version of a slot


@dataclass(slots=True)
class Seen:
    """What the device has of a slot. lean: the lean scan does its rows, where they have no mask."""

    program: Program
    edits: list[Edit]
    entries: EditTable
    flags: int
    lean: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step whose numbers are on the device, and all that its kernels write to. shape, scans, top: as `run` wants them. apart: the
    requests whose draws mean nothing, because the kernels don't have what they ask for."""

    step: Step
    tables: Tables
    work: Work
    out: Out
    rows: int
    shape: tuple[int, int]
    scans: frozenset[bool]
    top: int | None
    apart: list[int]


class OnGPU:
    """The slots' other half.

    Args:
        device: where logits will be; in Triton's interpreter the CPU.
    """

    def __init__(self, slots: Slots, device: torch.device) -> None:
        self.slots, self.device = slots, device
        count = len(slots.slots)
        self.state = State(count, slots.vocab_size, device)
        self.space = Workspace(slots.vocab_size, device)
        self.copying = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.leaving: deque[tuple[torch.Event | torch.cuda.Event, torch.Tensor]] = (
            deque()
        )  # copies to the host, and what they read
        self.seen: list[Seen | None] = [None] * count
        self.left: set[int] = set()  # slots whose records are idle
        self.followed = [UNKNOWN] * count  # the version of each slot that the device has
        # of each slot, the edits with which it was looked at last
        self.looked: list[list[Edit] | None] = [None] * count
        self.alone: set[int] = set()  # they ask for what the kernels don't have
        self.unrolled: set[int] = set()  # so do their drafts
        self.forcing: set[int] = set()  # they have tokens that must come

    def apart(self, rows: Rows) -> list[int]:
        """The requests of a step that ask for what the kernels don't have."""
        owners = rows.owners.tolist()
        edits, looked = self.slots.edits, self.looked
        for owner in owners:
            if looked[owner] is not edits[owner]:
                self._look(owner)
                looked[owner] = edits[owner]
        odd = self.alone if rows.width == 1 else self.alone | self.unrolled
        if not odd:
            return []
        alone = [i for i, owner in enumerate(owners) if owner in self.alone]
        if rows.width > 1:
            drafted = (rows.start.diff() > 1).tolist()
            alone = sorted({*alone, *(i for i, owner in enumerate(owners) if drafted[i] and owner in self.unrolled)})
        return alone

    def _look(self, owner: int) -> None:
        slot, program = self.slots[owner], self.slots.compiled[owner]
        served = program is not None and has(program) and can_follow(self.slots.edits[owner], slot.moves)
        for found, is_so in ((self.alone, not served), (self.unrolled, slot.unrolls)):
            (found.add if is_so else found.discard)(owner)

    def fetch(self, prepared: Prepared) -> Callable[[], Outcome]:
        """Begin to copy what came out to the host; what is returned waits for it."""
        out, (requests, width), top = prepared.out, prepared.shape, prepared.top
        if self.copying is None:
            arrived, done = out.all.clone(), None
        else:
            arrived = torch.empty(out.all.shape, dtype=torch.int64, pin_memory=True)
            drawn = torch.cuda.current_stream(self.device).record_event()
            with torch.cuda.stream(self.copying):
                self.copying.wait_event(drawn)
                arrived.copy_(out.all, non_blocking=True)
                done = self.copying.record_event()
            # memory that another stream reads is held until it is through
            self.leaving.append((done, out.all))
            while self.leaving[0][0].query() and len(self.leaving) > 1:
                self.leaving.popleft()

        def finish() -> Outcome:
            if done is not None:
                done.synchronize()
            here, shape = Out.over(arrived, requests, width, top), (requests, width, -1)
            made = None if top is None else Reports(here.numbers.view(shape), here.ranks.view(shape))
            return Outcome(here.token_ids.view(requests, width), here.num_tokens, here.status.int(), made)

        return finish

    def launch(self, logits: torch.Tensor, rows: Rows, top: int | None) -> Prepared:
        """Draw for all rows; nothing is checked. top: alternatives to report at most; None: nobody asks for a report."""
        prepared = self.prepare(logits, rows, top)
        self.draw(prepared)
        return prepared

    def prepare(self, logits: torch.Tensor, rows: Rows, top: int | None) -> Prepared:
        """Bring the step's numbers to the device, and what has changed of its slots."""
        logits = readable(logits)
        # kernels would be compiled anew, and sum in another order: a drafter's logits may be a part of wider rows
        several = logits.shape[0] > 1
        odd = (logits.stride(0) % 16 == 0) != (logits.shape[1] % 16 == 0) or logits.stride(0) >= 1 << 31
        if logits.data_ptr() % 16 or (odd and several):
            logits = logits.clone(memory_format=torch.contiguous_format)
        stride = logits.stride(0) if several else logits.shape[1]  # a single row's may be 1, which is compiled in
        apart, owners = self.apart(rows), rows.slot.tolist()
        elsewhere = {owners[int(rows.start[i])] for i in apart}
        amendments: list[int] = []
        versions, followed = self.slots.versions, self.followed
        for owner in owners:
            if owner in elsewhere:
                self._leave(owner)
                followed[owner] = UNKNOWN
            elif followed[owner] != versions[owner]:
                amendments += self._follow(owner)
                followed[owner] = versions[owner]
        q, dense = (None, 0) if rows.proposals is None else side_by_side(rows.proposals, rows.start, logits.shape[1])
        numbers, padded, behind = self._numbers(rows, owners, amendments, dense)
        work, tables = self.space.room(rows.num_rows), self.state.tables
        # an address where none is read
        masks = tables.touched if rows.masks is None else there(rows.masks, self.device)
        proposals = work.x if q is None else there(q, self.device)
        step = Step(logits, stride, logits.shape[1], numbers, padded, masks, proposals)
        out = Out.room(rows.num_requests, rows.width, top, self.device)
        if amendments:
            with torch.cuda.device_of(logits):
                self.state.amend(numbers[behind : behind + len(amendments)])
        rich = [seen is not None and not seen.lean for seen in (self.seen[owner] for owner in owners)]
        if rows.mask is not None:
            rich = [place >= 0 or wants for place, wants in zip(rows.mask.tolist(), rich, strict=True)]
        return Prepared(
            step, tables, work, out, rows.num_rows, (rows.num_requests, rows.width), frozenset(rich), top, apart
        )

    def draw(self, prepared: Prepared) -> None:
        """Launch the kernels; as often as one likes, while no slot changes, and the same each time: also out of a CUDA graph."""
        if prepared.rows:
            with torch.cuda.device_of(prepared.step.logits):
                run(
                    prepared.step,
                    prepared.tables,
                    prepared.work,
                    prepared.out,
                    prepared.rows,
                    prepared.shape,
                    scans=prepared.scans,
                    top=prepared.top,
                )

    def _numbers(
        self, rows: Rows, owners: list[int], amendments: list[int], dense: np.ndarray | int
    ) -> tuple[torch.Tensor, int, int]:
        """int64, as kernels/gpu/columns.py has them, and behind them the amendments; a column's length, and where the amendments begin."""
        n, starts = rows.num_rows, rows.num_requests + 1
        padded = -(-n // 16) * 16  # kernels are compiled for a multiple of 16
        first = COLUMNS * padded
        behind = first + even(starts)
        words = torch.empty(behind + len(amendments), dtype=torch.int64, pin_memory=self.device.type == "cuda")
        host = words.numpy()
        columns = host[:first].reshape(COLUMNS, padded)[:, :n]
        columns[SLOT.value], columns[SOURCE.value] = rows.slot.numpy(), rows.source.numpy()
        columns[POSITION.value], columns[DRAFT.value] = rows.position.numpy(), rows.draft.numpy()
        columns[RULE.value], columns[FORCED.value], columns[BEFORE.value] = EXACT, -1, 0
        columns[MASK.value] = -1 if rows.mask is None else rows.mask.numpy()
        columns[DENSE.value] = dense
        if self.forcing:
            for row, owner in enumerate(owners):
                if owner in self.forcing and (forced := self.slots[owner].forced) is not None:
                    columns[FORCED.value, row] = forced
        start = host[first : first + starts]
        start[:] = rows.start.numpy()
        host[behind:] = amendments
        if rows.width > 1:
            self._drafts(columns, rows, start, owners)
        return there(words, self.device), padded, behind

    def _drafts(self, columns: np.ndarray, rows: Rows, start: np.ndarray, owners: list[int]) -> None:
        """Fill in what drafts bring: how many come before each row, and by which rule they are settled."""
        counts = np.diff(start)
        columns[BEFORE.value] = np.arange(rows.num_rows) - np.repeat(start[:-1], counts)
        if rows.rule is not None:
            rule = np.repeat(rows.rule.numpy().astype(np.int64), counts)
            # of one-hot drafts block verification is rejection, row by row
            rule[(rule == BLOCK) & (np.repeat(columns[DENSE.value, start[:-1]], counts) == 0)] = REJECTION
            greedy = np.array([self.slots[owner].params.greedy for owner in owners])
            rule[greedy | (columns[FORCED.value] >= 0) | (np.repeat(counts, counts) == 1)] = EXACT
            columns[RULE.value] = rule

    def _leave(self, owner: int) -> None:
        """The slot's rows are drawn elsewhere: here they should cost as little as can be."""
        if self.seen[owner] is not None or owner not in self.left:
            self.state.write(owner, idle())
            self.seen[owner] = None
            self.left.add(owner)

    def _follow(self, owner: int) -> list[int]:
        """Bring what has changed of a slot to the device: its record now, its entries as amendments."""
        slot, program, edits = self.slots[owner], self.slots.compiled[owner], self.slots.edits[owner]
        seen = self.seen[owner]
        assert program is not None
        (self.forcing.add if slot.sequence_state.forced else self.forcing.discard)(owner)
        counted = slot.history.follow() if slot.history is not None and slot.history.counts is not None else set()
        known = seen if seen is not None and seen.program is program else None
        if known is not None and known.edits is edits:
            return self._amendments(owner, counted, known.entries) if counted else []
        entries = EditTable.of(edits)
        flags = entries.flags | (0 if known is None else known.flags)
        if known is not None and known.flags == flags and known.entries.allowed is entries.allowed:
            changed, lean = changes(known.entries, entries) | counted, known.lean
        else:
            changed = entries.ids
            if entries.penalty is not None:
                changed |= set(entries.penalty.counts.lists()[0])
            if flags:
                self.state.clear(owner, entries.allowed)
            self.state.make_room(bool(flags & PENALISED.value), bool(flags & SHIFTED.value))
            fields = record(program, flags, entries.penalty)
            self.state.write(owner, fields)
            lean = is_lean(fields)
        self.seen[owner] = Seen(program, edits, entries, flags, lean)
        self.left.discard(owner)
        return self._amendments(owner, changed, entries)

    def _amendments(self, owner: int, ids: set[int], entries: EditTable) -> list[int]:
        """int64, as kernels/gpu/edits.py has them."""
        out: list[int] = []
        counts = None if entries.penalty is None else entries.penalty.counts
        for id in ids:
            allowed = entries.allowed is None or (int(entries.allowed[id // 32]) >> (id % 32)) & 1
            repeated, counted = (0, 0) if counts is None else counts.of(id)
            before, later = entries.before.get(id, 0.0), entries.later.get(id, 0.0)
            # touched even where nothing is left of it: an entry that is written is the truth
            state = 2 | int(bool(allowed) and id not in entries.banned)
            out += (owner << 32 | id, state, repeated << 32 | counted, bits(later, before))
        return out


def warm_up(vocab: int, dtype: torch.dtype, device: torch.device) -> None:
    """Have the kernels compiled that a step may need (a minute, the first time on a machine), so that no request waits for it.

    dtype: of the logits that will come.
    """
    slots = Slots(2, vocab)
    slots.add(0, SamplingParams(logprobs=1, presence_penalty=0.5, logit_bias={0: 1.0}), key=1, prompt=[0])
    slots.add(1, SamplingParams(top_p=0.9), key=2, prompt=[0])
    gpu, logits = OnGPU(slots, device), torch.zeros((3, vocab), dtype=dtype, device=device)
    for rows in (Rows.plain([0, 1], [0, 1], [1, 1]), Rows.drafted([0, 1], [1, 1], [[0], []])):
        gpu.fetch(gpu.launch(logits, rows, 1))()
    guide_rows(logits, torch.tensor([0]), torch.tensor([1]), torch.tensor([2.0]), kernel=True)


def bits(high: float, low: float) -> int:
    """Two float32 in an int64."""
    return struct.unpack("<q", struct.pack("<ff", low, high))[0]
