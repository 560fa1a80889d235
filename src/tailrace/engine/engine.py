"""The engine: requests in, messages out, one `step` at a time. Owns every request, slot and block, and gives all of them
back in one place (`_end`). No I/O, no text; engine/process.py runs it as a process, wire/in_process_client.py in yours.

A bad request never raises here: it is answered with a Failed message. Neither does a failing step: the sequences in it fail.
"""

from __future__ import annotations

import logging
import time
from bisect import insort
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import count

import torch

from tailrace.config import CacheConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.base import Drafter
from tailrace.engine import ahead, cache_size
from tailrace.engine.batch import BlockTables
from tailrace.engine.checks.banned_strings import Bans
from tailrace.engine.device import Device, overlaps
from tailrace.engine.draws import Masks, wait_where_all_do
from tailrace.engine.equip import constrain, watch
from tailrace.engine.isolation import alone
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.memory import Growth
from tailrace.engine.outputs import Spent
from tailrace.engine.sequence import LIVING, Request, Sequence, State
from tailrace.engine.speculation import Speculator
from tailrace.engine.stats import Counters
from tailrace.engine.step import step
from tailrace.engine.token_bytes import TokenBytes
from tailrace.engine.validation import RequestLimits, adapter_number, negative_prompt
from tailrace.errors import ParameterError, RequestError, TailraceError
from tailrace.grammar.service import BitmaskFilling, Grammars
from tailrace.params import SamplingParams
from tailrace.runners.base import ModelRunner
from tailrace.sampling import Sampler, Slots, request_key
from tailrace.sampling.pipeline import beyond_device
from tailrace.sampling.validation import ELSEWHERE
from tailrace.sampling.watermark_transformers import list_s
from tailrace.text.stop_strings import stop_search
from tailrace.wire.messages import Abort, Aborted, Failed, Finished, FinishReason, FromEngine, ModelInfo, Stats, Submit

log = logging.getLogger(__name__)

APART_S = 0.02  # that a draw beyond the kernels takes, before it is known
PATIENCE_S = 0.005  # while nothing runs and grammars are being compiled, or all wait for their masks


class Engine:
    """Continuous batching over one runner.

    Args:
        runner: the model. info: what front ends are told of it; max_model_len is lowered to what the cache holds.
        token_bytes: what each token id spells; without it strings can't be banned, and only front ends find stop strings.
        grammars: compiles and matches; without it no grammar is served.
        speculation: how sequences guess ahead. drafter: makes who guesses, which may draw with the engine's own sampler.
    """

    def __init__(
        self,
        runner: ModelRunner,
        info: ModelInfo,
        cache: CacheConfig,
        scheduler: SchedulerConfig,
        token_bytes: TokenBytes = TokenBytes(),  # noqa: B008, it is frozen
        grammars: Grammars | None = None,
        speculation: SpeculationConfig = SpeculationConfig(),  # noqa: B008, it is frozen
        drafter: Callable[[Sampler], Drafter] | None = None,
    ) -> None:
        longest = min(x for x in (info.max_model_len, runner.max_model_len, scheduler.max_model_len) if x)
        per_slot = -(-longest // cache.block_size)
        device = getattr(runner, "device", None)
        blocks = cache_size.num_blocks(cache, runner.block_bytes, scheduler.max_num_seqs * per_slot, device)
        runner.allocate(blocks)
        longest = min(longest, blocks * cache.block_size)
        # a tokenizer may know ids that the head does not
        eos = [i for i in info.eos_token_ids if 0 <= i < runner.vocab_size]
        self.info = ModelInfo(info.name, runner.vocab_size, longest, eos)
        self.limits = RequestLimits(runner.vocab_size, longest, scheduler, blocks * cache.block_size, cache.block_size)
        self.eos = frozenset(eos)
        self.runner, self.adapters = runner, getattr(runner, "adapters", ())
        self.token_bytes = token_bytes
        self.cache = BlockCache(blocks, cache.block_size, cache.prefix_reuse)
        self.slots = Slots(scheduler.max_num_seqs, runner.vocab_size)
        self.sampler = Sampler(self.slots)
        if device is not None and device.type == "cuda":
            # guided logits are float32
            self.sampler.warm_up({getattr(runner, "dtype", torch.float32), torch.float32}, device)
        self.grammars = grammars
        self.speculator = Speculator(None if drafter is None else drafter(self.sampler), speculation)
        self.tables = BlockTables(scheduler.max_num_seqs, per_slot)
        self.free_slots = list(reversed(range(scheduler.max_num_seqs)))
        self.requests: dict[tuple[bytes, str, int], Request] = {}
        self.compiling: list[Request] = []  # whose grammar or bans are not ready; they wait as well
        self.compiler = ThreadPoolExecutor(1, "bans")
        self.waiting: list[Sequence] = []  # both in order of Request.order
        self.running: list[Sequence] = []
        self.arrivals = count()
        self.counters = Counters()
        held = blocks * runner.block_bytes if device is None or device.type == "cpu" else 0
        self.spent = Spent()  # of this step: see outputs.py
        self.growth = Growth(int(cache.memory_growth_gib * 2**30), held)
        self.device = Device(runner, self.counters) if overlaps(scheduler.overlap, runner) else None
        self.flight: ahead.Flight | None = None  # the step under way, where steps overlap
        self.outbox: defaultdict[bytes, list[FromEngine]] = defaultdict(list)

    # ---- what front ends ask

    def submit(self, message: Submit, client: bytes = b"") -> None:
        """Accept a request, or queue its Failed."""
        with alone("the request could not be taken", message.id, lambda error: self.refuse(message, error, client)):
            if (client, message.id, message.epoch) in self.requests:
                raise RequestError(f"request ({message.id}, {message.epoch}) is already here", "id")
            self.limits.check(message, len(self.waiting))
            if self.growth.over:
                raise self.growth.refusal()
            self._check_served(message.params)
            stop_search(message.params)  # a pattern that can't be served says so
            self._take(message, client)

    def _take(self, message: Submit, client: bytes) -> None:
        """It waits from here on, or nothing has changed and an error is raised."""
        request = Request(
            client,
            message.id,
            message.epoch,
            message.params,
            (message.priority, next(self.arrivals)),
            self.limits.length(message),
            least_s=list_s(message.params.watermark, self.limits.vocab_size),
            adapter=adapter_number(self.adapters, message.adapter),
        )
        beyond = beyond_device(message.params, getattr(self.runner, "device", None))
        likely_s = APART_S if beyond else request.least_s
        for index in range(message.params.n):
            key = request_key(message.params.seed, index)
            state = State.FORKING if index else State.WAITING
            sequence = Sequence(request, index, key, len(message.prompt), list(message.prompt), state, host_s=likely_s)
            if message.params.guided:
                other = negative_prompt(message)
                sequence.companion = Sequence(
                    request, index, key, len(other), other, State.FOLLOWING, scored=len(other)
                )
            watch(sequence, self.token_bytes)
            request.sequences.append(sequence)
        if message.params.grammar is not None and self.grammars is not None:
            request.compiling = self.grammars.compile(message.params.grammar)
        if message.params.bans:
            request.banning = self.compiler.submit(
                Bans.of, message.params, self.token_bytes, self.limits.vocab_size, self.eos
            )
        if request.awaited:
            self.compiling.append(request)
        self.requests[request.name] = request
        insort(self.waiting, request.sequences[0], key=order)
        self.counters.prompt_tokens += len(message.prompt)

    def _check_served(self, params: SamplingParams) -> None:
        """Raise ParameterError for what can't be done without knowing what tokens spell."""
        if params.grammar is not None and self.grammars is None:
            raise ParameterError(
                "grammar: this model is served without a tokenizer that grammars could be matched on", "grammar"
            )
        after = params.grammar is not None and params.grammar.after is not None
        for name, asked in (
            ("banned_strings", params.banned_strings),
            ("banned_regex", params.banned_regex),
            ("thinking_token_budget", params.thinking),
            ("grammar", after),
        ):
            if asked and not self.token_bytes.token_bytes:
                raise ParameterError(f"{name}: the bytes of this model's tokens are not known", name)

    def refuse(self, message: Submit, error: TailraceError, client: bytes = b"") -> None:
        """PeerReply every sequence of a request with Failed, without having accepted it."""
        for index in range(message.params.n):
            self._send(client, failed(message.id, message.epoch, index, error))

    def fail_all(self, error: TailraceError) -> dict[bytes, list[FromEngine]]:
        """The engine can't go on: every sequence ends; returns the messages due."""
        for request in list(self.requests.values()):
            self.fail_request(request, error)
        out, self.outbox = self.outbox, defaultdict(list)
        return dict(out)

    def abort(self, message: Abort, client: bytes = b"") -> None:
        """End what is left of a request or of one of its sequences, then acknowledge; also what is unknown (any more)."""
        request = self.requests.get((client, message.id, message.epoch))
        living = [] if request is None else [s for s in request.sequences if s.state in LIVING]
        chosen = [s for s in living if message.index in (None, s.index)]
        if any(s.workers for s in chosen):
            chosen = living  # the leader of a shared prefill takes along those that wait for it
        if chosen:
            log.debug("request %s aborted: %s", message.id, message.cause)
        for sequence in reversed(chosen):  # workers before the leader
            self.finish(sequence, "abort")
        self._send(client, Aborted(message.id, message.epoch, bool(chosen), message.index))

    def abort_client(self, client: bytes) -> None:
        """A front end is gone: end all its requests and say nothing."""
        for request in [r for r in self.requests.values() if r.client == client]:
            self.abort(Abort(request.id, request.epoch, "front end gone"), client)
        self.outbox.pop(client, None)

    @property
    def has_work(self) -> bool:
        """Something runs, waits, or is to be sent."""
        return bool(self.running or self.waiting or self.outbox or self.flight)

    def step(self) -> dict[bytes, list[FromEngine]]:
        """One step; returns all messages due, per client, in order. Where it can only wait for a grammar, it does so a little."""
        self.growth.look(self)
        if self.compiling:
            self._begin_compiled(PATIENCE_S if len(self.compiling) == len(self.waiting) and not self.running else 0.0)
        wait_where_all_do([] if self.flight else self.running, PATIENCE_S)
        if self.running or self.waiting or self.flight:
            step(self) if self.device is None else ahead.step(self, self.device)
        out, self.outbox = self.outbox, defaultdict(list)
        return dict(out)

    def _begin_compiled(self, timeout_s: float) -> None:
        """Those whose grammar is ready may be admitted; those whose grammar is refused fail."""
        if timeout_s and not self.outbox:
            wait([future for request in self.compiling for future in request.awaited], timeout_s, FIRST_COMPLETED)
        asked, self.compiling = self.compiling, []
        for request in asked:
            if not (futures := request.awaited):  # it has ended
                continue
            if not all(future.done() for future in futures):
                self.compiling.append(request)
                continue
            with alone("grammar", request.id, lambda error, request=request: self.fail_request(request, error)):
                constrain(request, self.token_bytes)

    def close(self) -> None:
        """End what compiles beside the steps, for good."""
        self.compiler.shutdown(wait=False, cancel_futures=True)
        if self.grammars is not None:
            self.grammars.close()

    def fail_request(self, request: Request, error: TailraceError) -> None:
        """All of its sequences that have not ended."""
        for sequence in reversed(request.sequences):
            if sequence.state in LIVING:
                self.fail(sequence, error)

    def fill(self, masks: Masks) -> BitmaskFilling | None:
        """Begin to fill the masks of grammars, on other threads."""
        if not masks.jobs or self.grammars is None:
            return None
        return self.grammars.fill([job for _, job in masks.jobs])

    def filled(self, masks: Masks, filling: BitmaskFilling | None) -> None:
        """Wait until they are, but not long."""
        if filling is not None:
            masks.filled(filling)

    def stats(self) -> Stats:
        """Counters and gauges of now."""
        return self.counters.snapshot(
            running=len(self.running),
            waiting=len(self.waiting),
            slots_total=self.limits.scheduler.max_num_seqs,
            slots_used=self.limits.scheduler.max_num_seqs - len(self.free_slots),
            blocks_total=self.cache.num_blocks,
            blocks_used=self.cache.num_used,
        )

    # ---- what a step does to sequences

    def admit(self, sequence: Sequence, cached: list[list[int]]) -> None:
        """Give a waiting sequence, its companion, and the workers it will fork, slots and the cached blocks they start from."""
        self.waiting.remove(sequence)
        sequence.advance("admit")
        insort(self.running, sequence, key=order)
        for member, blocks in zip(sequence.members, cached, strict=True):
            self.cache.attach(member, blocks)
        if sequence.request.queued_s is None:
            sequence.request.queued_s = time.monotonic() - sequence.request.arrived_s
        if sequence.num_output == 0:
            sequence.cached = sequence.computed
            self.counters.cached_tokens += sequence.computed
        for member in (m for s in (sequence, *sequence.workers) for m in s.members):
            member.slot = self.free_slots.pop()
            self.tables.clear(member.slot)
            self.tables.write(member)
        self.slots.add(
            sequence.slot,
            sequence.request.params,
            key=sequence.key,
            prompt=sequence.tokens[: sequence.num_prompt],
            output=sequence.tokens[sequence.num_prompt :],
            eos_token_ids=self.info.eos_token_ids,
            sequence_state=sequence.sequence_state,
            handled=(*ELSEWHERE, "seed"),
        )
        for sibling in sequence.workers:
            self.slots.fork(sequence.slot, sibling.slot, key=sibling.key, sequence_state=sibling.sequence_state)

    def fork(self, leader: Sequence) -> None:
        """The shared prefill is done: the workers run from here on, sharing its blocks."""
        for sibling in leader.workers:
            for source, member in zip(leader.members, sibling.members, strict=True):
                self.cache.fork(source, member)
                self.tables.write(member)
            sibling.cached, sibling.scored = leader.cached, leader.scored
            sibling.advance("fork")
            insort(self.running, sibling, key=order)
            if not sibling.draws_early:
                self.cut_back(sibling)

    def preempt(self, sequence: Sequence) -> None:
        """Take back everything; it waits to be recomputed."""
        self.running.remove(sequence)
        for member in (sequence, *sequence.workers):
            self._free(member)
        sequence.advance("preempt")
        insort(self.waiting, sequence, key=order)
        self.counters.preemptions += 1

    def rewind(self, sequence: Sequence, position: int) -> None:
        """Something banned is complete: back to the output position of the token that began it, which is banned there, or everywhere
        if it holds what is banned within itself."""
        assert sequence.watch is not None
        end = sequence.num_prompt + position
        token, count = sequence.tokens[end], len(sequence.tokens) - end
        for member in sequence.members:
            del member.tokens[-count:]
        self.cut_back(sequence)
        sequence.sequence_state.forced.clear()  # nothing but a way out of the text that is taken back can be forced with banned strings
        if sequence.constraint is not None:
            sequence.constraint.back_to(sequence.tokens[sequence.num_prompt :])
        sequence.watch.back_to(position)
        self.slots.rewind(sequence.slot, count)
        if sequence.watch.alone and count == 1:
            self.slots.exclude(sequence.slot, token)
        else:
            self.slots.ban(sequence.slot, token)
        self.counters.rewinds += 1

    def cut_back(self, sequence: Sequence) -> None:
        """Give back what it holds of the cache beyond what it has computed. Its last token is not: computing it gives the logits."""
        for member in sequence.members:
            self.cache.truncate(member, min(member.computed, len(member.tokens) - 1))
            self.tables.cut(member)
            self.cache.commit(member)

    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_token_id: int | None = None, cause: str | None = None
    ) -> None:
        """The sequence ends with Finished."""
        request = sequence.request
        self._end(sequence, "finish", reason)
        ended = Finished(request.id, request.epoch, sequence.index, reason, stop_token_id, cause, sequence.drafts)
        self._send(request.client, ended)

    def fail(self, sequence: Sequence, error: TailraceError) -> None:
        """The sequence ends with Failed."""
        request = sequence.request
        self._end(sequence, "fail", "error")
        self._send(request.client, failed(request.id, request.epoch, sequence.index, error))

    def send(self, sequence: Sequence, message: FromEngine) -> None:
        """Queue a message to the sequence's client."""
        self._send(sequence.request.client, message)

    # ---- the one place where things are given back

    def _end(self, sequence: Sequence, event: str, reason: str) -> None:
        assert not sequence.workers, "nobody else can compute the workers' prefill: they end first"
        was = sequence.state
        sequence.advance(event)
        if was in (State.WAITING, State.RUNNING):
            (self.waiting if was is State.WAITING else self.running).remove(sequence)
        self._free(sequence)
        self.counters.finished[reason] += 1
        if sequence.request.done:
            del self.requests[sequence.request.name]
            if sequence.request.compiling is not None and self.grammars is not None:
                self.grammars.forget(sequence.request.compiling)
            sequence.request.wait_no_more()

    def _free(self, sequence: Sequence) -> None:
        if sequence.slot >= 0 and self.slots.slots[sequence.slot] is not None:  # else it could not join
            self.slots.remove(sequence.slot)
            self.speculator.remove(sequence.slot)
        for member in sequence.members:
            if member.slot >= 0:
                self.free_slots.append(member.slot)
                member.slot = -1
            self.cache.release(member)

    def _send(self, client: bytes, message: FromEngine) -> None:
        self.outbox[client].append(message)


def order(sequence: Sequence) -> tuple[int, int, int]:
    """Who goes first: priority, arrival, index."""
    return (*sequence.request.order, sequence.index)


def failed(id: str, epoch: int, index: int, error: TailraceError) -> Failed:
    """The message of an error."""
    return Failed(id, epoch, index, error.code, str(error), getattr(error, "param", None))
