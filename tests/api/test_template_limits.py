"""A conversation for which the model's template takes too much is a 400 of its own: other users' requests, streams and
the event loop never wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from api.harness import Front, LocalClient, front_of, make_tokenizer, saying
from tailrace.base.child_process import ChildLostError, ChildProcess
from tailrace.config import ServerConfig
from tailrace.text.templates.processes import SHARED
from tailrace.text.templates.program import TemplateLimits
from tailrace.text.templates.worker import TemplateJob, TemplateReply
from tailrace.text.tokenizer import Tokenizer

LIMITS = TemplateLimits(cpu_s=0.25, memory_mib=64)
BOMBS = {
    "width": "{{ 'x'.center(n) }}",
    "power": "{{ n ** n }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "words": "{{ lipsum(n=n) }}",
}
TEMPLATE = (
    "".join(f"{{% if bomb == '{name}' %}}{source}{{% endif %}}" for name, source in BOMBS.items())
    + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
USER = [{"role": "user", "content": "Hello"}]
CHAT: dict[str, Any] = {"messages": USER, "max_tokens": 4}
ENDPOINTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/chat/completions": lambda bomb: CHAT | with_bomb(bomb),
    "/v1/responses": lambda bomb: {"input": "Hello", "max_output_tokens": 16} | with_bomb(bomb),
    "/v1/messages": lambda bomb: CHAT | with_bomb(bomb),
    "/tokenize": lambda bomb: {"messages": USER} | with_bomb(bomb),
}
KEYS = ServerConfig(api_keys="one, two")


def with_bomb(bomb: str) -> dict[str, Any]:
    return {"chat_template_kwargs": {"bomb": bomb, "n": 10**9}}


@pytest.fixture(scope="module")
def limited(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("limited")
    make_tokenizer(folder, TEMPLATE)
    return Tokenizer.load(folder, limits=LIMITS)


async def ask(front: Front, key: str, path: str = "/v1/chat/completions", body: dict[str, Any] = CHAT) -> Any:
    return await front.http.post(path, json=body, headers={"authorization": f"Bearer {key}"})


@pytest.mark.few(6)
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_conversation_that_takes_too_much_is_a_400(limited, path, bomb):
    async with front_of(LocalClient(saying(b"Hi")), limited, KEYS) as front:
        bad, other = await asyncio.gather(ask(front, "one", path, ENDPOINTS[path](bomb)), ask(front, "two"))
        after = await ask(front, "one")
    assert bad.status_code == 400
    error, field = bad.json()["error"], "input" if path == "/v1/responses" else "messages"
    assert error["message"] in {
        f"{field}: the model's chat template takes more than {limit}"
        for limit in ("0.25 s of processor time", "64 MiB of memory")
    }
    assert error.get("param", field) == field
    for good in (other, after):
        assert good.json()["choices"][0]["message"]["content"] == "Hi"


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_machine_that_is_too_busy_is_a_503(limited, monkeypatch, path):
    """The process does not answer, though it has used no processor time."""

    def receive(*arguments: Any) -> bytes:
        raise ChildLostError(timeout=True)

    async with front_of(LocalClient(saying(b"Hi")), limited, KEYS) as front:
        with monkeypatch.context() as patched:
            patched.setattr(ChildProcess, "receive", receive)
            busy = await ask(front, "one", path, ENDPOINTS[path]("power"))
        after = await ask(front, "one")
    assert busy.status_code == 503
    assert "the machine is too busy" in busy.json()["error"]["message"]
    assert int(busy.headers["retry-after"]) > 0
    assert after.json()["choices"][0]["message"]["content"] == "Hi"


async def test_a_template_that_runs_delays_its_own_user_alone(limited, monkeypatch):
    """While one user's template runs, another user's conversations are answered."""
    real, entered, leave = SHARED.run, threading.Event(), threading.Event()

    def run(job: TemplateJob, source: str) -> TemplateReply:
        if b"power" in (job.values or b""):
            entered.set()
            assert leave.wait(60)
        return real(job, source)

    monkeypatch.setattr(SHARED, "run", run)
    async with front_of(LocalClient(saying(b"Hi")), limited, KEYS) as front:
        bad = [asyncio.create_task(ask(front, "one", body=CHAT | with_bomb("power"))) for _ in range(2)]
        await front.until(entered.is_set)
        for _ in range(3):
            good = await ask(front, "two")
            assert good.json()["choices"][0]["message"]["content"] == "Hi"
        assert (await front.http.get("/health")).status_code == 200
        assert not any(task.done() for task in bad)
        leave.set()
        assert [answer.status_code for answer in await asyncio.gather(*bad)] == [400] * 2
