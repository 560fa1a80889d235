"""A GPU's kernels as a backend: it copies the slots' changes to the device and launches the kernels.

Nothing waits for the device until a caller reads the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tailrace import _cpu
from tailrace.kernels.constants import REPORTED, SURVIVORS
from tailrace.kernels.gpu.propose import PARTS
from tailrace.kernels.gpu.state import Tables
from tailrace.kernels.gpu.step import GPUStep, Launch, Out, StepReports, Workspace, copy_candidates, run
from tailrace.kernels.needs import SlotNeeds, check_rows
from tailrace.kernels.output import KernelOutput, SamplingMask
from tailrace.kernels.proposals import ProposalTensor, Proposed, addresses
from tailrace.kernels.rows import Rows
from tailrace.kernels.transfer import there
from tailrace.kernels.types import readable
from tailrace.params import SamplingParams
from tailrace.sampling.backends.base import Pending, Sampled, drafted_requests
from tailrace.sampling.backends.device_slots import DeviceSlots
from tailrace.sampling.backends.gpu_numbers import NO_PROPOSALS, ProposalColumns, StepNumbers, step_numbers
from tailrace.sampling.backends.reference import fall_back, make_unfilled, refine_rows, replace_requests
from tailrace.sampling.guidance import combine_rows, guide_rows
from tailrace.sampling.logprobs import entries_of
from tailrace.sampling.slots import Slots


class GPUBackend:
    """A backend of the GPU's kernels.

    Args:
        device: the device of the logits; in Triton's interpreter the CPU.
    """

    def __init__(self, slots: Slots, device: torch.device) -> None:
        self.slots, self.device = slots, device
        self.needs = SlotNeeds.of(len(slots.slots))
        self.there = DeviceSlots(slots, device)
        self.space = Workspace(slots.vocab_size, device)

    def add(self, slot: int) -> None:
        self.needs.write(slot, self.slots[slot].program)
        self.there.mark_changed(slot, edits=True)

    def edit(self, slot: int) -> None:
        self.there.mark_changed(slot, edits=True)

    def advance(self, slot: int) -> None:
        self.there.mark_changed(slot, edits=False)

    def remove(self, slot: int) -> None:
        self.needs.clear(slot)
        self.there.mark_changed(slot, edits=True)

    def warm_up(self, dtypes: set[torch.dtype]) -> None:
        for dtype in dtypes:
            compile_all(self.slots.vocab_size, dtype, self.device)
        self.space.reserve(len(self.slots.slots))  # one row per slot; drafts may need more

    def sample(self, logits: torch.Tensor, rows: Rows) -> Pending:
        """Launch the kernels for all rows. Meanwhile the reference sampler draws for the requests that need more than
        the kernels have."""
        logits = readable(logits)
        asked = check_rows(logits, rows, self.needs)
        drafted_requests(self.slots, rows)
        if rows.guidance is not None:
            logits, rows = combine_rows(logits, rows)
        falling = self.falling_back(rows, reports=bool(asked.flags & REPORTED))
        words = -(-logits.shape[1] // 32) if asked.flags & SURVIVORS else 0
        launch = self.prepare(logits, rows, StepReports(asked.top if asked.flags & REPORTED else None, words))
        self.launch_draw(launch)
        ids, again = launch.out.token_ids.view(launch.shape), None
        arrays = launch.out.logprob_arrays(launch.shape, launch.reports)
        survivors = launch.out.survivor_bits(launch.shape, launch.reports)
        if falling:
            again = make_unfilled(rows, launch.reports.top)
            fall_back(self.slots, logits, rows.on_host(), falling, again)
            drawn = (again.token_ids, *(again.logprob_arrays or ()))
            for part, found in zip((ids, *(arrays or ())), drawn, strict=True):
                part[falling] = found[falling].to(logits.device)
            if survivors is not None and again.sampling_mask is not None:
                survivors[falling] = again.sampling_mask.to_words(words).view_as(survivors)[falling].to(logits.device)
        arriving = fetch_output(launch)

        def make_sampled() -> Sampled:
            output = arriving()
            mask = output.sampling_mask
            sampled = Sampled(output.token_ids, output.num_tokens, output.status, output.logprobs, sampling_mask=mask)
            if output.logprobs is not None:
                owners = [self.slots[owner] for owner in rows.owners.tolist()]
                asked = [slot.params if slot.reported else None for slot in owners]
                sampled.make_logprobs = lambda: entries_of(output, asked)
            if again is not None:
                replace_requests(sampled, again, falling)
            return sampled

        return Pending(ids, make_sampled, arrays, survivors)

    def refine(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        logits = readable(logits)
        check_rows(logits, rows, self.needs)
        launch = self.prepare(logits, rows, StepReports())
        self.launch_draw(launch)
        refined = copy_candidates(launch)
        if falling := self.falling_back(rows):
            refined[falling] = refine_rows(self.slots, logits, rows.on_host(), falling).to(self.device)
        return refined

    def serves_drafts(self, slot: int) -> bool:
        return self.there.serves(slot)

    def proposal_memory(self, count: int) -> ProposalTensor:
        return ProposalTensor(count, self.slots.vocab_size, self.device)

    def propose(
        self,
        logits: torch.Tensor,
        rows: Rows,
        noise: Sequence[tuple[int, int]],
        to: Sequence[tuple[ProposalTensor, int]],
    ) -> Proposed:
        logits = readable(logits)
        check_rows(logits, rows, self.needs)
        places = np.array([place.address(row) for place, row in to])
        launch = self.prepare(logits, rows, StepReports(), ProposalColumns(places, noise))
        self.launch_draw(launch)
        out = fetch_output(launch)()
        return Proposed(out.token_ids[:, 0], out.status)

    def falling_back(self, rows: Rows, *, reports: bool = False) -> list[int]:
        """Return the requests that need more than the kernels have. reports: some requests want logprobs, and may name
        tokens."""
        found = self.there.falling_back(rows)
        if not reports:
            return found
        owners = rows.owners.tolist()
        return sorted({*found, *(i for i, owner in enumerate(owners) if self.slots[owner].params.logprob_token_ids)})

    def prepare(
        self,
        logits: torch.Tensor,
        rows: Rows,
        reports: StepReports,
        drafts: ProposalColumns | None = None,
    ) -> Launch:
        """Copy the step's numbers and the slots' changes to the device. Nothing is checked.

        Args:
            drafts: noise of the drafts to draw, and the places for their q; None: no drafts.
        """
        logits, stride = align_logits(logits)
        owners = rows.slot.tolist()
        elsewhere = {owners[int(rows.start[i])] for i in self.there.falling_back(rows)}
        with torch.cuda.device_of(logits):
            amendments = self.there.follow(owners, elsewhere)
        proposals, held = (drafts, ()) if drafts is not None else proposals_of(rows, logits.shape[1], self.device)
        numbers = step_numbers(
            rows,
            self.device,
            proposals=proposals,
            forced=self.there.forced(owners),
            greedy=[] if rows.width == 1 else [self.slots[owner].params.greedy for owner in owners],
            append=amendments,
        )
        if amendments:
            with torch.cuda.device_of(logits):
                self.there.state.amend(numbers.words[numbers.appended : numbers.appended + len(amendments)])
        rich = [not self.there.is_lean(owner) for owner in owners]
        if rows.mask is not None:
            rich = [place >= 0 or wants for place, wants in zip(rows.mask.tolist(), rich, strict=True)]
        launch = launch_of(
            (logits, stride),
            rows,
            numbers,
            self.space,
            tables=self.there.state.tables,
            scans=frozenset(rich),
            reports=reports,
        )
        masses = None if drafts is None else room_for_masses(rows.num_rows, self.device)
        return launch._replace(held=held, masses=masses)

    def launch_draw(self, launch: Launch) -> None:
        """Launch the kernels. While no slot changes, repeated launches give the same result, also from a CUDA graph."""
        launch_kernels(launch)


def proposals_of(rows: Rows, vocab: int, device: torch.device) -> tuple[ProposalColumns, tuple[torch.Tensor, ...]]:
    """Return the places of these drafts' q, and the tensors that must outlive the step."""
    if rows.proposals is None:
        return NO_PROPOSALS, ()
    found, held = addresses(rows.proposals, rows.start.tolist(), vocab, device)
    return ProposalColumns(np.array(found)), tuple(held)


def room_for_masses(rows: int, device: torch.device) -> torch.Tensor:
    """Allocate the memory between the kernels that draw drafts."""
    return torch.empty((rows, PARTS.value), dtype=torch.int64, device=device)


def align_logits(logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the logits as the kernels are compiled for them, and their stride. A drafter's logits may be a part of
    wider rows, for which kernels would be compiled again and would sum in another order."""
    several = logits.shape[0] > 1
    odd = (logits.stride(0) % 16 == 0) != (logits.shape[1] % 16 == 0) or logits.stride(0) >= 1 << 31
    if logits.data_ptr() % 16 or (odd and several):
        logits = logits.clone(memory_format=torch.contiguous_format)
    return logits, logits.stride(0) if several else logits.shape[1]  # a single row's may be 1: a constant


def launch_of(
    logits: tuple[torch.Tensor, int],
    rows: Rows,
    numbers: StepNumbers,
    space: Workspace,
    *,
    tables: Tables,
    scans: frozenset[bool],
    reports: StepReports,
) -> Launch:
    """Return the launch for a step of these rows, whose numbers are on the device. (More than six parameters: two
    callers make these parts differently.)

    Args:
        logits: as `align_logits` returns them.
    """
    device, work = space.device, space.reserve(rows.num_rows)
    # an address that no kernel reads
    masks = tables.touched if rows.masks is None else there(rows.masks, device)
    step = GPUStep(logits[0], logits[1], logits[0].shape[1], numbers.words, numbers.padded, masks)
    shape = (rows.num_requests, rows.width)
    return Launch(step, tables, work, Out.empty(shape, reports, device), rows.num_rows, shape, scans, reports)


def launch_kernels(launch: Launch) -> None:
    """Launch the kernels of a step."""
    if launch.rows:
        with torch.cuda.device_of(launch.step.logits):
            run(launch)


def fetch_output(launch: Launch) -> Callable[[], KernelOutput]:
    """Start to copy the output of a step to the host. Return a function that waits for the copy. The copy uses the
    draws' stream: a separate stream would cost the host more than the copy costs the device."""
    out, (requests, width), reports = launch.out, launch.shape, launch.reports
    if out.all.is_cuda:
        arrived = torch.empty(out.all.shape, dtype=torch.int64, pin_memory=True).copy_(out.all, non_blocking=True)
        done = torch.cuda.current_stream(out.all.device).record_event()
    else:
        arrived, done = out.all.clone(), None

    def wait_for_output() -> KernelOutput:
        if done is not None:
            done.synchronize()
        here = Out.over(arrived, launch.shape, reports)
        made = here.logprob_arrays(launch.shape, reports)
        output = KernelOutput(here.token_ids.view(requests, width), here.num_tokens, here.status.int(), made)
        return output._replace(sampling_mask=read_bits(here.survivors, requests * width, reports.words))

    return wait_for_output


def read_bits(bits: torch.Tensor, tokens: int, words: int) -> SamplingMask | None:
    """Return int32 [tokens · words], on the host, as ids; None if no request needs them."""
    if not words:
        return None
    survivors = _cpu.Survivors(tokens)
    survivors.read(bits.data_ptr(), words)
    return SamplingMask.of(survivors, tokens)


def compile_all(vocab: int, dtype: torch.dtype, device: torch.device) -> None:
    """Compile all kernels that a step may need, so that no request waits for a compilation. The first time on a machine
    it takes a minute. dtype: dtype of the later logits."""
    slots = Slots(2, vocab)
    gpu = GPUBackend(slots, device)
    slots.add_observer(gpu)
    slots.add(0, SamplingParams(logprobs=1, presence_penalty=0.5, logit_bias={0: 1.0}), key=1, prompt=[0])
    slots.add(1, SamplingParams(top_p=0.9, return_sampling_mask=True), key=2, prompt=[0])
    logits = torch.zeros((3, vocab), dtype=dtype, device=device)
    for rows in (Rows.plain([0, 1], [0, 1], [1, 1]), Rows.drafted([0, 1], [1, 1], [[0], []])):
        launch = gpu.prepare(logits, rows, StepReports(1, -(-vocab // 32)))
        gpu.launch_draw(launch)
        fetch_output(launch)()
    memory = gpu.proposal_memory(1)
    gpu.propose(logits, Rows.plain([0], [0], [1]), [(1, 0)], [(memory, 0)])
    guide_rows(logits, torch.tensor([0]), torch.tensor([1]), torch.tensor([2.0]), kernel=True)
