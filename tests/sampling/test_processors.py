"""Custom processors: found by name, given their arguments and the tokens so far; one that fails fails its own
request."""

from __future__ import annotations

import pytest
import torch

from tailrace.errors import ConfigError, ParameterError
from tailrace.kernels.status import OK, PROCESSOR
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots, processors

V = 300


def only(row: torch.Tensor, tokens: list[int], *, id: int) -> None:
    """Whatever is asked for, after the token before it."""
    keep = (id + tokens[-1]) % V
    value = row[keep].clone()
    row.fill_(float("-inf"))
    row[keep] = value


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(processors, "REGISTERED", {})
    processors.load_processors("only=sampling.test_processors:only , double=math:sqrt")


def drawn(fields: list[dict]) -> tuple[list[int], list[int]]:
    slots = Slots(len(fields), V)
    for i, field in enumerate(fields):
        slots.add(i, SamplingParams(**field), key=i, prompt=[5])
    rows = torch.randn(len(fields), V, generator=torch.Generator().manual_seed(1))
    out = Sampler(slots)(rows, Rows.plain(range(len(fields)), range(len(fields)), [1] * len(fields)))
    return out.token_ids[:, 0].tolist(), out.status.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_sees_its_arguments_and_the_tokens(temperature):
    tokens, status = drawn([{"processors": {"only": {"id": 40}}, "temperature": temperature}])
    assert (tokens, status) == ([45], [OK])


def test_one_that_fails_fails_its_own_request_alone():
    alone, _ = drawn([{}, {}, {}])
    tokens, status = drawn([{}, {"processors": {"only": {"wrong": 1}}}, {}])
    assert status == [OK, PROCESSOR, OK]
    assert [tokens[0], tokens[2]] == [alone[0], alone[2]]


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"temperature": 0.0}, False),
        ({"temperature": 0.0, "allowed_token_ids": [7, 9]}, False),
        ({"temperature": 0.0, "logprobs": 2}, False),
        ({"temperature": 0.0, "logprobs": 2, "logprobs_mode": "processed"}, True),
        ({"temperature": 0.0, "presence_penalty": 0.5}, True),
        ({"temperature": 1.0}, True),
    ],
)
@pytest.mark.parametrize("says", [True, False])
def test_one_that_keeps_the_argmax_is_not_called_where_only_that_counts(fields, called, says):
    calls = []

    def cooler(row: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        calls.append(tokens)
        return row / 2

    cooler.keeps_argmax = says  # type: ignore[attr-defined]
    processors.register("cooler", cooler)
    tokens, status = drawn([fields | {"processors": {"cooler": {}}}])
    assert status == [OK]
    assert bool(calls) == (called or not says)
    if fields["temperature"] == 0.0:
        assert tokens == drawn([fields])[0]


def test_all_must_keep_the_argmax():
    def keeps(row: torch.Tensor, tokens: list[int]) -> None:
        row.mul_(2)

    keeps.keeps_argmax = True  # type: ignore[attr-defined]
    processors.register("keeps", keeps)
    assert drawn([{"temperature": 0.0, "processors": {"keeps": {}, "only": {"id": 40}}}])[0] == [45]
    assert drawn([{"temperature": 0.0, "processors": {"only": {"id": 40}, "keeps": {}}}])[0] == [45]


def test_unknown_names_and_bad_settings_are_refused():
    with pytest.raises(ParameterError, match='there is no "nobody"'):
        drawn([{"processors": {"nobody": {}}}])
    for spec in ("x", "x=nowhere:f", "x=math:nothing", "only=math:sqrt", "=math:sqrt"):
        with pytest.raises(ConfigError, match="processors"):
            processors.load_processors(spec)
