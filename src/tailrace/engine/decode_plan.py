"""The usual step: each running sequence computes its last token, and there is nothing to decide. Its plan, and the
sequences whose outputs are plain (plain_outputs.py).

The scheduler (scheduler.py) would return the same plan. This module finds it in one pass over the sequences.
"""

from __future__ import annotations

from tailrace.config import SchedulerConfig
from tailrace.engine.host_budget import idle_sequences
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.plan import Plan
from tailrace.engine.sequence import Sequence


def is_plain(sequence: Sequence) -> bool:
    """Return whether a new token needs no more than a look at the ids that end the output, the length and the stop
    strings. It stays so while the sequence has its slot."""
    params, own = sequence.request.params, sequence
    rules = own.bans, own.thinking, own.constraint, own.prediction, own.unconditional, own.walker, params.explain
    costly = bool(params.stop_regex) or params.return_sampling_mask or sequence.request.min_host_s > 0.0
    return not costly and all(rule is None for rule in rules)


def plan_decodes(running: list[Sequence], cache: BlockCache, limits: SchedulerConfig) -> Plan | None:
    """Return the plan in which every sequence computes its last token. None: the scheduler must decide.

    It must decide if a sequence still computes its prompt, still needs logits of its prompt, is one of a pair, waits
    for a mask or rests, or if tokens or blocks do not suffice for all.

    Args:
        running: the sequences that go on. No waiting sequence can be admitted in this step.
    """
    size, references, needed, host_s = cache.block_size, cache.references, 0, 0.0
    for sequence in running:
        computed, blocks = sequence.num_computed, sequence.blocks
        known = len(sequence.tokens)
        if known - computed != 1 or known == sequence.num_prompt or sequence.unconditional is not None:
            return None
        if sequence.wanted is not None and (sequence.wants_rows or sequence.walker is not None):
            return None
        if sequence.constraint is not None and sequence.waits_for_mask:
            return None
        host_s += sequence.host_s
        at = computed // size
        if at == len(blocks) or references[blocks[at]] > 1:
            needed += 1
    if len(running) > limits.max_num_batched_tokens or needed > cache.num_free:
        return None
    budget_s = limits.host_ms / 1e3
    if host_s > budget_s and idle_sequences(running, budget_s):
        return None
    work = [(sequence, 1) for sequence in running]
    return Plan(work=work, spare=limits.max_num_batched_tokens - len(work), decodes=True)
