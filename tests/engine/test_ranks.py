"""The rank of a request orders the waiting requests of its own user, and those of nobody else."""

from __future__ import annotations

from bisect import insort
from concurrent.futures import Future

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.harness import Harness
from tailrace.engine.places import exchange_places
from tailrace.engine.request_setup import Compilations
from tailrace.engine.sequence import Phase, Request, Sequence, make_sort_key
from tailrace.engine.token_bytes import TokenBytes
from tailrace.params import SamplingParams
from tailrace.request.options import Grammar
from tailrace.wire.messages import Owner, Submit


def make_waiting(place: int, user: str, rank: int, priority: int, ran: bool, max_len: int = 9) -> Sequence:
    """A request that waits. ran: it was admitted before, and preempted."""
    request = Request(b"", str(place), 0, SamplingParams(), (priority, place), max_len, owner=Owner(b"", user, rank))
    request.queued_s = 1.0 if ran else None
    request.sequences.append(Sequence(request, 0, 0, 1, [1], Phase.WAITING))
    return request.sequences[0]


ASKED = st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.integers(0, 1), st.booleans())


@given(st.lists(ASKED, max_size=20))
def test_users_keep_their_places_and_order_their_own(asked: list[tuple[str, int, int, bool]]):
    """Against the same requests in the order of (priority, arrival): each place has a request of the same user."""
    waiting: list[Sequence] = []
    for place, one in enumerate(asked):
        sequence = make_waiting(place, *one)
        ran, sequence.request.queued_s = sequence.request.queued_s, None
        insort(waiting, sequence, key=make_sort_key)
        exchange_places(waiting, sequence.request)
        sequence.request.queued_s = ran
        assert waiting == sorted(waiting, key=make_sort_key)
    plain = [make_waiting(place, *one).request for place, one in enumerate(asked)]
    plain.sort(key=lambda request: request.order)
    requests = [sequence.request for sequence in waiting]
    assert [(r.order, r.owner.user) for r in requests] == [(r.order, r.owner.user) for r in plain]
    for user in "abc":
        for priority in (0, 1):
            own = [r for r in requests if (r.owner.user, r.order[0]) == (user, priority)]
            if not any(r.queued_s for r in own):
                assert [(r.owner.rank, int(r.id)) for r in own] == sorted((r.owner.rank, int(r.id)) for r in own)


def costs_before(waiting: list[Sequence], user: str) -> list[int]:
    """For each request of other users, the tokens of all requests before it."""
    return [
        sum(other.request.most_tokens for other in waiting[:place])
        for place, one in enumerate(waiting)
        if one.request.owner.user != user
    ]


@given(st.lists(st.tuples(ASKED, st.sampled_from((2, 9, 100))), max_size=20))
def test_no_exchange_puts_more_work_before_another_user(asked: list[tuple[tuple[str, int, int, bool], int]]):
    waiting: list[Sequence] = []
    for place, (one, max_len) in enumerate(asked):
        sequence = make_waiting(place, *one, max_len)
        insort(waiting, sequence, key=make_sort_key)
        before = costs_before(waiting, one[0])
        exchange_places(waiting, sequence.request)
        assert all(now <= then for now, then in zip(costs_before(waiting, one[0]), before, strict=True))


def test_a_cheap_request_keeps_no_place_for_an_expensive_one():
    """A's expensive request may pass A's cheap one, but not B's request between them."""
    waiting = [make_waiting(0, "a", 0, 0, False, 2), make_waiting(1, "b", 0, 0, False)]
    waiting += [make_waiting(2, "a", 0, 0, False, 2), make_waiting(3, "a", -9, 0, False, 100)]
    exchange_places(waiting, waiting[3].request)
    assert [sequence.request.id for sequence in waiting] == ["0", "1", "3", "2"]


def finish_order(asks: list[tuple[str, int]]) -> list[str]:
    """The order in which requests of (user, rank) end, one at a time, submitted at once."""
    harness = Harness(max_num_seqs=1)
    for place, (user, rank) in enumerate(asks):
        params = SamplingParams(temperature=0.0, max_tokens=2)
        harness.engine.submit(Submit(f"{user}{place}", 0, [1], params, owner=Owner(b"", user, rank)))
    order: list[str] = []
    while harness.engine.has_work:
        harness.step()
        order += [name[0] for name, story in harness.stories.items() if story.end and name[0] not in order]
    return order


def test_an_urgent_request_overtakes_its_own_users_requests_alone():
    asks = [("a", 0), ("b", 0), ("a", 0), ("b", 7), ("a", -9)]
    assert finish_order(asks) == ["a4", "b1", "a0", "b3", "a2"]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), st.integers(0, 6))
def test_no_rank_delays_another_user(ranks: list[int], before: int):
    """B's request ends behind as many of A's as without ranks."""
    asks = [("a", rank) for rank in ranks]
    asks.insert(min(before, len(asks)), ("b", 0))
    plain = [name[0] for name in finish_order([(user, 0) for user, _ in asks])]
    assert [name[0] for name in finish_order(asks)] == plain
    assert "b" in plain[:2], "A's other requests wait for it"


def test_without_a_user_nothing_is_ordered_by_rank():
    assert finish_order([("", 3), ("", 2), ("", 1)]) == ["0", "1", "2"]


def test_a_grammar_is_compiled_for_the_user_and_under_the_salt_of_its_request():
    asked: list[tuple[object, ...]] = []

    class Recorder:
        def compile(self, *arguments: object) -> Future[object]:
            asked.append(arguments)
            return Future()

    grammar = Grammar(kind="regex", source="a")
    owner = Owner(b"salt", "user", weight=3)
    request = Request(b"", "1", 0, SamplingParams(grammar=grammar), (0, 0), 9, owner=owner)
    Compilations(9, Recorder()).begin(request, TokenBytes())  # type: ignore[arg-type]
    assert asked == [(grammar, "user", b"salt", 3)]
