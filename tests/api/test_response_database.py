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
from hypothesis import given, settings
from hypothesis import strategies as st

from api.stored import make_messages, make_response, make_state, store_whole
from tailrace.api import response_database
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


STEPS = st.lists(
    st.tuples(st.sampled_from("aabc"), st.sampled_from(["put", "put", "find", "delete", "wait"]), st.integers(0, 4000)),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_file_and_memory_keep_the_same_responses(tmp_path_factory, steps: list[tuple[str, str, int]]):
    """One policy: a user's number, everybody's bytes from the largest share, the least recently used first, the age."""
    clock, bounds = Clock(), StoreBounds(6, 20_000, 10.0)
    memory = ResponseStore(*bounds, clock)
    shares = {user: memory.share_of(user) for user in "abc"}
    with opened(tmp_path_factory.mktemp("file") / "responses", bounds, clock=clock) as database:
        for place, (user, action, size) in enumerate(steps):
            id, share = str(place), shares[user]
            if action == "put":
                memory.expire(1000)  # the file does before a response is added
                share.put(make_response(id), make_messages(size), 1, streamed=True)
                stored = share.find(id)
                database.add(user, id, make_state(id, size, clock.now)._replace(frames=[]))
                assert database.end(user, id, make_state(id, size, clock.now)._replace(frames=[])) == bool(stored)
            elif action == "wait":
                clock.now += size / 1000
            else:
                named = str(size % (place + 1))
                here, there = share.find(named), database.share_of(user).find(named)
                assert (here is None) == (there is None)
                if action == "delete":
                    share.discard(named)
                    assert database.delete(user, named) == (there is not None)
        memory.expire(1000)
        while database.clean():
            pass
        kept = {(user, str(place)) for user in "abc" for place in range(len(steps)) if str(place) in shares[user]}
        found = {
            (user, str(place))
            for user in "abc"
            for place in range(len(steps))
            if database.share_of(user).find(str(place))
        }
        assert found == kept
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


def test_what_is_deleted_leaves_the_file(tmp_path: Path):
    def is_there() -> bool:
        return any(b"a secret of the user" in path.read_bytes() for path in tmp_path.iterdir())

    with opened(tmp_path / "responses") as database:
        store_whole(database, "a", make_state("other", 50_000), "other")
        store_whole(database, "a", make_state("r", text="a secret of the user" * 1000), "r")
        assert is_there()
        database.delete("a", "r")
        assert not database.clean()
        assert not is_there()
        assert database.share_of("a").find("other")


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
        connection.execute("PRAGMA user_version = 2")
    connection.close()


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (damage, "damaged|malformed"),
        (lambda path: path.write_text("no database" * 1000), "file is not a database"),
        (write_foreign, "a database of another program"),
        (write_other_version, r"another version of tailrace has written it \(its schema is 2, not 1\)"),
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
    monkeypatch.setattr(response_database, "BUSY_S", 0.0)
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
import random, sys
from api.stored import make_state, store_whole
from tailrace.api.response_database import ResponseDatabase
from tailrace.api.response_store import StoreBounds
rng = random.Random(int(sys.argv[2]))
database = ResponseDatabase(sys.argv[1], StoreBounds(max_bytes=400_000))
for place in range(100_000):
    id = f"{sys.argv[2]}-{place}"
    assert store_whole(database, str(rng.randrange(3)), make_state(id, rng.randrange(9000)), id)
    if rng.random() < 0.2:
        database.clean()
    print(place, flush=True)
"""


def test_a_process_killed_while_it_writes_leaves_a_whole_file(tmp_path: Path):
    """Each response that it acknowledged last is there, and the counts are those of the rows."""
    path, rng = tmp_path / "responses", random.Random(39)
    for seed in range(5):
        command = [sys.executable, "-c", WRITER, str(path), str(seed)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            assert child.stdout is not None
            place = ""
            for _ in range(rng.randrange(1, 60)):
                place = child.stdout.readline().strip()
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split("\n")  # the last line may be cut
            place = rest[-2] if len(rest) > 1 else place
        with opened(path, StoreBounds(max_bytes=400_000)) as database:
            [user] = [user for user in "012" if database.share_of(user).find(f"{seed}-{place}")]
            stored = database.share_of(user, ended=True).find(f"{seed}-{place}")
            assert stored
            assert stored.body == make_state(f"{seed}-{place}").body
            connection = sqlite3.connect(path)
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            rows = connection.execute("SELECT user, count(*), sum(size) FROM responses GROUP BY user ORDER BY user")
            assert rows.fetchall() == connection.execute("SELECT * FROM shares ORDER BY user").fetchall()
            connection.close()
