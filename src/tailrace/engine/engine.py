"""The engine: requests in, messages out, one `step` at a time. It owns the parts: the lifecycle of requests, the
scheduler's limits, the drafter, the sampler, the runner's device. It does no I/O and no HTTP. engine/process.py runs it
as a process, wire/in_process_client.py in yours.

A bad request never raises here: it is answered with a Failed message. A failing step does not raise either: its
sequences fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import count

import torch

from tailrace.base.memory_trim import trim_memory
from tailrace.config import CacheConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.base import Drafter
from tailrace.engine import cache_size
from tailrace.engine.appending import TokenAppender
from tailrace.engine.device import Device, may_overlap_steps
from tailrace.engine.draws import Masks, wait_for_late_mask
from tailrace.engine.ending import Ending, make_failed_message
from tailrace.engine.explanations import record_s
from tailrace.engine.isolation import Isolated
from tailrace.engine.kv_cache import BlockTables
from tailrace.engine.lifecycle import Lifecycle
from tailrace.engine.memory import MemoryLimit
from tailrace.engine.model_memory import allocate_memory, make_cache, plan_states, promised_bytes
from tailrace.engine.outputs import OutputProcessor
from tailrace.engine.request_setup import Compilations, add_sequences
from tailrace.engine.sequence import LIVING, Request, Sequence
from tailrace.engine.speculation import Speculator
from tailrace.engine.stats import Counters
from tailrace.engine.step import StepDriver
from tailrace.engine.token_bytes import TokenBytes
from tailrace.engine.validation import RequestLimits, adapter_number, check_served
from tailrace.errors import RequestError, TailraceError
from tailrace.grammar.service import Grammars
from tailrace.runners.base import ModelRunner
from tailrace.sampling import Sampler, Slots
from tailrace.sampling.pipeline import beyond_device
from tailrace.sampling.watermark_transformers import list_s
from tailrace.text.stop_strings import stop_search
from tailrace.wire.messages import Abort, Aborted, EndThoughts, FromEngine, ModelInfo, Stats, Submit

log = logging.getLogger(__name__)

FALLBACK_S = 0.02  # expected time of a sample that the kernels can't make, before one has been timed
PATIENCE_S = 0.005  # wait per step while nothing runs and grammars compile, or all sequences wait for their masks


class Engine:
    """Continuous batching over one runner. (More than six parameters: each is a part of its own, and four may be left
    out.)

    Args:
        runner: the model.
        info: data of the model for front ends. max_model_len is lowered to the size of the cache.
        token_bytes: the bytes of each token id. Without it strings can't be banned, and only front ends find stop
            strings.
        grammars: compiles and matches. Without it no grammar is served.
        speculation: the settings of drafting.
        drafter: makes the drafter, which may draw with the engine's own sampler.
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
        slots = scheduler.max_num_seqs
        states = plan_states(runner, slots, 0 if drafter is None else speculation.max_drafts, cache)
        blocks = cache_size.num_blocks(cache, runner.block_bytes, slots * per_slot, runner.device, states.num_bytes)
        allocate_memory(runner, blocks, slots, states)
        longest = min(longest, blocks * cache.block_size)
        # a tokenizer may know ids that the head does not
        eos = [i for i in info.eos_token_ids if 0 <= i < runner.vocab_size]
        self.info = ModelInfo(info.name, runner.vocab_size, longest, eos, [*runner.adapters], 0, cache.block_size)
        self.limits = RequestLimits(runner.vocab_size, longest, scheduler, blocks * cache.block_size, cache.block_size)
        self.runner = runner
        self.token_bytes, self.grammars = token_bytes, grammars
        self.cache = make_cache(blocks, slots, states, cache)
        self.slots = Slots(slots, runner.vocab_size)
        sampler = warmed_up(Sampler(self.slots), runner)
        self.counters = Counters()
        tables, made = BlockTables(slots, per_slot), None if drafter is None else drafter(sampler)
        self.speculator = Speculator(made, speculation, self.cache, tables, self.counters, scheduler.host_ms / 1e3)
        self.lifecycle = Lifecycle(self.cache, tables, self.slots, self.speculator, self.counters, grammars)
        promised = promised_bytes(runner, blocks, states, made)
        self.memory_limit = MemoryLimit(int(cache.memory_growth_gib * 2**30), promised)
        appender = TokenAppender(self.slots, self.lifecycle.rewind, scheduler.redraws_per_token)
        outputs = OutputProcessor(self.lifecycle, scheduler, appender, sampler, self.memory_limit)
        masks = partial(Masks, runner.vocab_size, grammars)
        self.steps = StepDriver(device_of(runner, scheduler, self.counters), sampler, outputs, masks)
        self.compilations = Compilations(runner.vocab_size, grammars)
        self.arrivals = count()

    # ---- what front ends ask

    def submit(self, message: Submit, client: bytes = b"") -> None:
        """Accept a request, or queue its Failed."""
        with Isolated("the request could not be accepted", message.id) as attempt:
            if (client, message.id, message.epoch) in self.lifecycle.requests:
                raise RequestError(f"request ({message.id}, {message.epoch}) is already here", "id")
            self.limits.check(message)
            owner, places = message.owner, self.limits.scheduler.max_waiting
            self.lifecycle.shares.check_place(owner.user, places, owner.weight)
            self.memory_limit.check_place(owner)
            check_served(message.params, self.grammars, self.token_bytes)
            stop_search(message.params)  # a pattern that can't be served says so
            self._accept_request(message, client)
        if attempt.error is not None:
            self.refuse(message, attempt.error, client)

    def _accept_request(self, message: Submit, client: bytes) -> None:
        """Add the request to the waiting ones. If an error is raised, nothing has changed."""
        vocab_size = self.limits.vocab_size
        request = Request(
            client,
            message.id,
            message.epoch,
            message.params,
            (message.priority, next(self.arrivals)),
            self.limits.limit_length(message),
            eos_token_ids=tuple(self.info.eos_token_ids),
            adapter=adapter_number(self.runner.adapters, message.adapter),
            owner=message.owner,
            min_host_s=list_s(message.params.watermark, vocab_size) + record_s(message.params, vocab_size),
            replay=message.replay,
            reports_progress=message.reports_progress,
        )
        falls_back = beyond_device(message.params, self.runner.device)
        add_sequences(request, message, self.token_bytes, FALLBACK_S if falls_back else request.min_host_s)
        self.compilations.begin(request, self.token_bytes)
        self.lifecycle.add(request)
        self.memory_limit.add(request)
        self.counters.prompt_tokens += len(
            request.sequences[0].tokens
        )  # with a replay's output, computed like a prompt

    def refuse(self, message: Submit, error: TailraceError, client: bytes = b"") -> None:
        """Answer every sequence of a request with Failed, without accepting the request."""
        for index in range(message.params.n):
            self.lifecycle.outbox[client].append(make_failed_message(message.id, message.epoch, index, error))

    def abort(self, message: Abort, client: bytes = b"") -> None:
        """End the rest of a request or of one of its sequences, then acknowledge. Unknown requests are acknowledged
        too."""
        request = self.lifecycle.requests.get((client, message.id, message.epoch))
        living = [] if request is None else [s for s in request.sequences if s.phase in LIVING]
        chosen = [s for s in living if message.index in (None, s.index)]
        if any(s.forks for s in chosen):
            chosen = living  # forks that wait for a shared prefill end with its sequence
        if chosen:
            log.debug("request %s aborted: %s", message.id, message.cause)
        for sequence in reversed(chosen):  # forks first
            self.lifecycle.end(sequence, Ending("abort"))
        self.lifecycle.outbox[client].append(Aborted(message.id, message.epoch, bool(chosen), message.index))

    def end_thoughts(self, message: EndThoughts, client: bytes = b"") -> None:
        """Close the open thoughts of a request."""
        request = self.lifecycle.requests.get((client, message.id, message.epoch))
        for sequence in [] if request is None else request.sequences:
            if sequence.phase in LIVING and sequence.thinking is not None:
                sequence.thinking.end_thought()

    def abort_client(self, client: bytes) -> None:
        """End all requests of a front end that is gone, without messages."""
        for request in [r for r in self.lifecycle.requests.values() if r.client == client]:
            self.abort(Abort(request.id, request.epoch, "front end gone"), client)
        self.lifecycle.outbox.pop(client, None)

    def fail_all(self, error: TailraceError) -> dict[bytes, list[FromEngine]]:
        """End every sequence, because the engine can't continue. Return the messages due."""
        for request in list(self.lifecycle.requests.values()):
            self.lifecycle.fail_request(request, error)
        return self.lifecycle.take_messages()

    @property
    def requests(self) -> dict[tuple[bytes, str, int], Request]:
        """All requests that have not ended, by their names."""
        return self.lifecycle.requests

    @property
    def waiting(self) -> list[Sequence]:
        """The sequences that wait to be admitted, in order."""
        return self.lifecycle.waiting

    @property
    def running(self) -> list[Sequence]:
        """The sequences that have been admitted, in order."""
        return self.lifecycle.running

    @property
    def has_work(self) -> bool:
        """True if something runs, waits, or is to be sent."""
        lifecycle = self.lifecycle
        return bool(lifecycle.running or lifecycle.waiting or lifecycle.outbox or self.steps.in_flight)

    def step(self) -> dict[bytes, list[FromEngine]]:
        """Run one step. Return all messages due, per client, in order.

        If all requests wait for a grammar, the step waits a little for it.
        """
        lifecycle = self.lifecycle
        self._end_largest()
        if self.compilations.requests:
            idle = len(self.compilations.requests) == len(lifecycle.waiting) and not lifecycle.running
            patience_s = PATIENCE_S if idle and not lifecycle.outbox else 0.0
            for request, error in self.compilations.finish(self.token_bytes, patience_s):
                lifecycle.fail_request(request, error)
        wait_for_late_mask([] if self.steps.in_flight else lifecycle.running, PATIENCE_S)
        if lifecycle.running or lifecycle.waiting or self.steps.in_flight:
            self.steps.run()
        return lifecycle.take_messages()

    def _end_largest(self) -> None:
        """If requests hold more memory than they may, end the one that holds most."""
        if (largest := self.memory_limit.check(self.lifecycle.requests.values())) is not None:
            self.lifecycle.fail_request(*largest)
            del largest
            trim_memory()

    def stats(self) -> Stats:
        """Return the current counters and gauges."""
        lifecycle, slots = self.lifecycle, self.limits.scheduler.max_num_seqs
        numbers = sorted({sequence.request.adapter for sequence in lifecycle.waiting} - {0})
        return self.counters.make_stats(
            running=len(lifecycle.running),
            waiting=len(lifecycle.waiting),
            waiting_adapters=[*filter(None, (self.runner.adapters[number - 1] for number in numbers))],
            slots_total=slots,
            slots_used=slots - len(lifecycle.free_slots),
            blocks_total=self.cache.num_blocks,
            blocks_used=self.cache.num_used,
        )

    def close(self) -> None:
        """End the compilations for good."""
        self.compilations.close()


def warmed_up(sampler: Sampler, runner: ModelRunner) -> Sampler:
    """Return the sampler, its kernels compiled if the runner computes on a GPU."""
    if runner.device.type == "cuda":
        # guided logits are float32
        sampler.warm_up({runner.dtype, torch.float32}, runner.device)
    return sampler


def device_of(runner: ModelRunner, scheduler: SchedulerConfig, counters: Counters) -> Device:
    """Return the device that the runner computes on. The operator or the device decides whether steps overlap."""
    return Device(runner, counters, int(may_overlap_steps(scheduler.overlap, runner)))
