"""The file of stored responses keeps the memory's bounds, and what it acknowledged, whatever ends the process."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.stored import make_messages, make_response, make_state, store_whole
from tailrace.api import database_file, response_database
from tailrace.api.response_database import ResponseDatabase
from tailrace.api.response_store import ResponseStore, StoreBounds, make_bounds
from tailrace.config import ServerConfig
from tailrace.errors import ConfigError

WIDE = StoreBounds()


class Clock:
    """A clock that stands still."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def opened(path: Path, bounds: StoreBounds = WIDE, **options) -> Iterator[ResponseDatabase]:
    """The open file."""
    database = ResponseDatabase(str(path), bounds, **options)
    try:
        yield database
    finally:
        database.close()


def body_of(database: ResponseDatabase, ended: bool) -> bytes | None:
    """The body of A's response."""
    stored = database.share_of("a", ended).find("r")
    return None if stored is None else stored.body


def test_a_response_survives_the_process(tmp_path: Path):
    path, state = tmp_path / "responses", make_state("r", 100, created=5.0)
    with opened(path) as database:
        assert store_whole(database, "a", state, "r")
    with opened(path) as database:
        assert database.share_of("a").find("r") == state._replace(items=())
        assert (
            database.share_of("a").find_item("msg_r") == b'{"id":"msg_r","type":"message","status":"completed",'
            b'"role":"assistant"}'
        )
        for other in (database.share_of("b"), database.share_of("")):
            assert other.find("r") is other.find_item("msg_r") is None
        assert not database.delete("b", "r")
        assert (database.responses, database.bytes) == (1, state.size)
        assert database.delete("a", "r")
        assert not database.delete("a", "r")
        assert (database.responses, database.bytes) == (0, 0)
        assert database.share_of("a").find_item("msg_r") is None


def test_until_its_end_a_response_has_the_state_that_it_began_with(tmp_path: Path):
    begun, ended = make_state("r", text="begun"), make_state("r", text="ended")
    with opened(tmp_path / "responses") as database:
        database.add("a", "r", begun)
        assert body_of(database, True) is None
        assert body_of(database, False) == begun.body
        assert database.end("a", "r", ended) is True
        assert body_of(database, True) == ended.body
        assert database.end("a", "r", begun) is False, "it has ended already"
        assert database.end("a", "absent", begun) is False, "it was deleted"
        assert database.responses == 1


ACTIONS = ["put", "put", "put", "find", "find", "delete", "wait"]


@pytest.mark.parametrize("seed", range(4))
def test_file_and_memory_keep_the_same_responses(tmp_path: Path, seed: int):
    """One policy: a user's number, everybody's bytes from the largest share, the least recently used first, the age."""
    clock, bounds = Clock(), StoreBounds(5, 20_000, 60.0)
    memory = ResponseStore(*bounds, clock)
    shares = {user: memory.share_of(user) for user in "abc"}
    stored: dict[str, list[str]] = {user: ["absent"] for user in "abc"}
    rng = random.Random(seed)
    with opened(tmp_path / "responses", bounds, clock=clock) as database:
        for place in range(500):
            user, action, size = rng.choice("abc"), rng.choice(ACTIONS), rng.randrange(5000)
            id, share, of_file = str(place), shares[user], database.share_of(user)
            named = rng.choice(stored[user][-6:])
            if action == "put":
                stored[user].append(id)
                memory.expire(1000)  # the file does before a response is added
                share.put(make_response(id), make_messages(size), 1, streamed=True)
                state = make_state(id, size, clock.now)._replace(frames=[])
                database.add(user, id, state)
                assert database.end(user, id, state) == (id in share)
            elif action == "find":
                assert (share.find(named) is None) == (of_file.find(named) is None)
            elif action == "delete":
                assert (share.find(named) is not None) == database.delete(user, named)
                share.discard(named)
            else:
                clock.now += size / 500
        memory.expire(1000)
        while database.clean():
            pass
        for user, ids in stored.items():
            assert [id in shares[user] for id in ids] == [bool(database.share_of(user).find(id)) for id in ids]
        assert (database.responses, database.bytes) == (len(memory), memory.bytes)


def test_a_response_expires(tmp_path: Path):
    clock, bounds = Clock(), StoreBounds(max_age_s=30.0)
    memory = ResponseStore(*bounds, clock)
    share = memory.share_of("a")
    with opened(tmp_path / "responses", bounds, clock=clock) as database:
        share.put(make_response("r"), [])
        store_whole(database, "a", make_state("r", created=clock.now), "r")
        clock.now += 29.0
        assert share.find("r")
        assert database.share_of("a").find("r")
        clock.now += 1.0
        assert share.find("r") is database.share_of("a").find("r") is None
        assert not database.delete("a", "r"), "a 404, as for an id that was never given"


def test_days_of_the_setting():
    assert make_bounds(ServerConfig()).max_age_s == 30 * 86_400
    assert make_bounds(ServerConfig(stored_responses_days=0.5)).oldest(100_000.0) == 100_000.0 - 43_200
    assert make_bounds(ServerConfig(stored_responses_days=0)).oldest(0.0) == float("-inf")


def test_a_cleanup_is_made_of_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(response_database, "SLICE", 3)
    clock = Clock()
    with opened(tmp_path / "responses", StoreBounds(max_age_s=30.0), clock=clock) as database:
        for place in range(8):
            store_whole(database, "a", make_state(str(place), created=clock.now), str(place))
        clock.now += 31.0
        left = []
        while database.clean():
            left.append(database.responses)
        assert (left, database.responses) == ([5, 2], 0)
    with opened(tmp_path / "responses") as database:
        for place in range(8):
            store_whole(database, "a", make_state(str(place)), str(place))
    with opened(tmp_path / "responses", StoreBounds(max_bytes=2500)) as database:  # the operator has set it lower
        assert database.responses == 8
        while database.clean():
            pass
        assert database.bytes <= 2500


@pytest.mark.parametrize("how", ["deleted", "expired", "beyond the bound"])
def test_what_is_dropped_leaves_the_file(tmp_path: Path, how: str):
    clock = Clock()

    def is_there() -> bool:
        return any(b"a secret of the user" in path.read_bytes() for path in tmp_path.iterdir())

    bounds = StoreBounds(3, 10**6, 60.0)
    with opened(tmp_path / "responses", bounds, clock=clock) as database:
        store_whole(database, "a", make_state("r", created=clock.now, text="a secret of the user" * 1000), "r")
    assert is_there()  # in the file itself, to which the end has copied the log
    with opened(tmp_path / "responses", bounds, clock=clock) as database:
        clock.now += 61.0 if how == "expired" else 1.0
        if how == "deleted":
            database.delete("a", "r")
        for place in range(3 if how == "beyond the bound" else 1):
            store_whole(database, "a", make_state(f"other {place}", created=clock.now), f"other {place}")
        assert not database.clean()
        assert not is_there()
        assert database.share_of("a").find("other 0")


def test_only_its_user_may_read_the_file(tmp_path: Path):
    path = tmp_path / "responses"
    path.touch(0o644)
    umask = os.umask(0)
    try:
        with opened(path) as database:
            store_whole(database, "a", make_state("r"), "r")
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(umask)
    assert modes == dict.fromkeys(("responses", "responses-wal", "responses-shm"), 0o600)


def damage(path: Path) -> None:
    with opened(path) as database:
        for place in range(50):
            store_whole(database, "a", make_state(str(place), 3000), str(place))
    content = bytearray(path.read_bytes())
    content[8192:-8192] = random.Random(1).randbytes(len(content) - 16_384)
    path.write_bytes(content)


def write_foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()


def write_other_version(path: Path) -> None:
    with opened(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (damage, r"it is damaged: (?!.*\*\*\*).*[Pp]age.*; move it away, or restore a copy$"),
        (lambda path: path.write_text("no database" * 1000), "file is not a database"),
        (write_foreign, "a database of another program"),
        (write_other_version, r"another version .* \(its schema is 1, not 2\); move it away, or use that version$"),
        (Path.mkdir, "unable to open database file"),
    ],
)
def test_a_file_that_cant_be_used_is_one_sentence(tmp_path: Path, prepare: Callable[[Path], None], reason: str):
    path = tmp_path / "responses"
    prepare(path)
    with pytest.raises(
        ConfigError, match=rf"^server\.stored_responses_file: {path} can't be used: .*{reason}"
    ) as found:
        ResponseDatabase(str(path), WIDE)
    assert "\n" not in str(found.value)


def test_a_missing_folder(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"can't be used: No such file or directory$"):
        ResponseDatabase(str(tmp_path / "absent" / "responses"), WIDE)


def test_a_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database_file, "BUSY_S", 0.0)
    with opened(tmp_path / "responses"):
        pass
    other = sqlite3.connect(tmp_path / "responses", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(ConfigError, match=r"can't be used: database is locked$"):
        ResponseDatabase(str(tmp_path / "responses"), WIDE)
    other.close()


def test_a_read_only_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of another user, say. SQLite then opens the file, and can't write it."""
    with opened(tmp_path / "responses"):
        pass
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, **options: connect(f"file:{path}?mode=ro", uri=True, **options)
    )
    with pytest.raises(ConfigError, match=r"can't be used: attempt to write a readonly database$"):
        ResponseDatabase(str(tmp_path / "responses"), WIDE)


WRITER = """
import itertools, os, random, signal, sys
from api.stored import make_state, store_whole
from tailrace.api.response_database import ResponseDatabase
from tailrace.api.response_store import StoreBounds
path, seed = sys.argv[1:]
rng, statements = random.Random(int(seed)), itertools.count()
last = rng.randrange(10, 1500)
database = ResponseDatabase(path, StoreBounds(max_bytes=200_000))
database._connection.execute("PRAGMA cache_size = 2")  # pages are written before their transaction ends
database._connection.set_trace_callback(lambda _: next(statements) == last and os.kill(os.getpid(), signal.SIGKILL))
for place in itertools.count():
    id = f"{seed}-{place}"
    assert store_whole(database, str(place % 3), make_state(id, rng.randrange(9000)), id)
    print(place, flush=True)
    if rng.random() < 0.2:
        database.clean()
"""


def test_a_process_killed_while_it_writes_leaves_a_whole_file(tmp_path: Path):
    """At any statement. The last response that it acknowledged is there, and the counts are those of the rows."""
    path = tmp_path / "responses"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    for seed in range(12):
        command = [sys.executable, "-c", WRITER, str(path), str(seed)]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
        assert child.returncode == -signal.SIGKILL
        acknowledged = child.stdout.split()
        with opened(path, StoreBounds(max_bytes=200_000)) as database:
            for place in acknowledged[-1:]:
                id = f"{seed}-{place}"
                stored = database.share_of(str(int(place) % 3), ended=True).find(id)
                assert stored
                assert stored.body == make_state(id).body
            connection = sqlite3.connect(path)
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            bare = "SELECT count(*) FROM responses LEFT JOIN contents USING (row) WHERE size = 0 OR body IS NULL"
            assert connection.execute(bare).fetchone() == (0,)
            rows = connection.execute("SELECT user, count(*), sum(size) FROM responses GROUP BY user ORDER BY user")
            assert rows.fetchall() == connection.execute("SELECT * FROM shares ORDER BY user").fetchall()
            connection.close()
