"""The SQLite file of stored responses: its schema, and whether a file may be used. Knows no response."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from tailrace.errors import ConfigError

APPLICATION = 0x7461696C  # "tail": SQLite's mark of the program that a file belongs to
VERSION = 2  # of the schema, and of what the columns hold
BUSY_S = 5.0  # how long one process waits for another to write
LOG_BYTES = 4 << 20  # of the write-ahead log between two uses
SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",  # a power loss may take the last responses, and never damages the file
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",
    f"PRAGMA journal_size_limit = {LOG_BYTES}",
)
# `used` counts within a user. The contents have a table of their own, so counting a use does not write them again.
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE responses (
    row INTEGER PRIMARY KEY, user TEXT NOT NULL, id TEXT NOT NULL, created REAL NOT NULL, ended INTEGER NOT NULL,
    used INTEGER NOT NULL, size INTEGER NOT NULL, UNIQUE (user, id)
);
CREATE INDEX by_use ON responses (user, used);
CREATE INDEX by_age ON responses (created);
CREATE TABLE contents (
    row INTEGER PRIMARY KEY REFERENCES responses ON DELETE CASCADE,
    body BLOB NOT NULL, messages BLOB NOT NULL, inputs INTEGER NOT NULL, frames BLOB NOT NULL, origin BLOB NOT NULL
);
CREATE TABLE items (
    item TEXT NOT NULL, row INTEGER NOT NULL REFERENCES responses ON DELETE CASCADE, PRIMARY KEY (item, row)
) WITHOUT ROWID;
CREATE INDEX by_row ON items (row);
CREATE TABLE shares (user TEXT PRIMARY KEY, responses INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER added AFTER INSERT ON responses BEGIN
    INSERT INTO shares VALUES (new.user, 1, new.size)
    ON CONFLICT (user) DO UPDATE SET responses = responses + 1, bytes = bytes + new.size;
END;
CREATE TRIGGER changed AFTER UPDATE OF size ON responses BEGIN
    UPDATE shares SET bytes = bytes + new.size - old.size WHERE user = new.user;
END;
CREATE TRIGGER dropped AFTER DELETE ON responses BEGIN
    UPDATE shares SET responses = responses - 1, bytes = bytes - old.size WHERE user = old.user;
    DELETE FROM shares WHERE user = old.user AND responses = 0;
END;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
COMMIT;
"""


def make_config_error(path: str, reason: str) -> ConfigError:
    """Return the error for a file that can't be used."""
    return ConfigError(f"server.stored_responses_file: {path} can't be used: {reason}")


def create_private_file(path: str) -> None:
    """Create the file if it does not exist. Only its user may read and write it, whatever the umask is."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        os.chmod(path, 0o600)


def connect_file(path: str, owner: bool) -> sqlite3.Connection:
    """Return a connection to the file, which gets the schema if it is new.

    Raises:
        ValueError: the file is damaged, of another program or of another version. sqlite3.Error, OSError: it can't be
            read or written.
    """
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        check_file(connection, owner)
        for setting in SETTINGS:
            connection.execute(setting)
        connection.execute(f"PRAGMA user_version = {VERSION}")  # fails if the file is read-only or locked
    except BaseException:
        connection.close()
        raise
    return connection


def check_file(connection: sqlite3.Connection, owner: bool) -> None:
    """Raise ValueError if the file is damaged, of another program or of another version."""

    def read_value(name: str) -> Any:
        return connection.execute(name).fetchone()[0]

    application, version = read_value("PRAGMA application_id"), read_value("PRAGMA user_version")
    if owner and read_value("SELECT count(*) FROM sqlite_schema") == application == version == 0:
        connection.executescript(SCHEMA)
        return
    if application != APPLICATION:
        raise ValueError("it is a database of another program")
    if version != VERSION:
        why = f"another version of tailrace has written it (its schema is {version}, not {VERSION})"
        raise ValueError(f"{why}; move it away, or use that version")
    if owner and (state := read_value("PRAGMA quick_check(1)")) != "ok":
        raise ValueError(f"it is damaged: {describe_damage(state)}; move it away, or restore a copy")


def describe_damage(state: str) -> str:
    """Return the first line of an answer of SQLite's check that names damage. Headings name the database alone."""
    lines = (line for line in state.splitlines() if not line.startswith("***"))
    return next(lines, "SQLite's check does not say where")
