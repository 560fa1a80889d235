"""Keeps the requests, the slot and the blocks of each sequence, and ends sequences.

Only this module allocates and releases slots and blocks. A sequence ends in one place, `end`, with one message to its
client.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice

from tailrace.config import SchedulerConfig
from tailrace.engine.chunk_size import ChunkSize
from tailrace.engine.decode_plan import is_plain, plan_decodes
from tailrace.engine.ending import Ending, make_ending_message
from tailrace.engine.isolation import Isolated
from tailrace.engine.kv_cache import BlockCache, BlockTables, Copies
from tailrace.engine.places import exchange_places
from tailrace.engine.plan import Plan, Work, count_service
from tailrace.engine.scheduler import plan_step
from tailrace.engine.sequence import LIVING, Failures, Phase, Request, Sequence, make_sort_key
from tailrace.engine.shares import Shares
from tailrace.engine.speculation import Speculator
from tailrace.engine.stats import Counters
from tailrace.errors import TailraceError
from tailrace.grammar.service import Grammars
from tailrace.sampling import Slots
from tailrace.sampling.validation import CALLER_FIELDS
from tailrace.wire.messages import FromEngine, PromptProgress


class Lifecycle:
    """The state of all requests.

    - waiting, running: sequences, sorted by priority and arrival.
    - outbox: messages to each client, in order.
    - explained, replays: sequences with a slot that ask for explanations of new tokens, or of earlier ones.
    """

    def __init__(
        self,
        cache: BlockCache,
        tables: BlockTables,
        slots: Slots,
        speculator: Speculator,
        counters: Counters,
        grammars: Grammars | None,
    ) -> None:
        self.cache, self.tables, self.slots = cache, tables, slots
        self.speculator, self.counters, self._grammars = speculator, counters, grammars
        self.free_slots = list(reversed(range(len(slots.slots))))
        self.requests: dict[tuple[bytes, str, int], Request] = {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.shares = Shares()
        self.outbox: defaultdict[bytes, list[FromEngine]] = defaultdict(list)
        self.explained: set[Sequence] = set()
        self.replays: set[Sequence] = set()

    def add(self, request: Request) -> None:
        """Add the request to the waiting ones."""
        self.requests[request.name] = request
        self.shares.enter(request.owner.user, request.owner.weight)
        insort(self.waiting, request.sequences[0], key=make_sort_key)
        if request.owner.user:
            exchange_places(self.waiting, request)

    def admit_sequence(self, sequence: Sequence, cached: list[list[int]]) -> None:
        """Give slots to a waiting sequence, its unconditional one and its forks, and the cached blocks that they start
        from."""
        request = sequence.request
        self.waiting.remove(sequence)
        sequence.advance("admit")
        insort(self.running, sequence, key=make_sort_key)
        for member, blocks in zip(sequence.pair, cached, strict=True):
            self.cache.attach(member, blocks)
            member.num_charged = max(member.num_charged, member.num_computed)
        if request.queued_s is None:
            request.queued_s = time.monotonic() - request.arrived_s
            self.shares.begin(sequence.user)
        sequence.num_admitted = sequence.num_output
        if sequence.num_output == 0:
            sequence.num_cached = sequence.num_computed
            self.counters.cached_tokens += sequence.num_computed
            self._report_progress(sequence)
        for member in (m for s in (sequence, *sequence.forks) for m in s.pair):
            member.slot, member.plain = self.free_slots.pop(), is_plain(member)
            self.tables.clear(member.slot)
            self.tables.write(member)
        for member in sequence.pair:
            self.cache.snapshots.load(member)
        said = sequence if sequence.walker is None else sequence.walker
        said.slot = sequence.slot
        self.slots.add(
            sequence.slot,
            request.sampler_params,
            key=said.key,
            prompt=said.tokens[: said.num_prompt],
            output=said.tokens[said.num_prompt :],
            eos_token_ids=request.eos_token_ids,
            sequence_state=said.sequence_state,
            handled_by_caller=(*CALLER_FIELDS, "seed"),
        )
        for fork in sequence.forks:
            self.slots.fork(sequence.slot, fork.slot, key=fork.key, sequence_state=fork.sequence_state)
        if sequence.walker is not None:
            self.replays.add(sequence)
        elif request.params.explain is not None:
            self.explained.update((sequence, *sequence.forks))

    def schedule_step(self, limits: SchedulerConfig, chunks: ChunkSize) -> Plan:
        """Return the next step, without sequences that end with the token they are about to get."""
        with self.counters.time_part("plan"):
            going = [sequence for sequence in self.running if sequence.tokens_left or sequence.tokens[-1] >= 0]
            # With several users, one may be admitted without a free slot.
            may_admit = self.waiting and (self.free_slots or self.shares.several)
            if not may_admit and (plan := plan_decodes(going, self.cache, limits)) is not None:
                self.shares.level()
                return plan
            decoding = [sequence for sequence in going if not sequence.prefilling]
            prompts = [sequence for sequence in going if sequence.prefilling]
            ready = (sequence for sequence in self.waiting if not sequence.request.compilations)
            prompts += islice(ready, max(len(self.free_slots), self.shares.several))
            decodes, crowd = sum(len(sequence.pair) for sequence in decoding), len(prompts) / max(1, len(decoding))
            if not prompts and decodes <= limits.max_num_batched_tokens:
                self.shares.level()
            left = (self.cache.count_uncached(member) for sequence in prompts for member in sequence.pair)
            chunk = chunks.limit_chunk(decodes, crowd, left) if prompts else chunks.most
            room = (len(self.free_slots), chunk)
            return plan_step(going, self.waiting, self.cache, limits, room, self.shares.read())

    def apply(self, plan: Plan) -> Copies:
        """Carry out the plan: preempt, admit, reserve blocks. Sequences that can't be admitted fail and are removed
        from it.

        Returns the block copies to make before the forward pass.
        """
        for sequence in plan.preempt:
            self.preempt_sequence(sequence)
        for sequence, cached in plan.admit:  # all cached blocks are taken before any fresh one can displace them
            with Isolated("the request could not be begun", sequence.request.id) as attempt:
                self.admit_sequence(sequence, cached)
            if attempt.error is not None:
                self.fail([(sequence, attempt.error)])
        plan.work = [(member, tokens) for member, tokens in plan.work if member.slot >= 0]
        copies: Copies = []
        cache, tables = self.cache, self.tables
        for sequence, tokens in cache.select_changing(plan.work):
            made = cache.reserve(sequence, sequence.num_computed + tokens)
            tables.write(sequence, sequence.num_computed // cache.block_size if made else None)
            copies += made
        return copies

    def mark_computed(self, work: Work) -> None:
        """Count a step's positions as computed, so that they may be reused, and start forks that waited for them."""
        size = self.cache.block_size
        for sequence, tokens in work:
            # A sequence without a slot has failed: its prompt, or that of its conditional sequence, could not be
            # scored.
            if sequence.slot >= 0:
                sequence.num_computed += tokens
                if sequence.num_computed // size > sequence.num_published:
                    self.cache.publish_blocks(sequence)
                if sequence.num_charged < sequence.num_prompt:
                    self._charge_prompt(sequence)
                    self._report_progress(sequence)
        for sequence, _ in work:
            forks = sequence.phase is Phase.RUNNING and sequence.forks
            if forks and not any(member.num_uncomputed for member in sequence.pair):
                self.fork(sequence)

    def _charge_prompt(self, member: Sequence) -> None:
        """Charge the user with the prompt tokens that were computed for the first time."""
        charged = max(member.num_charged, min(member.num_computed, member.num_prompt))
        self.shares.take_turn(member.user, charged - member.num_charged)
        member.num_charged = charged

    def _report_progress(self, member: Sequence) -> None:
        """Tell the client how much of the prompt is computed, if it wants to know."""
        request = member.request
        if request.reports_progress and not member.started and member.is_conditional:
            computed = min(member.num_computed, member.num_prompt)
            self.send(member, PromptProgress(request.id, request.epoch, member.num_cached, computed, member.index))

    def fork(self, leader: Sequence) -> None:
        """Start the forks after the shared prefill. They share its blocks."""
        for fork in leader.forks:
            for source, member in zip(leader.pair, fork.pair, strict=True):
                self.cache.fork(source, member)
                member.num_charged = source.num_charged
                if self.cache.state_rows:
                    self.cache.snapshots.fork(source.slot, member.slot)
                self.tables.write(member)
            fork.num_cached = leader.num_cached
            fork.advance("fork")
            insort(self.running, fork, key=make_sort_key)
            if not fork.samples_with_prefill:
                self.trim_blocks(fork)

    def preempt_sequence(self, sequence: Sequence) -> None:
        """Release the sequence's slot and blocks. The sequence waits to be recomputed."""
        self.running.remove(sequence)
        self.shares.spend_service(sequence.user, count_service(sequence))
        for member in (sequence, *sequence.forks):
            self._release_sequence(member)
        sequence.advance("preempt")
        insort(self.waiting, sequence, key=make_sort_key)
        self.counters.preemptions += 1

    def rewind(self, sequence: Sequence, position: int) -> None:
        """Go back to the output position of the token in which banned text began.

        That token is banned there, or everywhere if it holds the banned text within itself.
        """
        assert sequence.bans is not None
        end = sequence.num_prompt + position
        token, count = sequence.tokens[end], len(sequence.tokens) - end
        for member in sequence.pair:
            del member.tokens[-count:]
        self.trim_blocks(sequence)
        # With bans, only the completion of the withdrawn text can be forced.
        sequence.sequence_state.forced.clear()
        if sequence.constraint is not None:
            sequence.constraint.back_to(sequence.tokens[sequence.num_prompt :])
        sequence.bans.back_to(position)
        self.slots.rewind(sequence.slot, count)
        if sequence.bans.alone and count == 1:
            self.slots.exclude(sequence.slot, token)
        else:
            self.slots.ban(sequence.slot, token)
        self.counters.rewinds += 1

    def trim_blocks(self, sequence: Sequence) -> None:
        """Release the blocks beyond the computed positions. The last token counts as not computed, because computing it
        gives the logits."""
        for member in sequence.pair:
            self.cache.truncate_sequence(member, min(member.num_computed, len(member.tokens) - 1))
            self.tables.cut(member)
            self.cache.publish_blocks(member)

    def send(self, sequence: Sequence, message: FromEngine) -> None:
        """Queue a message to the sequence's client."""
        self.outbox[sequence.request.client].append(message)

    def take_messages(self) -> dict[bytes, list[FromEngine]]:
        """Return the messages due, per client."""
        due, self.outbox = self.outbox, defaultdict(list)
        return dict(due)

    # ---- the one place where sequences end

    def end(self, sequence: Sequence, ending: Ending) -> None:
        """End a sequence: release its slot and blocks, and send its client the reason."""
        assert not sequence.forks, "nobody else can compute the forks' prefill: they end first"
        request, was = sequence.request, sequence.phase
        sequence.advance("finish" if ending.error is None else "fail")
        if was in (Phase.WAITING, Phase.RUNNING):
            (self.waiting if was is Phase.WAITING else self.running).remove(sequence)
        self._release_sequence(sequence)
        self.counters.finished[ending.reason or "error"] += 1
        if request.done:
            del self.requests[request.name]
            if request.queued_s is None:
                self.shares.begin(request.owner.user)
            self.shares.leave(request.owner.user)
            if request.compiling is not None and self._grammars is not None:
                self._grammars.forget(request.compiling)
            request.cancel_compilations()
        self.send(sequence, make_ending_message(sequence, ending))

    def fail(self, failures: Failures) -> None:
        """End these sequences with an error, and the forks that wait for their prefill. Sequences that have ended stay
        as they are."""
        for sequence, error in failures:
            for member in (*sequence.forks, sequence):
                if member.phase in LIVING:
                    self.end(member, Ending(error=error))

    def fail_request(self, request: Request, error: TailraceError) -> None:
        """Fail all sequences of the request that have not ended."""
        self.fail([(sequence, error) for sequence in reversed(request.sequences)])

    def fail_step(self, sequences: Iterable[Sequence], error: TailraceError) -> None:
        """Fail the sequences of a step that failed. All others continue."""
        self.fail([(sequence, error) for sequence in sequences if sequence.is_conditional])

    def _release_sequence(self, sequence: Sequence) -> None:
        self.explained.discard(sequence)
        self.replays.discard(sequence)
        if sequence.slot >= 0 and self.slots.slots[sequence.slot] is not None:  # None: the sequence could not be added
            self.slots.remove(sequence.slot)
            self.speculator.remove(sequence.slot)
        for member in sequence.pair:
            if member.slot >= 0:
                self.free_slots.append(member.slot)
                member.slot = -1
            self.cache.release(member)
