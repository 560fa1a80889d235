"""One step of the engine: plan → draft → forward → sample → collect.

One driver, `StepDriver.run`, runs the parts in one of two orders. N is a step, N + 1 the next one.

- depth 0: plan N → draft N → start masks of N → forward N → sample N → collect N
- depth 1: sample N → plan N + 1 → draft N + 1 → forward N + 1 → collect N → start masks of N + 1

At depth 1 steps overlap: step N + 1 is launched before the host has processed the samples of step N, or even knows
them. Unknown samples are stored in `Sequence.tokens` as references (in_flight.py). The host waits for them before the
launch if it must know them: if drafts are verified, or if the next step needs drafts. References never outlive a call
of `run`, and no sequence loses its slot or its blocks while references exist.

Everything that decides on a token (history, grammar, bans, forced tokens) is up to date when the token is sampled, so
both depths sample the same tokens. A sequence that did not get the token it was planned on is invalid in the step in
flight. No token is sampled for it, and the step's computation for it does not count. (More than 300 lines: one driver,
and the handling of a step that fails.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from tailrace.engine.batch import Assembled, assemble_batch, assemble_decodes
from tailrace.engine.chunk_size import ChunkSize
from tailrace.engine.device import Device
from tailrace.engine.draft_tokens import Drafts
from tailrace.engine.draws import Masks, begin_draws, build_draws
from tailrace.engine.explanations import keep_rows
from tailrace.engine.in_flight import Drafted, InFlightStep, LaunchedDraws, PreparedDraws, SampledTokens, read_samples
from tailrace.engine.outputs import OutputProcessor
from tailrace.engine.plan import Plan
from tailrace.engine.replay import Replays
from tailrace.engine.scored_rows import take_rows
from tailrace.engine.sequence import Sequence
from tailrace.engine.speculation import DraftCounts
from tailrace.errors import EngineError
from tailrace.sampling import Sampler

log = logging.getLogger(__name__)


class StepDriver:
    """Runs the parts of steps. in_flight: at depth 1, the step whose forward pass runs between two calls of `run`.

    Args:
        new_masks: makes the masks of a step.
    """

    def __init__(
        self, device: Device, sampler: Sampler, outputs: OutputProcessor, new_masks: Callable[[], Masks]
    ) -> None:
        self.device, self.sampler, self.outputs, self._new_masks = device, sampler, outputs, new_masks
        self.lifecycle, self.counters, self.limits = outputs.lifecycle, outputs.counters, outputs.limits
        self.speculator = outputs.lifecycle.speculator
        self.chunks = ChunkSize(self.limits.max_num_batched_tokens, self.limits.prefill_slowdown)
        self._was_timed = True  # the time of the last step has no part of another step
        self.replays = Replays(outputs, sampler, new_masks)
        self.in_flight: InFlightStep | None = None

    def run(self) -> None:
        """Launch a step. Collect the same step at depth 0, and the previous one at depth 1."""
        if self.device.depth:
            launched = self.sample()
            with self._fail_on_interrupt(launched):
                self._launch_next(launched)
            self._prepare_ahead()
            self._advance_replays()
            return
        if self.in_flight is None:  # otherwise an interrupt has left a step
            self._launch_next(None)
        launched = self.sample()
        with self._fail_on_interrupt(launched):
            if launched is not None and self.collect(launched):
                self.speculator.observe(launched.step.assembled.hidden_rows, self.device.runner)
        self._advance_replays()

    def _advance_replays(self) -> None:
        """Continue the walks along earlier outputs."""
        if self.lifecycle.replays:
            with self.counters.time_part("sample"):
                self.replays.step()

    def _launch_next(self, launched: LaunchedDraws | None) -> None:
        """Plan, draft and launch. Then collect the previous step, unless that is done."""
        plan, launched, counts = self.prepare_plan(launched)
        failed = None
        with self.counters.time_part("plan"):
            copies = self.lifecycle.apply(plan)
        if plan.work:
            self.counters.steps += 1
            try:
                self.device.copy_states(self.lifecycle.cache.snapshots.take_copies())
                self.device.copy_blocks(copies)  # first: a drafter may read and write the target's cache
                self.in_flight = self.forward(plan, self.draft(plan, launched, counts), launched)
            except Exception as error:  # a failing model or kernel must not end the engine
                log.exception("step %d failed", self.counters.steps)
                self.lifecycle.cache.snapshots.forget_all()  # perhaps some have not been copied
                failed = error
        if launched is not None:
            self.collect(launched)
        if failed is not None:
            self._fail_step((sequence for sequence, _ in plan.work), failed)

    # ---- plan

    def prepare_plan(self, launched: LaunchedDraws | None) -> tuple[Plan, LaunchedDraws | None, DraftCounts | None]:
        """Return the next plan, the previous step unless it was collected for the plan, and the counts of drafts.

        The counts are None if they were not needed.
        """
        if launched is None:
            return self.lifecycle.schedule_step(self.limits, self.chunks), None, None
        counts: DraftCounts | None = None
        wait = self.must_wait(launched)
        with self.counters.time_part("draft"):
            forced = not wait and self.speculator.expects_forced(launched.sequences)
        launched.assume_accepted()
        plan = self.lifecycle.schedule_step(self.limits, self.chunks)
        if not wait:
            with self.counters.time_part("draft"):
                counts = self.speculator.draft_counts(plan.work)
            wait = plan.spare > 0 and (bool(counts) or forced)  # drafts need free capacity
        if wait:
            launched, plan = self._wait_for_samples(launched, plan)
        if launched is not None and (plan.preempt or not plan.work):  # a preempted sequence must have known tokens only
            self.collect(launched)
            return self.lifecycle.schedule_step(self.limits, self.chunks), None, counts
        return plan, launched, counts

    def must_wait(self, launched: LaunchedDraws) -> bool:
        """Return whether the next step can't be planned on references.

        The number of accepted drafts decides on the positions of all that follows. And a drafter that uses hidden
        states must see them first.
        """
        step = launched.step
        return bool(step.drafts) or not launched.pending or self.speculator.must_observe(step.work)

    def _wait_for_samples(self, launched: LaunchedDraws, plan: Plan) -> tuple[LaunchedDraws | None, Plan]:
        """Wait for the samples, and give the sequences their tokens.

        The tokens are processed once the next step is running, or at once if that step depends on them. Return None for
        the step if its draws have failed.

        Args:
            plan: made on the assumption that all drafts are accepted. Rejected drafts only free capacity. If the plan
                does not hold, another one is returned.
        """
        if not self._fetch_samples(launched):
            return None, self.lifecycle.schedule_step(self.limits, self.chunks)
        now: list[SampledTokens] = []
        later: list[SampledTokens] = []
        with self.counters.time_part("commit"):
            for one in launched.samples or ():
                first = one.must_be_processed_first(self.lifecycle.slots, self.speculator.drafter)
                (now if first else later).append(one)
            self.outputs.process_samples(now, self._is_in_flight)
            for one in later:
                if one.draft.tokens:
                    self.speculator.give_back(one.sequence, one.accepted)
            launched.samples = later
            launched.assume_samples()
        self.speculator.observe(launched.step.assembled.hidden_rows, self.device.runner)
        # A plan leaves out a sequence that has ended. Grammars and bans may have invalidated tokens.
        living = [one.sequence for one in now if one.sequence.slot >= 0]
        moved = any(sequence.constraint is not None or sequence.bans is not None for sequence in living)
        return launched, self.lifecycle.schedule_step(self.limits, self.chunks) if moved else plan

    # ---- draft

    def draft(self, plan: Plan, launched: LaunchedDraws | None, counts: DraftCounts | None) -> Drafted:
        """Make drafts, unless the last tokens are references. counts: those already computed, if any."""
        if launched is not None and launched.samples is None:
            return Drafted({}, 0.0, asked=False)
        start = time.perf_counter()
        with self.counters.time_part("draft"):
            drafts = self.speculator.draft(plan.work, plan.spare, counts)
        return Drafted(drafts, time.perf_counter() - start, asked=bool(counts))

    # ---- forward

    def forward(self, plan: Plan, drafted: Drafted, launched: LaunchedDraws | None) -> InFlightStep:
        """Lay out the batch and launch its forward pass."""
        lengths = self.speculator.lengths
        decodes = plan.decodes or not any(s.prefilling or s.num_output == 0 for s, _ in plan.work)
        with self.counters.time_part("plan"):
            previous = None if launched is None else launched.join_samples()
            assembled = self._assemble(plan, drafted.drafts, previous)
            every = plan.decodes and not drafted.drafts  # all of its sequences sample
            valid = {} if every else {s: s.num_computed + tokens for s, tokens in plan.work}
            valid |= {sequence: len(sequence.tokens) for sequence in assembled.sampling}
            record = lengths.step if decodes else None
            step = InFlightStep(plan.work, drafted.drafts, assembled, Future(), valid, record, since=0.0)
            if self.device.depth == 0:
                step.prepared = self.prepare(step)
        step.since = time.perf_counter()
        if launched is not None and launched.samples is not None and (launched.step.drafts or drafted.asked):
            lengths.record_delay(step.since - launched.arrived_s - drafted.took_s)
        step.logits = self.device.launch(assembled.batch)
        return step

    def _assemble(self, plan: Plan, drafts: Drafts, previous: torch.Tensor | None) -> Assembled:
        """Lay out the batch of a plan. previous: samples that its references name."""
        tables, cache = self.lifecycle.tables, self.lifecycle.cache
        if plan.decodes and not drafts:
            return assemble_decodes(plan.work, tables, cache, previous, self.speculator.observes)
        return assemble_batch(plan.work, drafts, tables, cache, previous)

    # ---- sample

    def sample(self) -> LaunchedDraws | None:
        """Wait for the logits of the step in flight, and begin its draws. None: there is no such step, or it has
        failed."""
        step, self.in_flight = self.in_flight, None
        if step is None:
            return None
        timed = self.counters.time_part
        try:
            with self._time_wait():
                logits = step.logits.result()
            valid = step.select_valid_work()
            if step.assembled.scored:
                with timed("sample"):
                    scored = [rows for rows in step.assembled.scored if step.is_valid(rows.sequence)]
                    self.lifecycle.fail(take_rows(self.lifecycle, scored, logits))
            with timed("mask"):
                prepared = self._ensure_prepared(step)
            with timed("verify" if step.drafts else "sample"):
                begun, failures = begin_draws(self.sampler, prepared.draws, logits)
                self.lifecycle.fail(failures)
                asking = self.lifecycle.explained
                kept = keep_rows(prepared.draws, logits, asking) if asking else {}
                if self.device.depth == 0:  # the host has nothing else to do meanwhile
                    for _, pending in begun:
                        pending.wait()
        except Exception as error:
            log.exception("a step in flight failed")
            self._fail_step((sequence for sequence, _ in step.work), error)
            return None
        except BaseException:  # an interrupt: the step is still under way
            self.in_flight = step
            raise
        with timed("commit"):
            self.lifecycle.mark_computed(valid)
        return LaunchedDraws(step, begun, prepared.masks.errors, kept)

    def prepare(self, step: InFlightStep) -> PreparedDraws:
        """Return the draws of the step's valid sequences, by all that is known now, and start to fill their masks."""
        assembled, masks = step.assembled, self._new_masks()
        sampling = step.select_valid(assembled.sampling)
        draws, failures = build_draws(sampling, step.drafts, assembled.rows, masks)
        self.lifecycle.fail(failures)
        masks.start()
        return PreparedDraws(draws, masks)

    def _prepare_ahead(self) -> None:
        """Prepare the draws of the step in flight. If that fails, `sample` tries again."""
        if self.in_flight is not None:
            try:
                with self.counters.time_part("plan"):
                    self.in_flight.prepared = self.prepare(self.in_flight)
            except Exception:
                log.exception("the draws of step %d could not be prepared", self.counters.steps)

    def _ensure_prepared(self, step: InFlightStep) -> PreparedDraws:
        """Return the prepared draws, with masks filled. Prepare them again if one of their sequences has ended
        since."""
        prepared = step.prepared
        if prepared is not None:
            prepared.masks.wait()
        if prepared is None or not all(step.are_valid(part.sequences) for part in prepared.draws):
            prepared = self.prepare(step)
            prepared.masks.wait()
        return prepared

    # ---- collect

    def collect(self, launched: LaunchedDraws) -> bool:
        """Wait for the samples, unless they have arrived, and process them. False: the draws have failed."""
        if launched.samples is None and not self._fetch_samples(launched):
            return False
        launched.undo_assumptions()
        with self.counters.time_part("commit"):
            self.outputs.process_samples(launched.samples or [], self._is_in_flight)
        return True

    def _fetch_samples(self, launched: LaunchedDraws) -> bool:
        """Wait for the samples. False: the draws have failed, and so have their sequences."""
        step = launched.step
        try:
            with self._time_wait():
                sampled = [(sequences, pending.wait()) for sequences, pending in launched.pending]
        except Exception as error:
            log.exception("the draws of a step failed")
            launched.undo_assumptions()
            self._fail_step([*launched.sequences, *(sequence for sequence, _ in step.work)], error)
            return False
        launched.undo_assumptions()
        launched.arrived_s = time.perf_counter()
        took_s, tokens = launched.arrived_s - step.since, step.assembled.batch.token_ids.numel()
        # A step at depth 1 that samples nothing is waited for in the next step, whose time then includes it.
        timed = bool(launched.pending) or not self.device.depth
        if timed and self._was_timed:
            self.chunks.record(tokens, took_s)
        self._was_timed = timed
        if step.record is not None:
            self.counters.decoded(bool(step.drafts), took_s)
            self.speculator.record_step(tokens, took_s, step.record)
        if self.in_flight is not None:  # its pass begins when this one's samples are there
            self.in_flight.since = launched.arrived_s
        with self.counters.time_part("commit"):
            self.outputs.begin_step()
            launched.samples = read_samples(launched, sampled, self.speculator, self.limits.max_sampling_mask)
        return True

    def _is_in_flight(self, sequence: Sequence) -> bool:
        return self.in_flight is not None and self.in_flight.is_valid(sequence)

    def _time_wait(self) -> AbstractContextManager[None]:
        """Time the wait at depth 1. At depth 0 the parts themselves take the time."""
        return self.counters.time_part("wait") if self.device.depth else nullcontext()

    @contextmanager
    def _fail_on_interrupt(self, launched: LaunchedDraws | None) -> Iterator[None]:
        """If the block is interrupted, fail the step's sequences: they can't continue from a token that is lost."""
        try:
            yield
        except BaseException as error:
            if launched is not None:
                launched.undo_assumptions()
                self._fail_step(launched.sequences, error)
            raise

    def _fail_step(self, sequences: Iterable[Sequence], error: BaseException) -> None:
        """Fail all sequences of a step that failed, and the forks that waited for it. All others continue."""
        self.lifecycle.fail_step(sequences, EngineError(f"the step failed: {type(error).__name__}: {error}"))
