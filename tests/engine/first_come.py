"""The order of the scheduler before users had shares: first come, first served. A single user still gets its plans."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.config import SchedulerConfig
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.parts import (
    count_work_blocks,
    fit_parts,
    make_work,
    rows_made,
    share_budget,
    share_from,
)
from tailrace.engine.plan import Plan
from tailrace.engine.sequence import Sequence
from tailrace.engine.wanted_rows import MAX_REPLAYS, MAX_SCORED


class FirstCome:
    """Plans one step."""

    def __init__(
        self, running: list[Sequence], waiting: list[Sequence], cache: BlockCache, limits: SchedulerConfig
    ) -> None:
        self.running, self.waiting, self.cache, self.host_s = running, waiting, cache, limits.host_ms / 1e3
        self.plan, self.alive = Plan(), list(running)
        self.budget, self.rows, self.free = limits.max_num_batched_tokens, MAX_SCORED, cache.num_free

    def make(self, slots: int, chunk: int) -> Plan:
        """Return the plan."""
        for sequence in sorted(self.running, key=lambda sequence: sequence.prefilling):
            if sequence not in self.alive or sequence.waits_for_mask:
                continue
            most = min(self.budget, chunk) if sequence.prefilling else self.budget
            if most == 0:
                break
            tokens = self.advance(sequence, most)
            chunk -= tokens if sequence.prefilling else 0
        if not self.plan.preempt:
            self.admit(slots, min(self.budget, chunk))
        self.plan.spare = self.budget
        return self.plan

    def advance(self, sequence: Sequence, most: int) -> int:
        """Plan a running sequence. Return its tokens."""
        parts = share_budget(sequence, self.cache, most, self.rows)
        if sum(parts) == 0:
            return 0
        need = count_work_blocks(sequence, parts, self.cache)
        while need > self.free and self.alive[-1] is not sequence:
            self.preempt()
        if need > self.free:
            parts = fit_parts(sequence, self.cache, self.free, min(most, self.budget), self.rows)
            if sum(parts) == 0:
                self.preempt()
                return 0
            need = count_work_blocks(sequence, parts, self.cache)
        self.plan.work += make_work(sequence, parts)
        self.budget -= sum(parts)
        self.rows -= rows_made(sequence, parts)
        self.free -= need
        return sum(parts)

    def preempt(self) -> None:
        """Preempt the last sequence."""
        gone = [member for victim in self.plan.preempt for member in victim.pair]
        victim = self.alive.pop()
        self.plan.preempt.append(victim)
        freed = self.cache.count_freed_blocks
        self.free += freed([*gone, *victim.pair]) - freed(gone)
        for member, tokens in [entry for entry in self.plan.work if entry[0] in victim.pair]:
            self.plan.work.remove((member, tokens))
            self.free += self.cache.count_needed_blocks(member, member.num_computed + tokens)
            self.budget += tokens

    def admissible(self) -> Iterator[Sequence]:
        """Yield the waiting sequences that may be admitted."""
        replays = sum(len(sequence.pair) for sequence in self.running if sequence.walker is not None)
        for sequence in self.waiting:
            if sequence.waits_for_mask or sequence.request.compilations:
                continue
            if sequence.walker is not None:
                if replays and replays + len(sequence.pair) > MAX_REPLAYS:
                    continue
                replays += len(sequence.pair)
            yield sequence

    def admit(self, slots: int, chunk: int) -> None:
        """Admit waiting sequences in order while the rest suffices."""
        cache = self.cache
        written = {block for member, _ in self.plan.work if (block := cache.own_block(member)) is not None}
        for sequence in self.admissible():
            need_slots = (1 + len(sequence.forks)) * len(sequence.pair)
            if chunk == 0 or need_slots > slots or (sequence.wants_rows and self.rows == 0):
                return
            cached = [cache.match_prefix(member) for member in sequence.pair]
            found = [block for blocks in cached for block in blocks]
            revived = sum(cache.references[block] == 0 for block in found)
            copied = {block for block in found if block in written}
            whole = sum(cache.blocks_for(len(member.tokens) + 1) for member in sequence.pair)
            need = whole - len(found) + revived + len(copied)
            if need > self.free:
                return
            written -= copied
            computed = [len(blocks) * cache.block_size for blocks in cached]
            parts = share_from(sequence, self.cache, computed, chunk, self.rows)
            self.rows -= rows_made(sequence, [done + part for done, part in zip(computed, parts, strict=True)])
            self.plan.admit.append((sequence, cached))
            self.plan.work += make_work(sequence, parts)
            self.budget -= sum(parts)
            chunk -= sum(parts)
            self.free -= need
            slots -= need_slots
