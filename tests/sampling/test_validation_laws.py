"""Whatever the library's functions are given: they work, or raise an error of ours that names the argument; and
afterwards the same step draws the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from tailrace.errors import ParameterError
from tailrace.params import NEUTRAL, SamplingParams
from tailrace.request.options import Grammar, RepetitionDetection, Speculation, ThinkingBudget, Watermark
from tailrace.sampling import Rows, Sampler, SequenceState, Slots, processors
from tailrace.sampling.guidance import guide
from tailrace.sampling.processors import register
from tailrace.sampling.prompt_logprobs import replay
from tailrace.sampling.validation import CALLER_FIELDS
from tailrace.sampling.watermark import detect

V = 40


@pytest.fixture(autouse=True)
def register_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "REGISTERED", dict(processors.REGISTERED))


def test_numbers_and_lists_of_numpy_are_taken_as_pythons_own():
    given = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(7),
        seed=np.uint8(3),
        ignore_eos=np.bool_(True),
        stop_token_ids=range(3),
        allowed_token_ids=np.arange(5),
        logit_bias={np.int64(4): np.float64(1.5)},
        bad_words=[[np.int32(1), 2]],
    )
    own = SamplingParams(
        temperature=0.5,
        top_k=7,
        seed=3,
        ignore_eos=True,
        stop_token_ids=(0, 1, 2),
        allowed_token_ids=(0, 1, 2, 3, 4),
        logit_bias={4: 1.5},
        bad_words=((1, 2),),
    )
    assert given == own
    assert repr(given) == repr(own)
    for wrong in (np.float64("nan"), np.array([0.5]), np.array([]), np.complex64(1j)):
        with pytest.raises(ParameterError, match="temperature"):
            SamplingParams(temperature=wrong)


ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    2,
    V,
    7,
    2**31 + 1,
    2**63,
    2**80,
    0.5,
    -1.5,
    math.nan,
    math.inf,
    1 + 1j,
    "",
    "abc",
    b"ab",
    [],
    [0],
    [-1],
    [V],
    [[0]],
    [[[1]]],
    ["a"],
    [None],
    [1.5],
    [True],
    [2**80],
    (0, 0),
    {},
    {"kind": "kgw", "key": 1},
    {0},
    {"a": 5},
    range(2),
    object(),
    int,
    lambda: 0,
    np.int64(1),
    np.float32(0.5),
    np.array([1]),
    np.array(1.5),
    np.empty((0, 3), dtype=np.int64),
    torch.tensor(1),
    torch.tensor([1, 2]),
    torch.zeros(2, V),
    torch.zeros(2, V, dtype=torch.float64),
    torch.zeros(2, V, dtype=torch.int64),
    torch.zeros(2, V, device="meta"),
    torch.zeros(0),
    torch.zeros(2, V, dtype=torch.complex64),
    SequenceState(forced={0: V}),
    SequenceState(forced={0: 1.5}),  # pyright: ignore[reportArgumentType]
    SequenceState(mask=np.zeros(1, np.uint32)),
    SequenceState(banned={0: {-1}}),
    "\ud800",
    "exact",
    ["exact"],
    SamplingParams(),
]


class Library:
    """A fresh one for each call: slots 0 and 1 are taken, 2 and 3 are not."""

    def __init__(self) -> None:
        self.slots = Slots(4, V)
        self.slots.add(0, SamplingParams(presence_penalty=0.5), key=5, prompt=[1, 2])
        self.slots.add(1, SamplingParams(top_p=0.9), key=6, prompt=[3])
        self.slots.commit([0, 1], [[4, 5], [6]])
        self.logits = torch.randn(4, V, generator=torch.Generator().manual_seed(3))

    def draw(self, rows: Rows) -> list[list[int]]:
        return Sampler(self.slots)(self.logits[: rows.num_rows], rows).tokens()

    def drawn(self) -> list[list[int]]:
        return self.draw(Rows.drafted([0, 1], None, [[3], [8, 9]], source=[0, 1]))


Q = torch.full((2, V), 1 / V)
# function → how it is called, and good arguments, each of which is replaced by every odd one
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Slots": (lambda lib, **a: Slots(**a), {"num_slots": 3, "vocab_size": V}),
    "join": (
        lambda lib, **a: lib.slots.add(**a),
        {
            "slot": 2,
            "params": SamplingParams(),
            "prompt": [1],
            "key": 1,
            "output": [2],
            "eos_token_ids": [3],
            "sequence_state": SequenceState(),
            "handled_by_caller": (),
        },
    ),
    "leave": (lambda lib, **a: lib.slots.remove(**a), {"slot": 1}),
    "[]": (lambda lib, slot: lib.slots[slot], {"slot": 0}),
    "fork": (lambda lib, **a: lib.slots.fork(**a), {"source": 0, "target": 2, "key": 3, "sequence_state": None}),
    "commit": (lambda lib, **a: lib.slots.commit(**a), {"slots": [0, 1], "tokens": [[1], [2, 3]]}),
    "rewind": (lambda lib, **a: lib.slots.rewind(**a), {"slot": 0, "count": 1}),
    "ban": (lambda lib, **a: lib.slots.ban(**a), {"slot": 0, "token": 1}),
    "exclude": (lambda lib, **a: lib.slots.exclude(**a), {"slot": 0, "token": 1}),
    "force": (lambda lib, **a: lib.slots.force(**a), {"slot": 0, "tokens": [1]}),
    "refresh": (lambda lib, **a: lib.slots.refresh_edits(**a), {"slot": 0}),
    "positions": (lambda lib, **a: lib.slots.positions(**a), {"rows": Rows.plain([0], [0])}),
    "plain": (
        lambda lib, **a: lib.draw(Rows.plain(**a)),
        {
            "slot": [0, 1],
            "source": [0, 1],
            "position": [4, 2],
            "mask": [0, 1],
            "masks": torch.full((2, 2), -1, dtype=torch.int32),
        },
    ),
    "counted": (lambda lib, **a: lib.draw(Rows.plain(**a)), {"slot": [0, 1], "source": [0, 1]}),
    "drafted": (
        lambda lib, **a: lib.draw(Rows.drafted(**a)),
        {
            "slot": [0],
            "position": [4],
            "drafts": [[5]],
            "rule": ["rejection"],
            "proposals": Q,
            "source": [0],
            "mask": [-1, -1],
            "masks": torch.full((2, 2), -1, dtype=torch.int32),
            "trusted": False,
        },
    ),
    "trusted": (
        lambda lib, **a: lib.draw(Rows.drafted(**a, trusted=True)),
        {"slot": [0], "position": None, "drafts": [[5]], "proposals": Q},
    ),
    "Rows": (
        lambda lib, **a: lib.draw(replace(Rows.drafted([0], None, [[5]], ["exact"], Q), **a)),
        {field.name: getattr(Rows.drafted([0], None, [[5]], ["exact"], Q), field.name) for field in fields(Rows)},
    ),
    "Sampler": (lambda lib, **a: Sampler(**{"slots": lib.slots} | a), {"slots": Slots(1, V), "backend": "cpu"}),
    "begin": (
        lambda lib, **a: Sampler(lib.slots).begin(**a).wait(),
        {"logits": torch.zeros(1, V), "rows": Rows.plain([0], [0])},
    ),
    "warm_up": (
        lambda lib, **a: Sampler(lib.slots).warm_up(**a),
        {"dtypes": {torch.float32}, "device": torch.device("cpu")},
    ),
    "guide": (lambda lib, **a: guide(**a), {"conditional": Q, "unconditional": Q, "scale": torch.ones(2)}),
    "replay": (lambda lib, **a: replay(**a), {"logits": Q, "tokens": [1, 2], "top": 3}),
    "detect": (
        lambda lib, **a: detect(**a),
        {
            "mark": Watermark(kind="kgw", key=1, scheme="transformers", context=1),
            "tokens": [1, 2, 3, 4, 5],
            "vocab_size": V,
        },
    ),
    "register": (lambda lib, **a: register(**a), {"name": f"door {V}", "processor": lambda row, tokens: None}),
    **{
        f"{kind.__name__} {len(good)}": (lambda lib, record=kind, **a: record(**a), good)
        for kind, good in (
            (
                Watermark,
                {
                    "kind": "synthid",
                    "key": 1,
                    "scheme": "tailrace",
                    "context": 4,
                    "gamma": 0.25,
                    "delta": 2.0,
                    "depth": 30,
                    "keys": (),
                },
            ),
            (
                Watermark,
                {
                    "kind": "synthid",
                    "scheme": "transformers",
                    "keys": (1, 2),
                    "sampling_table_size": 64,
                    "sampling_table_seed": 0,
                    "context_history_size": 10,
                },
            ),
            (
                Grammar,
                {
                    "kind": "regex",
                    "source": "a",
                    "whitespace": 2,
                    "after": None,
                    "other_closings": (),
                    "opening_token_ids": ((1, 2),),
                    "entry_token_ids": (3,),
                    "close_in_time": False,
                },
            ),
            (Speculation, {"max_drafts": 2, "rule": "exact"}),
            (RepetitionDetection, {"max_pattern_size": 3, "min_count": 2, "min_pattern_size": 1}),
            (ThinkingBudget, {"max_tokens": 3, "span": ("<", ">"), "closing_token_ids": (1,), "tool_format": ""}),
        )
    },
}
PUT = [(name, argument) for name, (_, good) in CALLS.items() for argument in good]


@pytest.mark.few(20)
@pytest.mark.parametrize(("name", "argument"), PUT, ids=lambda part: str(part))
def test_it_works_or_an_error_of_ours_names_the_argument(name, argument):
    call, good = CALLS[name]
    before = Library().drawn()
    for odd in ODD:
        library = Library()
        error = refusal(lambda: call(library, **good | {argument: odd}))  # noqa: B023, called at once
        if error is not None:
            param = error.param or "none"
            assert named(param, argument) or param in str(error), f"{odd!r}: {error}"
            assert library.drawn() == before, f"{odd!r}: {error}"


def refusal(call: Callable[[], object]) -> ParameterError | None:
    """What is raised, if it is that; anything else fails the test."""
    try:
        call()
    except ParameterError as error:
        return error
    return None


def named(param: str, argument: str) -> bool:
    return argument in param or param in argument


def test_every_field_of_a_request():
    for name in NEUTRAL:
        for odd in ODD:
            error = refusal(lambda: ask(name, odd))  # noqa: B023, called at once
            assert error is None or error.param, error


def ask(name: str, odd: Any) -> None:
    library, params = Library(), SamplingParams(**{name: odd})
    library.slots.add(2, params, prompt=[1], handled_by_caller=[name] if name in CALLER_FIELDS else ())
    library.draw(Rows.plain([2], [0]))
