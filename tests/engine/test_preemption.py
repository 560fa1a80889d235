"""Who is preempted where blocks run out: no more than must be."""

from __future__ import annotations

from tailrace.config import SchedulerConfig
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.scheduler import plan_step
from tailrace.engine.sequence import Phase, Request, Sequence
from tailrace.engine.shares import Share
from tailrace.params import SamplingParams

BLOCK = 4
ALONE = {"": Share()}


def running(cache: BlockCache, arrival: int, length: int, computed: int) -> Sequence:
    """A sequence of so many tokens, of which so many are computed."""
    request = Request(b"", str(arrival), 0, SamplingParams(), (0, arrival), max_len=100)
    sequence = Sequence(request, 0, arrival, 2, list(range(length)), Phase.RUNNING)
    request.sequences.append(sequence)
    cache.reserve(sequence, computed)
    sequence.num_computed = computed
    return sequence


def test_blocks_that_only_victims_share_are_counted():
    """The first one needs a block. The other two, a request with n = 2, share theirs: neither alone frees one."""
    cache = BlockCache(4, BLOCK)
    first, second = running(cache, 0, 2 * BLOCK + 1, 2 * BLOCK), running(cache, 1, 2 * BLOCK, 2 * BLOCK - 1)
    fork = Sequence(second.request, 1, 2, 2, list(second.tokens), Phase.RUNNING)
    second.request.sequences.append(fork)
    cache.fork(second, fork)
    assert cache.num_free == 0
    plan = plan_step([first, second, fork], [], cache, SchedulerConfig(), (8, 512), ALONE)
    assert plan.preempt == [fork, second]
    assert plan.work == [(first, 1)]


def test_a_block_that_another_one_keeps_is_not_counted():
    """The last one has but a prefix of the first, which is not freed with it: the one in the middle must go, too."""
    cache = BlockCache(3, BLOCK)
    first, middle = running(cache, 0, 2 * BLOCK + 1, 2 * BLOCK), running(cache, 1, BLOCK, BLOCK - 1)
    last = running(cache, 2, BLOCK + 1, 0)
    cache.attach(last, first.blocks[:1])
    assert cache.num_free == 0
    plan = plan_step([first, middle, last], [], cache, SchedulerConfig(), (8, 512), ALONE)
    assert plan.preempt == [last, middle]
    assert plan.work == [(first, 1)]
