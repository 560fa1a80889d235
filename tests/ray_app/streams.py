"""Streams of completions that are read side by side."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable

import httpx

from conftest import URL, text


class Stream(threading.Thread):
    """One stream. replica: who answers; pieces: texts that have come; error: of the error event; done: it was whole."""

    def __init__(self, number: int, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.body = {"prompt": text(number), "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        self.replica, self.pieces, self.done = "", 0, False
        self.error: dict[str, str] | None = None
        self.broken: Exception | None = None  # the connection, which must never be
        self.leave = False
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", f"{URL}/v1/completions", json=self.body, timeout=120) as response:
                response.raise_for_status()
                self.replica = response.headers.get("x-tailrace-replica", "")
                for line in response.iter_lines():
                    self.take(line)
                    if self.leave:
                        return
        except Exception as error:
            self.broken = error

    def take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                self.error = event["error"]
            else:
                self.pieces += 1


def begun(streams: Iterable[Stream]) -> None:
    """Wait until each has got something."""
    until = time.monotonic() + 60
    while not all(stream.pieces for stream in streams):
        assert time.monotonic() < until, [(s.replica, s.pieces, s.broken) for s in streams]
        time.sleep(0.05)


def ended(streams: Iterable[Stream]) -> None:
    for stream in streams:
        stream.join(400)
        assert not stream.is_alive(), (stream.replica, stream.pieces, stream.error)
        assert stream.broken is None, stream.broken
