"""At most some requests of one user are prepared at once; another user's request passes those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from api.harness import LocalClient, front_of, saying
from tailrace.api import user_line
from tailrace.api.user_line import MAX_HOLDS, PLACES, UserLine, leave_place
from tailrace.config import ServerConfig

CHAT = "/v1/chat/completions"
RESUMABLE = (CHAT, "/v1/completions")
LONG_S = 3600.0


class Kitchen:
    """An application whose requests are prepared until they are told to go on. begun: their names, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go_on: dict[str, asyncio.Event] = {}
        self.ended: dict[str, asyncio.Event] = {}
        self.waits: list[tuple[str, float]] = []
        self.line = UserLine(self.answer, lambda user, wait_s: self.waits.append((user, wait_s)))
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.clients: dict[str, Client] = {}

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        name = scope["name"]
        while (await receive()).get("more_body"):
            pass
        self.begun.append(name)
        await self.go_on[name].wait()
        leave_place(scope)
        await self.ended[name].wait()

    async def send(self, *names: str, path: str = CHAT, slow: bool = False) -> None:
        """Send requests. The first letter of a name is the user's. slow: the body does not come."""
        for name in names:
            self.go_on[name], self.ended[name] = asyncio.Event(), asyncio.Event()
            scope = {"type": "http", "method": "POST", "path": path, "client": (name[0], 1), "name": name}
            client = self.clients[name] = Client()
            self.tasks[name] = asyncio.create_task(self.line(scope, client.receive, client.receive))
            if not slow:
                client.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await settle()

    async def prepare(self, *names: str) -> None:
        """These requests are prepared."""
        for name in names:
            self.go_on[name].set()
        await settle()

    async def end(self) -> None:
        """All requests are answered, and no place is taken."""
        for name in self.tasks:
            self.go_on[name].set()
            self.ended[name].set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert self.line._line.size == 0  # pyright: ignore[reportPrivateUsage]


class Client:
    """What comes from a client."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()

    async def receive(self, *_: Any) -> Any:
        return await self.messages.get()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def list_names(user: str, count: int) -> list[str]:
    return [f"{user}{place}" for place in range(count)]


@pytest.fixture
def kitchen(monkeypatch: pytest.MonkeyPatch) -> Kitchen:
    """No request gives its place back because of the time."""
    monkeypatch.setattr(user_line, "HOLD_S", LONG_S)
    return Kitchen()


async def test_other_users_pass_those_who_wait(kitchen):
    await kitchen.send(*list_names("a", PLACES + 3))
    assert kitchen.begun == list_names("a", PLACES)
    await kitchen.send("b0", "c0")
    assert kitchen.begun[PLACES:] == ["b0", "c0"]
    await kitchen.end()


async def test_a_prepared_request_gives_its_place_to_the_next(kitchen):
    await kitchen.send(*list_names("a", PLACES + 3))
    await kitchen.prepare("a1")
    assert kitchen.begun[PLACES:] == [f"a{PLACES}"]
    await kitchen.prepare("a0", "a2")
    assert kitchen.begun == list_names("a", PLACES + 3)
    await kitchen.end()


async def test_waits_are_observed_by_user(kitchen):
    await kitchen.send(*list_names("a", PLACES + 1), "b0")
    assert [wait_s for _, wait_s in kitchen.waits] == [0.0] * (PLACES + 1)
    await asyncio.sleep(0.01)
    kitchen.clients[f"a{PLACES}"].messages.put_nowait({"type": "http.disconnect"})
    await kitchen.send("a-last")
    await kitchen.prepare("a0")
    users, waits = zip(*kitchen.waits, strict=True)
    assert (len(set(users[:PLACES])), users[PLACES] == users[0], users[-2:]) == (1, False, (users[0], users[0]))
    assert waits[-2] >= 0.01
    await kitchen.end()


async def test_a_failed_request_gives_its_place_back(kitchen):
    await kitchen.send(*list_names("a", PLACES + 1))
    kitchen.tasks["a0"].cancel()
    await settle()
    assert kitchen.begun[-1] == f"a{PLACES}"
    await kitchen.end()


async def test_who_leaves_while_waiting_takes_no_place(kitchen):
    await kitchen.send(*list_names("a", PLACES + 2))
    kitchen.tasks[f"a{PLACES}"].cancel()
    await kitchen.prepare("a0")
    assert kitchen.begun[PLACES:] == [f"a{PLACES + 1}"]
    await kitchen.end()


async def test_who_leaves_with_a_new_place_passes_it_on(kitchen):
    await kitchen.send(*list_names("a", PLACES + 2))
    kitchen.go_on["a0"].set()
    while len([*kitchen.line._line]) == 2:  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(0)
    kitchen.tasks[f"a{PLACES}"].cancel()  # it has its place, and has not run since
    await settle()
    assert kitchen.begun[PLACES:] == [f"a{PLACES + 1}"]
    await kitchen.end()


async def test_slow_bodies_take_no_place(kitchen):
    await kitchen.send(*list_names("a", 3 * PLACES), slow=True)
    await kitchen.send("a-fast")
    assert kitchen.begun == ["a-fast"]
    for name in list_names("a", 3 * PLACES):
        kitchen.clients[name].messages.put_nowait({"type": "http.request", "body": b"", "more_body": True})
    await kitchen.send("a-second")
    assert kitchen.begun == ["a-fast", "a-second"]
    for name in list_names("a", 3 * PLACES):
        kitchen.clients[name].messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    await settle()
    assert len(kitchen.begun) == PLACES
    await kitchen.end()


async def test_a_client_that_leaves_the_line_is_not_prepared(kitchen):
    await kitchen.send(*list_names("a", PLACES + 2))
    kitchen.clients[f"a{PLACES}"].messages.put_nowait({"type": "http.disconnect"})
    await settle()
    assert isinstance(kitchen.tasks[f"a{PLACES}"].exception(), ClientDisconnect)
    await kitchen.prepare("a0")
    assert kitchen.begun[PLACES:] == [f"a{PLACES + 1}"]
    await kitchen.end()


@pytest.mark.parametrize("path", ["/v1/chat/completions/control", "/ping"])
async def test_what_costs_nothing_never_waits(kitchen, path):
    await kitchen.send(*list_names("a", PLACES))
    await kitchen.send("a-free", path=path)
    assert kitchen.begun[-1] == "a-free"
    await kitchen.end()


async def test_a_request_that_waits_for_something_else_gives_its_place_back(monkeypatch):
    monkeypatch.setattr(user_line, "HOLD_S", 0.0)
    kitchen = Kitchen()
    await kitchen.send(*list_names("a", 5 * PLACES))
    await wait_for(lambda: len(kitchen.begun) == 5 * PLACES)
    await kitchen.end()


async def test_a_late_loop_gives_more_time_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(user_line, "HOLD_S", 0.0)
    monkeypatch.setattr(user_line, "LATE_S", -1.0)  # each timer is late
    holds: list[int] = []
    hold = user_line.PreparationPlace._hold  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(user_line.PreparationPlace, "_hold", lambda place: (holds.append(1), hold(place))[1])
    kitchen = Kitchen()
    await kitchen.send(*list_names("a", PLACES + 1))
    await wait_for(lambda: len(kitchen.begun) == PLACES + 1)
    assert len(holds) >= PLACES * MAX_HOLDS
    await kitchen.end()


async def wait_for(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
        ("/v1/completions", {"prompt": "x=", "max_tokens": 4}),
        ("/inference/v1/generate", {"token_ids": [*b"x="], "sampling_params": {"max_tokens": 4}}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
        ("/generate", {"text": "x=", "sampling_params": {"max_new_tokens": 4}}),
    ],
)
async def test_requests_in_the_engine_have_no_place(tokenizer, monkeypatch, path, body, streamed):
    monkeypatch.setattr(user_line, "HOLD_S", LONG_S)
    client = LocalClient(saying(b"aaaa"))
    async with front_of(client, tokenizer, ServerConfig()) as front:
        client.hold = True
        fields = {"stream": streamed} | ({"resumable": True} if streamed and path in RESUMABLE else {})
        asked = [asyncio.create_task(front.http.post(path, json=body | fields)) for _ in range(PLACES * 3)]
        await wait_for(lambda: client.engine.stats().waiting == PLACES * 3)
        client.hold = False
        for answer in await asyncio.gather(*asked):
            assert answer.status_code == 200, answer.text


async def test_waits_are_in_the_metrics(tokenizer, monkeypatch):
    monkeypatch.setattr(user_line, "HOLD_S", LONG_S)
    client = LocalClient(saying(b"aaaa"))
    async with front_of(client, tokenizer, ServerConfig(metrics_by_user=1)) as front:
        asked = [front.http.post("/v1/completions", json={"prompt": "x=", "max_tokens": 1}) for _ in range(PLACES * 9)]
        await asyncio.gather(*asked)
        text = front.app.state.front.metrics.render_metrics().decode()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if "preparation_wait_seconds_" in line)
    of_user = [float(value) for name, value in found.items() if name.startswith("tailrace_user_preparation")]
    assert float(found["tailrace_request_preparation_wait_seconds_count"]) == PLACES * 9
    assert of_user == [pytest.approx(float(found["tailrace_request_preparation_wait_seconds_sum"]))]
    assert of_user[0] > 0


@pytest.mark.parametrize("body", [{"prompt": "x", "max_tokens": "many"}, {"prompt": "x", "n": -1}])
async def test_refused_requests_give_their_places_back(tokenizer, monkeypatch, body):
    monkeypatch.setattr(user_line, "HOLD_S", LONG_S)
    async with front_of(LocalClient(saying(b"aaaa")), tokenizer, ServerConfig()) as front:
        asked = [front.http.post("/v1/completions", json=body) for _ in range(PLACES * 3)]
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {400}
