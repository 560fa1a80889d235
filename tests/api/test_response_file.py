"""With a file, responses survive the server; the event loop never waits for the disk, and every answer arrives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.harness import Front, LocalClient, endless, front_of, saying
from api.processes import gone
from api.stored import make_state, store_whole
from api.test_responses import CALL, PATH, TOOL, events_of, post
from tailrace.api import response_file, serve
from tailrace.api.front_end import FrontEnd
from tailrace.api.response_database import ResponseDatabase
from tailrace.api.response_file import FileLock, ResponseFile
from tailrace.api.response_saver import LOST
from tailrace.api.response_store import StoreBounds
from tailrace.api.stored import select_frames
from tailrace.api.user import make_user_id
from tailrace.api.worker_queries import answer_question
from tailrace.config import ServerConfig
from tailrace.errors import ConfigError, StorageError

ONE, TWO = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
USER = make_user_id("address", "127.0.0.1")


@contextlib.asynccontextmanager
async def fronted(path: Path, tokenizer, client: LocalClient | None = None, **server) -> AsyncIterator[Front]:
    """A server with this file."""
    config = ServerConfig(stored_responses_file=str(path), **server)
    async with front_of(client or LocalClient(saying(b"Hello")), tokenizer, config) as front:
        yield front


@contextlib.contextmanager
def looking(path: Path):
    """The file, as another front end sees it."""
    database = ResponseDatabase(str(path), StoreBounds(), owner=False)
    yield database
    database.close()


def file_of(front: Front) -> ResponseFile:
    """The file of a server."""
    file = front.app.state.front.file
    assert file is not None
    return file


async def test_a_response_survives_a_restart(tmp_path: Path, tokenizer):
    """All that could be asked about it can still be asked, by its user alone."""
    path, server = tmp_path / "responses", {"tool_parser": "hermes", "api_keys": "one, two"}
    script = saying(f"So {CALL}".encode())

    async def ask(front: Front, headers: dict[str, str], id: str, item: str) -> list[tuple[int, object]]:
        get, send, at = front.http.get, front.http.post, f"{PATH}/{id}"
        turn = {"input": [{"type": "item_reference", "id": item}], "tools": TOOL, "store": False}
        more = {"input": "and?", "previous_response_id": id, "store": False}
        read = [
            await get(at, headers=headers),
            await get(at, params={"stream": "true"}, headers=headers),
            await get(at, params={"stream": "true", "starting_after": 2}, headers=headers),
            await get(f"{at}/input_items", headers=headers),
            await send(f"{PATH}/input_tokens", json=more, headers=headers),
        ]
        explained = await send("/v1/explain", json={"response_id": id}, headers=headers)
        made = [await send(PATH, json=body, headers=headers) for body in (more, turn)]
        return [
            *((answer.status_code, answer.text) for answer in read),
            (explained.status_code, explained.json().get("explanations")),
            *((answer.status_code, answer.json().get("usage", {}).get("total_tokens")) for answer in made),
        ]

    async with fronted(path, tokenizer, LocalClient(script), **server) as front:
        made = await front.http.post(PATH, json={"input": "hi", "stream": True, "tools": TOOL}, headers=ONE)
        last = events_of(made.text)[-1]["response"]
        id, item = last["id"], last["output"][0]["id"]
        assert last["store"] is True
        before = await ask(front, ONE, id, item)
        assert {status for status, _ in before} == {200}
        assert len(front.app.state.front.responses) == 0, "memory holds what runs alone"
    async with fronted(path, tokenizer, LocalClient(script), **server) as front:
        again = await front.http.get(f"{PATH}/{id}", params={"stream": "true"}, headers=ONE)
        assert again.text == made.text
        assert await ask(front, ONE, id, item) == before
        absent = await ask(front, ONE, "resp_" + "0" * 32, "msg_" + "0" * 32)
        assert [status for status, _ in await ask(front, TWO, id, item)] == [404] * len(absent)
        assert (await front.http.delete(f"{PATH}/{id}", headers=TWO)).status_code == 404
        assert (await front.http.delete(f"{PATH}/{id}", headers=ONE)).json()["deleted"]
        assert {status for status, _ in await ask(front, ONE, id, item)} == {404}


async def test_a_response_that_ran_when_the_server_died_has_failed(tmp_path: Path, tokenizer):
    """Nobody finds it in progress for ever."""
    path = tmp_path / "responses"
    async with fronted(path, tokenizer, LocalClient(endless, tick_s=0.005)) as front:
        running = [asyncio.ensure_future(post(front, stream=streamed)) for streamed in (True, False)]
        await front.until(lambda: len(front.app.state.front.responses) == 2)
        ids = [request.id for request in front.service.open_requests]
        for id in ids:
            await front.until(lambda id=id: bool(read_file(path, id)))
            assert (await front.http.get(f"{PATH}/{id}")).json()["status"] == "in_progress"
        for suffix in ("", "-wal"):  # what a kill would leave
            (tmp_path / f"left{suffix}").write_bytes((tmp_path / f"responses{suffix}").read_bytes())
        await asyncio.gather(*(front.http.post(f"{PATH}/{id}/cancel") for id in ids))
        assert {(await answer).status_code for answer in running} == {200}
    async with fronted(tmp_path / "left", tokenizer) as front:
        for id in ids:
            found = (await front.http.get(f"{PATH}/{id}")).json()
            assert (found["id"], found["status"], found["output"]) == (id, "failed", [])
            assert found["error"] == {"message": LOST, "type": "server_error", "param": None, "code": "server_error"}
            assert (await post(front, previous_response_id=id)).status_code == 200
        streams = [await front.http.get(f"{PATH}/{id}", params={"stream": "true"}) for id in ids]
        [stream] = [stream for stream in streams if stream.status_code == 200]
        kinds = [event["type"] for event in events_of(stream.text)]
        assert kinds == ["response.created", "response.in_progress", "response.failed"]
    async with fronted(path, tokenizer) as front:
        assert {(await front.http.get(f"{PATH}/{id}")).json()["status"] for id in ids} == {"cancelled"}


def read_file(path: Path, id: str):
    """A response in the file."""
    with looking(path) as database:
        return database.share_of(USER).find(id)


def test_a_reader_of_a_front_end_that_died_gets_the_last_event():
    """The reader has more events than the file. Its next event is the end, with the next number."""
    frames = [f'event: response.{name}\ndata: {{"sequence_number":{i}}}\n\n' for i, name in enumerate(("a", "failed"))]
    stored = [frame.encode() for frame in frames]
    assert [select_frames(stored, number) for number in (0, 1)] == [frames, frames[1:]]
    for number in (2, 30):
        assert select_frames(stored, number) == [frames[1].replace("1", str(number))]
        assert select_frames(stored[:1], number) == [], "it runs still"
    assert select_frames([], 0) == []


async def test_other_front_ends_find_what_has_ended_without_a_question(tmp_path: Path, tokenizer):
    path = tmp_path / "responses"
    async with fronted(path, tokenizer) as front:
        id = (await post(front)).json()["id"]
        shared = front.app.state.front
        asked: list[str] = []

        async def ask(question: str, argument: str) -> list[bytes]:
            asked.append(question)
            return []

        shared.ask = ask
        assert (await front.http.get(f"{PATH}/{id}")).status_code == 200
        assert asked == []
        assert (await front.http.get(f"{PATH}/resp_0")).status_code == 404
        assert asked == ["response"]
        with looking(path) as database:  # as another front end deletes
            assert database.delete(USER, id)
        assert (await front.http.get(f"{PATH}/{id}")).status_code == 404


async def test_a_running_response_is_asked_for_before_its_state_in_the_file(tmp_path: Path, tokenizer):
    """The front end that runs it knows more. If none does, the file has what is left."""
    async with fronted(tmp_path / "responses", tokenizer) as front:
        state = make_state("resp_x", created=time.time(), text="left")
        await file_of(front).run(lambda database: database.add(USER, "resp_x", state))
        answers = [b'{"runs":"elsewhere"}']

        async def ask(question: str, argument: str) -> list[bytes]:
            return answers

        front.app.state.front.ask = ask
        assert (await front.http.get(f"{PATH}/resp_x")).json() == {"runs": "elsewhere"}
        answers = []
        assert (await front.http.get(f"{PATH}/resp_x")).json()["metadata"] == {"text": "left"}


async def test_a_response_deleted_by_another_front_end_leaves_the_file(tmp_path: Path, tokenizer):
    """Also if this front end stores its beginning meanwhile."""
    path = tmp_path / "responses"
    async with fronted(path, tokenizer, LocalClient(endless, tick_s=0.005)) as front:
        running = asyncio.ensure_future(post(front))
        await front.until(lambda: len(front.app.state.front.responses) == 1)
        [id] = [request.id for request in front.service.open_requests]
        assert answer_question(front.app.state.front, "forget", f"{USER} {id}") == b""
        await front.http.delete(f"/v1/requests/{id}")
        assert (await running).status_code == 200
    assert read_file(path, id) is None


async def test_what_was_handed_over_is_stored_before_the_end(tmp_path: Path):
    path = str(tmp_path / "responses")
    file, state = ResponseFile(path, StoreBounds()), make_state("r")

    async def store() -> None:
        await file.run(lambda database: database.add("a", "r", state))
        await file.run(lambda database: database.end("a", "r", state))

    file.spawn(store())
    await file.close()
    with looking(tmp_path / "responses") as database:
        assert database.share_of("a", ended=True).find("r")


async def test_a_response_deleted_while_it_runs_is_not_stored(tmp_path: Path, tokenizer):
    path = tmp_path / "responses"
    async with fronted(path, tokenizer, LocalClient(endless, tick_s=0.005)) as front:
        for elsewhere in (False, True):
            running = asyncio.ensure_future(post(front))
            await front.until(lambda: len(front.app.state.front.responses) == 1)
            [id] = [request.id for request in front.service.open_requests]
            await front.until(lambda id=id: bool(read_file(path, id)))
            if elsewhere:
                with looking(path) as database:
                    assert database.delete(USER, id)
            else:
                assert (await front.http.delete(f"{PATH}/{id}")).json()["deleted"]
            await front.http.delete(f"/v1/requests/{id}")
            assert (await running).status_code == 200
            assert (await front.http.get(f"{PATH}/{id}")).status_code == 404
            assert read_file(path, id) is None
        assert file_of(front).failures == 0


async def test_a_full_disk_leaves_the_answer(tmp_path: Path, tokenizer, caplog: pytest.LogCaptureFixture):
    """The answer says that it is not stored, the log and a metric too. What is stored can be read."""
    async with fronted(tmp_path / "responses", tokenizer) as front:
        kept = (await post(front)).json()["id"]

        def fill(database: ResponseDatabase, pages: int) -> None:
            database._connection.execute(f"PRAGMA max_page_count = {pages}")  # pyright: ignore[reportPrivateUsage]

        await file_of(front).run(lambda database: fill(database, 1))
        with caplog.at_level(logging.WARNING):
            large = "x" * 150
            whole = await post(front, input=large, metadata={"k": "v" * 20_000})
            streamed = await post(front, input=large, metadata={"k": "v" * 20_000}, stream=True)
        assert whole.json()["output"][0]["content"][0]["text"] == "Hello"
        last = events_of(streamed.text)[-1]["response"]
        assert (whole.json()["store"], last["store"], last["status"]) == (False, False, "completed")
        assert front.metric("tailrace_num_responses_not_stored") == 2
        [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "could not be stored" in record.message
        assert "full" in record.message
        for id in (whole.json()["id"], last["id"]):
            assert (await front.http.get(f"{PATH}/{id}")).status_code == 404
        assert (await front.http.get(f"{PATH}/{kept}")).json()["id"] == kept
        await file_of(front).run(lambda database: fill(database, 1_000_000))
        with caplog.at_level(logging.WARNING):
            assert (await post(front)).json()["store"] is True
        assert caplog.records[-1].message == "responses are stored again"
        assert front.metric("tailrace_num_responses_not_stored") == 2
        assert front.metric("tailrace_num_responses_stored") == 2


async def test_a_slow_disk_delays_no_other_answer(tmp_path: Path, tokenizer, monkeypatch: pytest.MonkeyPatch):
    """The loop goes on. A response waits for its own storing, up to a limit; then its answer says that it is not
    stored."""
    monkeypatch.setattr(response_file, "TIMEOUT_S", 0.05)
    free = threading.Event()
    async with fronted(tmp_path / "responses", tokenizer) as front:
        kept = (await post(front)).json()["id"]
        file = file_of(front)
        file._timeout_s = 0.05  # pyright: ignore[reportPrivateUsage]
        stuck = asyncio.ensure_future(file.run(lambda database: free.wait()))
        assert (await front.chat()).status_code == 200
        assert (await post(front, store=False)).status_code == 200
        answer = (await post(front)).json()
        assert (answer["status"], answer["store"]) == ("completed", False)
        for method, path in (("GET", kept), ("DELETE", kept), ("GET", f"{kept}/input_items")):
            refused = await front.http.request(method, f"{PATH}/{path}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_error")
            assert "the disk has not answered for 0.05 s" in refused.json()["error"]["message"]
        with contextlib.suppress(StorageError):
            await stuck
        free.set()
    with pytest.raises(StorageError, match="the server ends"):
        await file.run(len)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def held(path: Path) -> AsyncIterator[tuple[ResponseFile, list[str], threading.Event]]:
    """A file whose thread waits; the calls that it has run, by name; and what lets it go on."""
    file, order, free = ResponseFile(str(path), StoreBounds()), [], threading.Event()
    file._thread._clock = lambda: 0.0  # pyright: ignore[reportPrivateUsage]
    stuck = asyncio.ensure_future(file.run(lambda _: free.wait(60), "z"))
    await asyncio.sleep(0)
    yield file, order, free
    free.set()
    await stuck
    await file.close()


def ask_file(file: ResponseFile, order: list[str], name: str) -> asyncio.Task[Any]:
    """Begin a read ("a:r1") or a write ("a:w1") of a user."""
    user, _, kind = name.partition(":")
    if kind[0] == "w":
        return asyncio.ensure_future(file.run(lambda _: order.append(name), user))
    return asyncio.ensure_future(file.read(lambda *_: order.append(name), user, "", True))


async def test_users_take_turns_and_write_before_they_read(tmp_path: Path):
    async with held(tmp_path / "responses") as (file, order, free):
        names = ("a:r1", "a:r2", "a:r3", "a:w1", "a:w2", "b:r1", "b:w1")
        calls = [ask_file(file, order, name) for name in names]
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(*calls)
    assert order == ["a:w1", "b:w1", "a:w2", "b:r1", "a:r1", "a:r2", "a:r3"]


async def test_a_users_reads_leave_places_for_others_and_for_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A user alone may take all places. Then each other user still has an equal part of them."""
    monkeypatch.setattr(response_file, "MAX_PENDING", 6)
    async with held(tmp_path / "responses") as (file, order, free):

        async def refused(name: str) -> bool:
            call = ask_file(file, order, name)
            await asyncio.sleep(0)
            if not call.done():
                waiting.append(call)
                return False
            assert "too many calls wait for the disk" in str(call.exception())
            return True

        waiting: list[asyncio.Task[Any]] = []
        assert [await refused(f"a:r{i}") for i in range(8)] == [False] * 6 + [True] * 2
        assert [await refused(f"b:r{i}") for i in range(4)] == [False] * 3 + [True]
        assert [await refused(f"c:r{i}") for i in range(3)] == [False] * 2 + [True]
        assert [await refused(f"{user}:w1") for user in "abc"] == [False] * 3
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        for call in waiting[1:6]:  # a reader that leaves gives its place back
            call.cancel()
        await asyncio.wait(waiting[1:6])
        await asyncio.sleep(0)
        assert not await refused("a:r9")
        free.set()
        await asyncio.gather(*waiting[6:])
    assert sorted(order) == ["a:r9", "a:w1", "b:r0", "b:r1", "b:r2", "b:w1", "c:r0", "c:r1", "c:w1"]


async def test_a_server_that_drains_stores_what_ends(tmp_path: Path, tokenizer):
    """A client that left too: its response is cancelled, and found after the restart."""
    path = tmp_path / "responses"
    async with fronted(path, tokenizer, LocalClient(endless, tick_s=0.005)) as front:
        running = asyncio.ensure_future(post(front))
        await front.until(lambda: len(front.app.state.front.responses) == 1)
        [id] = [request.id for request in front.service.open_requests]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await front.until(lambda: not front.service.open_requests)
    async with fronted(path, tokenizer) as front:
        assert (await front.http.get(f"{PATH}/{id}")).json()["status"] == "cancelled"


async def test_a_file_belongs_to_one_server(tmp_path: Path):
    path = str(tmp_path / "responses")
    first = ResponseFile(path, StoreBounds())
    with pytest.raises(ConfigError, match=r"can't be used: another server uses it$"):
        ResponseFile(path, StoreBounds())
    further = ResponseFile(path, StoreBounds(), owner=False)  # a front end of the first server
    assert await further.run(lambda database: store_whole(database, "a", make_state("r"), "r"))
    assert await first.run(lambda database: database.share_of("a").find("r"))
    await further.close()
    await first.close()
    await first.close()
    await ResponseFile(path, StoreBounds()).close()


async def test_no_lock_file_is_left(tmp_path: Path):
    """Neither by a start that is refused, nor by a server that has ended; but by one that another server uses."""
    path, lock = tmp_path / "responses", tmp_path / "responses-lock"
    path.write_text("no database" * 1000)
    with pytest.raises(ConfigError, match="file is not a database"):
        ResponseFile(str(path), StoreBounds())
    assert not lock.exists()
    path.unlink()
    file = ResponseFile(str(path), StoreBounds())
    with pytest.raises(ConfigError, match="another server uses it"):
        ResponseFile(str(path), StoreBounds())
    assert lock.exists()
    await file.close()
    assert not lock.exists()


def test_a_start_that_fails_later_leaves_no_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        assert (tmp_path / "responses-lock").exists()
        raise ConfigError("planted")

    monkeypatch.setattr(serve, "uvicorn_config", fail)
    monkeypatch.setattr(serve, "bind_sockets", lambda config: [])
    config = ServerConfig(stored_responses_file=str(tmp_path / "responses"))
    with pytest.raises(ConfigError, match="planted"):
        serve.serve_models(config, [], [])
    assert not (tmp_path / "responses-lock").exists()


def test_a_lock_that_its_owner_has_just_deleted_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between the opening of the lock's file and the lock the owner ends, and a third server may begin."""
    path = str(tmp_path / "responses")
    first, opened = FileLock(path), []
    real = os.open

    def open_late(*arguments: Any) -> int:
        opened.append(real(*arguments))
        if len(opened) == 1:
            first.release()
        return opened[-1]

    monkeypatch.setattr(os, "open", open_late)
    second = FileLock(path)
    monkeypatch.undo()
    assert len(opened) == 2
    with pytest.raises(ConfigError, match="another server uses it"):
        FileLock(path)
    second.release()
    assert not (tmp_path / "responses-lock").exists()


async def test_a_link_is_the_file_that_it_names(tmp_path: Path):
    first = ResponseFile(str(tmp_path / "responses"), StoreBounds())
    (tmp_path / "link").symlink_to(tmp_path / "responses")
    with pytest.raises(ConfigError, match="another server uses it"):
        ResponseFile(str(tmp_path / "link"), StoreBounds())
    await first.close()
    (tmp_path / "hard").hardlink_to(tmp_path / "responses")
    for name in ("hard", "responses"):
        with pytest.raises(ConfigError, match="a plain file with one name"):
            ResponseFile(str(tmp_path / name), StoreBounds())


def test_what_is_no_plain_file_gets_no_lock_beside_it(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ConfigError, match="a plain file with one name"):
            ResponseFile(str(tmp_path / name), StoreBounds())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


async def test_all_front_ends_count_a_file_once(tmp_path: Path):
    """/metrics adds up what the front ends count."""
    config = ServerConfig(stored_responses_file=str(tmp_path / "responses"), front_ends=2)
    first, second = FrontEnd(config), FrontEnd(config, attached=True)
    assert first.file
    assert second.file
    state = make_state("r", created=time.time())
    await second.file.run(lambda database: store_whole(database, "a", state, "r"))
    await first.file.clean()
    assert (first.count_stored(), second.count_stored()) == ((1, state.size), (0, 0))
    await second.close()
    await first.close()


def wait_for_row(path: str, id: str) -> None:
    """Wait until the file has a response: it is written beside the first token."""
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection:
        while not connection.execute("SELECT 1 FROM responses WHERE id = ?", (id,)).fetchone():
            time.sleep(0.01)


def test_a_response_survives_a_kill(tmp_path: Path, launch):
    """Of the real server, at once after its answer. The running one has failed."""
    path = str(tmp_path / "responses")
    with launch(stored_responses_file=path) as server:
        server.until(200)
        ask = {"input": "hi", "max_output_tokens": 3}
        made = server.http.post(PATH, json=ask).json()
        assert made["store"] is True
        with server.http.stream("POST", PATH, json={"input": "hi", "stream": True}) as stream:
            lines = stream.iter_lines()
            first = next(line for line in lines if '"resp_' in line)
            running = first.partition('"id":"')[2].partition('"')[0]
            next(line for line in lines if "delta" in line)
            wait_for_row(path, running)
            engine = server.children()
            server.send(signal.SIGKILL)
            server.process.wait(300)
        assert all(gone(pid) for pid in engine)
    with launch(stored_responses_file=path) as server:
        server.until(200)
        assert server.http.get(f"{PATH}/{made['id']}").json() == made
        left = server.http.get(f"{PATH}/{running}").json()
        assert (left["status"], left["error"]["message"]) == ("failed", LOST)
        more = server.http.post(PATH, json=ask | {"previous_response_id": made["id"]})
        assert more.json()["usage"]["input_tokens"] > made["usage"]["input_tokens"]
        assert server.http.delete(f"{PATH}/{made['id']}").json()["deleted"] is True
        assert server.http.get(f"{PATH}/{made['id']}").status_code == 404
