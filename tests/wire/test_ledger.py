"""What waits for a reader: joined, counted in bytes, in each sequence's own order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.params import SamplingParams
from tailrace.wire.ledger import ENTRY_BYTES, ID_BYTES, RIVAL_BYTES, Ledger
from tailrace.wire.messages import Failed, Finished, TokenLogprobs, Tokens


def one(index: int, token: int, with_logprobs: bool) -> Tokens:
    entry = [TokenLogprobs(-float(token), 1, [1, 2], [-1.0, -2.0])] if with_logprobs else None
    return Tokens("id", 1, index, [token], entry)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), min_size=1, max_size=20), st.booleans(), st.booleans()
)
def test_joining_keeps_every_sequences_tokens_and_its_end_behind_them(drawn, with_logprobs, ends):
    account, _ = Ledger().open([1], SamplingParams(n=4), "id", 0, 0.0)
    events = [one(index, token, with_logprobs) for index, token in drawn]
    indices = {index for index, _ in drawn}
    if ends:
        events += [Finished("id", 1, i, "stop") if i % 2 else Failed("id", 1, i, "c", "m") for i in indices]
    for event in events:
        account.add(event)
    each = ID_BYTES + (ENTRY_BYTES + 2 * RIVAL_BYTES if with_logprobs else 0)
    assert account.held == len(drawn) * each
    out = account.take()
    assert (account.held, account.events) == (0, [])
    assert len(out) == len(indices) * (1 + ends)
    for index in indices:
        first, *rest = [event for event in out if event.index == index]
        assert isinstance(first, Tokens)
        wanted = [token for i, token in drawn if i == index]
        assert first.token_ids == wanted
        assert [e.logprob for e in first.logprobs or ()] == [-t for t in wanted] * with_logprobs
        assert [type(event) for event in rest] == [Finished if index % 2 else Failed] * ends


def test_what_was_fetched_is_not_written_to_any_more():
    account, _ = Ledger().open([1], SamplingParams(), "id", 0, 0.0)
    account.add(one(0, 1, False))
    (before,) = account.take()
    account.add(one(0, 2, False))
    assert before.token_ids == [1]
    assert account.take()[0].token_ids == [2]


def test_whoever_is_over_its_bound_is_told():
    ledger, told = Ledger(), []
    account, _ = ledger.open([1], SamplingParams(), "id", 0, 0.0)
    account.max_bytes, account.full = 3 * ID_BYTES, lambda: told.append(account.held)
    for token in range(5):
        ledger.deliver([Tokens("id", account.epoch, 0, [token])])
    assert told == [4 * ID_BYTES, 5 * ID_BYTES]


def test_closing_may_keep_what_has_arrived():
    for keep in (False, True):
        ledger = Ledger()
        account, _ = ledger.open([1], SamplingParams(), "id", 0, 0.0)
        ledger.deliver([Tokens("id", account.epoch, 0, [7])])
        assert ledger.close(account, keep)
        ledger.deliver([Tokens("id", account.epoch, 0, [8])])  # too late
        assert [event.token_ids for event in account.take()] == ([[7]] if keep else [])
