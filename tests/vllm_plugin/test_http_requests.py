"""Fields of tailrace's in vLLM's HTTP requests where vLLM reads none: outside of vllm_xargs, and with a beam search."""

from __future__ import annotations

import asyncio
import json
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import crowd  # noqa: F401  (registers the plug-in)
import pytest
from shared_examples import company
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.exceptions import VLLMValidationError

from tailrace.integrations.refusals import IGNORED
from tailrace.integrations.vllm.fallbacks import log
from tailrace.integrations.vllm.http_requests import CHAT, COMPLETION, MESSAGES, OURS, RESPONSES, install_checks
from tailrace.integrations.vllm.refused_fields import EVERYWHERE
from tailrace.integrations.vllm.xargs import OURS as OWN
from tailrace.integrations.vllm.xargs import SHARED

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a"}]},
    COMPLETION: {"prompt": "a"},
    RESPONSES: {"input": "a"},
}
REFUSED = [name for name in EVERYWHERE if name not in SHARED and name != IGNORED]
PASSING: list[dict[str, Any]] = [
    {"foo": 3, "prediction": {"type": "content", "content": "a"}, "safety_identifier": "a"},
    {"dry_multiplier": 0, "dry_base": 2.0, "xtc_probability": None, "mirostat_mode": 0, "typical": 1.0, "tfs": 1},
    {"banned_strings": [], "guidance_scale": 1.0, "top_n_sigma": -1, "min_k": False, "explain": None},
]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OURS, MESSAGES):
        monkeypatch.setattr(name, resolve_name(name))  # as it was, after the test
    install_checks()


def build(kind: str, **fields: Any) -> Any:
    """Return the parameters of vLLM's request with these fields."""
    request = resolve_name(kind).model_validate({"model": "m", **BODIES[kind], **fields})
    return (request.to_beam_search_params if fields.get("use_beam_search") else request.to_sampling_params)(8, {})


@pytest.mark.parametrize("kind", BODIES)
def test_each_field_outside_is_refused_by_name(kind: str) -> None:
    for name in (*OWN, *REFUSED):
        value = 3 if name in REFUSED else company(name)[name]
        with pytest.raises(VLLMValidationError, match=f"{name} has no effect outside of vllm_xargs: ") as caught:
            build(kind, **{name: value})
        assert caught.value.parameter == name
        assert EVERYWHERE.get(name, f"set {name} in vllm_xargs") in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("dry_mutliplier", "dry_multiplier"), ("nsigma", "top_n_sigma"), ("xtcProbability", "xtc_probability")],
)
def test_other_names_of_a_field_are_refused_with_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"{name} has no effect outside of vllm_xargs: set {meant}"):
        build(COMPLETION, **{name: 0.5})


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("fields", PASSING)
def test_what_asks_for_nothing_and_what_others_mean_passes(kind: str, fields: dict[str, Any]) -> None:
    """Some clients send all fields that they know, at neutral values."""
    assert build(kind, **fields).max_tokens == 8


@pytest.mark.parametrize("kind", [CHAT, COMPLETION])
def test_a_beam_search_refuses_what_acts(kind: str) -> None:
    with pytest.raises(VLLMValidationError, match="top_n_sigma can't be had with use_beam_search"):
        build(kind, use_beam_search=True, n=2, vllm_xargs={"top_n_sigma": 1.5})
    with pytest.raises(VLLMValidationError, match="mirostat has no effect outside"):
        build(kind, use_beam_search=True, n=2, mirostat=2)
    for neutral in ({}, {"dry_multiplier": 0, "dry_base": 2.0}, {"theirs": 1}):
        assert build(kind, use_beam_search=True, n=2, vllm_xargs=neutral).beam_width == 2


def ask_messages(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> str:
    """Send a request to Anthropic's endpoint, whose own answer is a word."""

    async def answer(serving: Any, request: Any, raw_request: Any = None) -> str:
        return "answered"

    async def read_body() -> bytes:
        return json.dumps({**BODIES[CHAT], "model": "m", "max_tokens": 3, **fields}).encode()

    monkeypatch.setattr(MESSAGES, answer)
    install_checks()
    request = AnthropicMessagesRequest(model="m", max_tokens=3, **BODIES[CHAT])
    return asyncio.run(resolve_name(MESSAGES)(None, request, SimpleNamespace(body=read_body)))


def test_anthropics_endpoint_refuses_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("dry_multiplier", "set dry_multiplier in vllm_xargs"),
        ("xtcProbability", "set xtc_probability in vllm_xargs"),
        ("banned_strings", "can't take tokens back"),
    ):
        with pytest.raises(VLLMValidationError, match=f"{name} has no effect outside of vllm_xargs: .*{text}"):
            ask_messages(monkeypatch, **{name: 1})
    for passing in (*PASSING, {"vllm_xargs": {"dry_multiplier": 1}}, {"thinking": {"type": "disabled"}, "top_k": 5}):
        assert ask_messages(monkeypatch, **passing) == "answered"


def test_a_request_without_such_names_is_vllms_own() -> None:
    params = build(COMPLETION, temperature=0.5, vllm_xargs={"top_n_sigma": 1.5})
    assert params.extra_args == {"top_n_sigma": 1.5}
    assert params.temperature == 0.5


def test_another_vllm_loses_the_check_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(log, "error", lambda text, *args: logged.append(text % args))
    monkeypatch.delattr(resolve_name(RESPONSES), "to_sampling_params")
    install_checks()
    assert logged == [
        "tailrace checks no names outside of vllm_xargs at OpenAI's endpoints, fields may be lost: this vLLM is built "
        f"differently: there is no {RESPONSES}.to_sampling_params"
    ]
