"""Hostile requests of every kind that is known (tests/faults/hostile), beside sixteen seeded streams that must come out
as in peace.

Nothing here looks at the clock but for what counts as hanging; what the neighbours' tokens waited is printed, and
`python -m bench.abuse` measures it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from faults.hostile import AREAS, KINDS
from faults.hostile.client import Answer, Attempt, Kind, judge, statuses
from faults.hostile.storm import run, serving

if sys.platform != "linux":
    pytest.skip("looks for processes in /proc", allow_module_level=True)

GROWTH_MIB = 128  # that either process may hold more than before: what allocators keep, and the store of responses


def test_there_are_a_hundred_kinds_of_every_area():
    assert len(KINDS) >= 100
    assert min(map(len, AREAS.values())) >= 20


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Answer(500, b"", b'{"error": {"message": "m", "type": "t", "param": null, "code": "c"}}'), "status 500"),
        (Answer(400, b"", b"no"), "shape"),
        (Answer(400, b"", b'{"error": {"message": "m", "type": "t", "param": null, "code": "c"}}'), "no field"),
        (Answer(400, b"", b'{"error": {"message": "m", "type": "t", "param": "n", "code": "c"}}'), "names"),
        (Answer(200, b"content-type: application/json", b"{"), "no JSON"),
        (Answer(200, b"content-type: text/event-stream", b'data: {"choices": []}\n\n'), "does not end"),
        (
            Answer(200, b"content-type: text/event-stream", b'data: {"error": {"type": "server_error"}}\n\n'),
            "in the middle",
        ),
        (Answer(hung=True), "no answer"),
        (Answer(0), "status 0"),
    ],
)
def test_a_wrong_answer_is_seen(answer: Answer, complaint: str):
    """The judge itself: every fault that it is there for."""
    kind = Kind("planted", lambda chance, i: Attempt(()), statuses(200, 400), "")
    field = "temperature" if complaint == "names" else None
    assert complaint in judge(kind, Attempt((), field=field), answer)[0]


def check(record: dict[str, Any]) -> None:
    """What must hold, whatever was sent."""
    wrong, differences = record.pop("wrong"), record.pop("differences")
    print(json.dumps(record, indent=1, ensure_ascii=False))
    assert not wrong
    assert not differences, "a neighbour was told something else than in peace"
    assert record["rounds"] > 0
    assert record["same_engine"]
    assert not record["health_failed"]


@pytest.mark.long
@pytest.mark.model
def test_one_of_each_kind_hurts_nobody(free_port):
    with serving(free_port()) as server:
        check(run(server, KINDS, variants=1, at_once=4, warm_up=False))


@pytest.mark.model
@pytest.mark.long
def test_a_thousand_hurt_nobody_and_leave_nothing(free_port):
    with serving(free_port()) as server:
        record = run(server, KINDS, variants=7, at_once=4)
        assert record["requests"] > 1000
        check(record)
        before, after = record["memory_before_mib"], record["memory_after_mib"]
        assert all(after[name] - before[name] < GROWTH_MIB for name in before), (before, after)
