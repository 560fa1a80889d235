"""A step on a GPU: the slots' programs and edits are brought to the device as far as they have changed, and the kernels launched.

What the host knows of a slot is the truth; the device follows. A token that is committed costs the entries it changes, in one copy together
with the step's rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tailrace.kernels.cpu.sample import Outcome, Reports
from tailrace.kernels.gpu.program import PENALISED, SHIFTED, has, idle, is_lean, record
from tailrace.kernels.gpu.state import State, Tables
from tailrace.kernels.gpu.step import COLUMNS, Out, Step, Work, Workspace, even, run
from tailrace.kernels.program import Edit, Program
from tailrace.kernels.rows import RULES, Rows
from tailrace.kernels.transfer import there, together
from tailrace.kernels.types import readable
from tailrace.params import SamplingParams
from tailrace.sampling.entries import Entries, can_follow, changes
from tailrace.sampling.guidance import guide_rows
from tailrace.sampling.slots import Slots

EXACT, BLOCK = RULES.index("exact"), RULES.index("block")


@dataclass(slots=True)
class Seen:
    """What the device has of a slot. lean: the lean scan does its rows, where they have no mask."""

    program: Program
    edits: list[Edit]
    entries: Entries
    flags: int
    lean: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step whose numbers are on the device, and all that its kernels write to. scans, drafts, reports: as `run` wants them. apart: the
    requests whose draws mean nothing, because the kernels don't have what they ask for."""

    step: Step
    tables: Tables
    work: Work
    out: Out
    rows: int
    scans: frozenset[bool]
    drafts: bool
    reports: bool
    apart: list[int]


class OnGPU:
    """The slots' other half.

    Args:
        device: where logits will be; in Triton's interpreter the CPU.
    """

    def __init__(self, slots: Slots, device: torch.device) -> None:
        self.slots, self.device = slots, device
        self.state = State(len(slots.slots), slots.vocab_size, device)
        self.space = Workspace(slots.vocab_size, device)
        self.copying = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.seen: list[Seen | None] = [None] * len(slots.slots)
        self.able: list[tuple[list[Edit], bool] | None] = [None] * len(
            slots.slots
        )  # of edits, whether they can be followed
        self.left: set[int] = set()  # slots whose records are idle

    def apart(self, rows: Rows) -> list[int]:
        """The requests of a step that ask for what the kernels don't have."""
        drafted = (rows.start.diff() > 1).tolist()
        owners = rows.slot[rows.start[:-1]].tolist()
        return [i for i, owner in enumerate(owners) if not self._serves(owner, drafted[i])]

    def _serves(self, owner: int, drafted: bool) -> bool:
        slot, program = self.slots[owner], self.slots.compiled[owner]
        if program is None or not has(program) or (drafted and slot.unrolls):
            return False
        edits, able = self.slots.edits[owner], self.able[owner]
        if able is None or able[0] is not edits:
            able = self.able[owner] = (edits, can_follow(edits, slot.moves))
        return able[1]

    def fetch(self, out: Out, top: int | None) -> Callable[[], Outcome]:
        """Begin to copy what came out to the host; what is returned waits for it."""
        requests, width = out.token_ids.shape
        if self.copying is None:
            arrived, done = out.all.clone(), None
        else:
            arrived = torch.empty(out.all.shape, dtype=torch.int64, pin_memory=True)
            drawn = torch.cuda.current_stream(self.device).record_event()
            with torch.cuda.stream(self.copying):
                self.copying.wait_event(drawn)
                arrived.copy_(out.all, non_blocking=True)
                done = self.copying.record_event()
            out.all.record_stream(self.copying)

        def finish() -> Outcome:
            if done is not None:
                done.synchronize()
            here = Out.over(arrived, requests, width, top)
            made = None if top is None else Reports(here.numbers, here.ranks)
            return Outcome(here.token_ids, here.num_tokens, here.status.int(), made)

        return finish

    def launch(self, logits: torch.Tensor, rows: Rows, top: int | None) -> Prepared:
        """Draw for all rows; nothing is checked. top: alternatives to report at most; None: nobody asks for a report."""
        prepared = self.prepare(logits, rows, top)
        self.draw(prepared)
        return prepared

    def prepare(self, logits: torch.Tensor, rows: Rows, top: int | None) -> Prepared:
        """Bring the step's numbers to the device, and what has changed of its slots."""
        logits = readable(logits)
        if logits.data_ptr() % 16:  # kernels would be compiled anew, and sum in another order
            logits = logits.clone()
        apart, owners = self.apart(rows), rows.slot.tolist()
        elsewhere = {owners[int(rows.start[i])] for i in apart}
        amendments: list[int] = []
        for owner in dict.fromkeys(owners):
            if owner in elsewhere:
                self._leave(owner)
            else:
                amendments += self._follow(owner)
        columns = self._columns(rows, owners)
        parts = [columns.flatten(), rows.start, torch.tensor(amendments, dtype=torch.int64)]
        each, start, changes = together(parts, self.device)
        work, tables = self.space.room(rows.num_rows), self.state.tables
        masks = (
            tables.touched if rows.masks is None else there(rows.masks, self.device)
        )  # an address where none is read
        proposals = work.x if rows.proposals is None else there(rows.proposals, self.device)
        of = dict(zip(COLUMNS, each.view(columns.shape), strict=True))
        step = Step(logits, logits.stride(0), logits.shape[1], start=start, masks=masks, proposals=proposals, **of)
        out = Out.room(rows.num_requests, rows.width, top, self.device)
        with torch.cuda.device_of(logits):
            self.state.amend(changes)
        masked = [False] * rows.num_rows if rows.mask is None else (rows.mask >= 0).tolist()
        scans = frozenset(mask or not self._lean(owner) for owner, mask in zip(owners, masked, strict=True))
        return Prepared(step, tables, work, out, rows.num_rows, scans, rows.width > 1, top is not None, apart)

    def draw(self, prepared: Prepared) -> None:
        """Launch the kernels; as often as one likes, while no slot changes, and the same each time: also out of a CUDA graph."""
        if prepared.rows:
            with torch.cuda.device_of(prepared.step.logits):
                run(
                    prepared.step, prepared.tables, prepared.work, prepared.out, prepared.rows,
                    scans=prepared.scans, drafts=prepared.drafts, reports=prepared.reports,
                )  # fmt: skip

    def _columns(self, rows: Rows, owners: list[int]) -> torch.Tensor:
        """int64 [9, R or one more], as COLUMNS names them."""
        n = rows.num_rows
        columns = torch.full((len(COLUMNS), even(n)), -1, dtype=torch.int64)
        of = dict(zip(COLUMNS, columns[:, :n], strict=True))
        of["slot"].copy_(rows.slot)
        of["source"].copy_(rows.source)
        of["position"].copy_(rows.position)
        of["draft"].copy_(rows.draft)
        of["rule"].fill_(EXACT)
        of["before"].zero_()
        of["dense"].fill_(rows.proposals is not None)
        if rows.mask is not None:
            of["mask"].copy_(rows.mask)
        for row, owner in enumerate(owners):
            if (forced := self.slots[owner].forced) is not None:
                of["forced"][row] = forced
        if rows.width > 1:
            counts = rows.start.diff()
            of["before"].copy_(torch.arange(n) - rows.start[:-1].repeat_interleave(counts))
            if rows.rule is not None:
                greedy = torch.tensor([self.slots[owner].params.greedy for owner in owners])
                rule = rows.rule.long().repeat_interleave(counts)
                rejection = RULES.index("rejection")
                if rows.proposals is None:  # of one-hot drafts block verification is rejection, row by row
                    rule = torch.where(rule == BLOCK, rejection, rule)
                rule = torch.where(greedy | (of["forced"] >= 0) | (counts.repeat_interleave(counts) == 1), EXACT, rule)
                of["rule"].copy_(rule)
        return columns

    def _lean(self, owner: int) -> bool:
        seen = self.seen[owner]
        return seen is None or seen.lean

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
        counted = slot.history.follow() if slot.history is not None and slot.history.counts is not None else set()
        known = seen if seen is not None and seen.program is program else None
        if known is not None and known.edits is edits:
            return self._amendments(owner, counted, known.entries) if counted else []
        entries = Entries.of(edits)
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

    def _amendments(self, owner: int, ids: set[int], entries: Entries) -> list[int]:
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
    slots.join(0, SamplingParams(logprobs=1, presence_penalty=0.5, logit_bias={0: 1.0}), key=1, prompt=[0])
    slots.join(1, SamplingParams(top_p=0.9), key=2, prompt=[0])
    gpu, logits = OnGPU(slots, device), torch.zeros((3, vocab), dtype=dtype, device=device)
    for rows in (Rows.plain([0, 1], [0, 1], [1, 1]), Rows.drafted([0, 1], [1, 1], [[0], []])):
        gpu.fetch(gpu.launch(logits, rows, 1).out, 1)()
    guide_rows(logits, torch.tensor([0]), torch.tensor([1]), torch.tensor([2.0]), kernel=True)


def bits(high: float, low: float) -> int:
    """Two float32 in an int64."""
    return struct.unpack("<q", struct.pack("<ff", low, high))[0]
