"""What waits for a reader: joined, counted in bytes, in each sequence's own order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.explain.record import Draw, Explanation, ModelView
from tailrace.params import SamplingParams
from tailrace.wire.messages import Failed, Finished, TokenLogprobs, Tokens, encoder, from_engine
from tailrace.wire.stream_table import ALTERNATIVE_BYTES, ENTRY_BYTES, ID_BYTES, StreamTable, record_bytes


def one(index: int, token: int, with_logprobs: bool) -> Tokens:
    entry = [TokenLogprobs(-float(token), 1, [1, 2], [-1.0, -2.0])] if with_logprobs else None
    return Tokens("id", 1, index, [token], entry)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), min_size=1, max_size=20), st.booleans(), st.booleans()
)
def test_joining_keeps_every_sequences_tokens_and_its_end_behind_them(drawn, with_logprobs, ends):
    open_stream, _ = StreamTable().add_stream([1], SamplingParams(n=4), "id", 0, 0.0)
    events = [one(index, token, with_logprobs) for index, token in drawn]
    indices = {index for index, _ in drawn}
    if ends:
        events += [Finished("id", 1, i, "stop") if i % 2 else Failed("id", 1, i, "c", "m") for i in indices]
    for event in events:
        open_stream.add(event)
    each = ID_BYTES + (ENTRY_BYTES + 2 * ALTERNATIVE_BYTES if with_logprobs else 0)
    assert open_stream.held == len(drawn) * each
    out = open_stream.take()
    assert (open_stream.held, open_stream.events) == (0, [])
    assert len(out) == len(indices) * (1 + ends)
    for index in indices:
        first, *rest = [event for event in out if event.index == index]
        assert isinstance(first, Tokens)
        wanted = [token for i, token in drawn if i == index]
        assert first.token_ids == wanted
        assert [e.logprob for e in first.logprobs or ()] == [-t for t in wanted] * with_logprobs
        assert [type(event) for event in rest] == [Finished if index % 2 else Failed] * ends


def test_what_was_fetched_is_not_written_to_any_more():
    open_stream, _ = StreamTable().add_stream([1], SamplingParams(), "id", 0, 0.0)
    open_stream.add(one(0, 1, False))
    (before,) = open_stream.take()
    open_stream.add(one(0, 2, False))
    assert before.token_ids == [1]
    assert open_stream.take()[0].token_ids == [2]


def test_whoever_is_over_its_bound_is_told():
    streams, told = StreamTable(), []
    open_stream, _ = streams.add_stream([1], SamplingParams(), "id", 0, 0.0)
    open_stream.max_bytes, open_stream.full = 3 * ID_BYTES, lambda: told.append(open_stream.held)
    for token in range(5):
        streams.deliver_messages([Tokens("id", open_stream.epoch, 0, [token])])
    assert told == [4 * ID_BYTES, 5 * ID_BYTES]


def test_closing_may_keep_what_has_arrived():
    for keep in (False, True):
        streams = StreamTable()
        open_stream, _ = streams.add_stream([1], SamplingParams(), "id", 0, 0.0)
        streams.deliver_messages([Tokens("id", open_stream.epoch, 0, [7])])
        assert streams.close(open_stream, keep)
        streams.deliver_messages([Tokens("id", open_stream.epoch, 0, [8])])  # too late
        assert [event.token_ids for event in open_stream.take()] == ([[7]] if keep else [])


def test_records_of_why_tokens_came_are_joined_and_counted():
    model, draw = ModelView([1.0], [1.0], [1], 0.0, 0.0), Draw([1.0], [0.0], [1.0], 5)
    records = [Explanation(i, 3 + i, "0" * 16, 5, "drawn", [5], model, [], [], draw, [""]) for i in range(3)]
    open_stream, _ = StreamTable().add_stream([1], SamplingParams(), "id", 0, 0.0)
    for record in records:
        open_stream.add(Tokens("id", 1, 0, [5], explanations=[record]))
    assert open_stream.held == 3 * (ID_BYTES + record_bytes(records[0]))
    [event] = open_stream.take()
    assert event.explanations == records
    assert from_engine.decode(encoder.encode([event])) == [event]
