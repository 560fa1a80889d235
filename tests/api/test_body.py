"""A body is decoded once; fields that are known but not served are checked and then forgotten."""

from __future__ import annotations

import json

import pytest

from tailrace.api.body import BodyReader
from tailrace.api.schema.completions import COMPLETION_REFUSED, CompletionRequest
from tailrace.errors import ParameterError, RequestError

READER = BodyReader(CompletionRequest, COMPLETION_REFUSED)
ITEMS = 1000


@pytest.fixture
def lenient(monkeypatch) -> list[bytes]:
    """The bodies that took the second, slower way."""
    taken: list[bytes] = []
    slower = BodyReader._decode_lenient
    monkeypatch.setattr(
        BodyReader, "_decode_lenient", lambda self, raw, used: (taken.append(raw), slower(self, raw, used))[1]
    )
    return taken


@pytest.mark.parametrize("more", ["", ',"user":"me"', ',"suffix":null,"metadata":{"a":[1]}', ',"stop_scope":"all"'])
def test_what_is_known_is_read_in_one_pass(lenient, more):
    body = READER.decoded(f'{{"prompt":"x","top_k":3{more}}}'.encode(), ITEMS)
    assert isinstance(body, CompletionRequest)
    assert (body.prompt, body.top_k, lenient) == ("x", 3, [])


def test_nothing_of_what_is_not_served_stays_with_the_request():
    body = READER.decoded(b'{"prompt":"x","user":"me","thinking_token_budget":null}', ITEMS)
    assert [getattr(body, name) for name in ("user", "thinking_token_budget")] == [None, None]


def test_an_unknown_field_is_ignored(lenient, caplog):
    raw = b'{"prompt":"x","of_this_test_alone":1}'
    assert READER.decoded(raw, ITEMS).prompt == "x"
    assert lenient == [raw]
    assert "'of_this_test_alone'" in caplog.text


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (b'{"prompt":"x","suffix":"y"}', ParameterError, 'suffix: not supported; leave it out (or null or "")'),
        (b'{"prompt":"x","suffix":"y","top_k":"3"}', ParameterError, "suffix: not supported"),
        (b'{"prompt":"x","unknown":1,"top_k":"3"}', ParameterError, "top_k: expected `int | null`, got `str`"),
        (b'{"top_k":3}', ParameterError, "prompt: required, but missing"),
        (b'{"prompt":"x"', RequestError, "the body is not valid JSON"),
        (b'{"prompt":"\xff"}', RequestError, "byte 11 is no UTF-8"),
    ],
)
def test_what_is_refused_says_why(raw, error, message):
    with pytest.raises(error) as caught:
        READER.decoded(raw, ITEMS)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "field", "literal"),
    [
        (b"NaN", "", "NaN"),
        (b" -Infinity", "", "-Infinity"),
        (b"Infinity", "", "Infinity"),
        (b"-inf", "", "-inf"),
        (b"nan", "", "nan"),
        (b'{"7": 1.0, "8": NaN}', ".8", "NaN"),
        (b'[1, {"a": [], "b": "x,]"}, [2, -NaN]]', "[2][1]", "-NaN"),
    ],
)
@pytest.mark.parametrize("name", ["temperature", "of_nobody", "suffix", 'a"b'])
def test_what_json_has_no_number_for_names_its_field(value, field, literal, name):
    """Before it: fields of every kind, with braces and quotes in strings."""
    before = json.dumps({"prompt": 'NaN {[,\\" x', "stop": ["}", "]"], "n": 1}).encode()
    with pytest.raises(ParameterError) as caught:
        READER.decoded(before[:-1] + b", " + json.dumps(name).encode() + b": " + value + b"}", ITEMS)
    assert caught.value.param == name + field
    assert str(caught.value) == f"{name + field}: JSON has no {literal}; give a number, or leave the field out"


OTHER_MISTAKES = [b"NaN", b'{"prompt": x}', b'{"prompt": "x", NaN: 3}', b"{NaN: 3}", b'{"prompt": "NaN', b'{"nan": x}']


@pytest.mark.parametrize("raw", OTHER_MISTAKES)
def test_other_mistakes_of_json_name_no_field(raw):
    with pytest.raises(RequestError, match="the body is not valid JSON") as caught:
        READER.decoded(raw, ITEMS)
    assert caught.value.param is None
