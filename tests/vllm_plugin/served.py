"""A real `vllm serve` process in a test, and what it is asked over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launched import LIMIT_S
from scheduled import BLOCK, ENGINE, NGRAM
from started import COMMON

PLANTED = "planted_errors"  # a module: a plug-in for vLLM that breaks tailrace


class Server:
    """One that runs. log: the file with all that it prints."""

    def __init__(self, port: int, log: Path) -> None:
        self.url, self.log = f"http://127.0.0.1:{port}", log

    def ask(self, path: str, body: dict[str, Any] | None = None, timeout: float = LIMIT_S) -> tuple[int, Any]:
        """Return the status and the JSON of an answer; the status is 0 if nobody answers."""
        data = None if body is None else json.dumps(body | {"model": "m"}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, urllib.error.URLError) as error:
            return 0, str(error)

    def complete(self, prompt: list[int], **fields: Any) -> tuple[int, Any]:
        """Return the status of a completion, and the token ids of each of its sequences."""
        fields = {"max_tokens": 12, "ignore_eos": True, "return_token_ids": True} | fields
        status, answer = self.ask("/v1/completions", {"prompt": prompt} | fields)
        return status, [one["token_ids"] for one in answer["choices"]] if status == 200 else answer


@contextmanager
def serve(model: Path, folder: Path, *flags: str, **env: str) -> Iterator[Server]:
    """A server on a free port until the block ends. folder: of its log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(exist_ok=True)
    given = {"--port": port, "--host": "127.0.0.1", "--served-model-name": "m", "--block-size": BLOCK}
    given |= {f"--{name.replace('_', '-')}": ENGINE[name] for name in ("dtype", "max_model_len", "max_num_seqs")}
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--enforce-eager", *flags]
    command += [str(word) for pair in given.items() for word in pair]
    server = Server(port, folder / "log")
    with server.log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | COMMON | env)
    try:
        begun = time.monotonic()
        while server.ask("/health", timeout=5)[0] != 200:
            assert process.poll() is None, server.log.read_text()[-3000:]
            assert time.monotonic() - begun < LIMIT_S, server.log.read_text()[-3000:]
            time.sleep(0.2)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def speculate(**more: Any) -> tuple[str, ...]:
    """The flag for n-gram drafts."""
    return "--speculative-config", json.dumps(NGRAM | more)


def write_plug_in(folder: Path, function: str) -> dict[str, str]:
    """Write a plug-in for vLLM. The first call of this function of tailrace fails with it, and each second call after
    that. Return the environment in which vLLM finds the plug-in."""
    about = folder / f"{PLANTED}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLANTED}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{PLANTED} = {PLANTED}:register\n")
    place, _, attribute = function.rpartition(".")
    (folder / f"{PLANTED}.py").write_text(f"""
from itertools import count
from pkgutil import resolve_name

def register():
    place, calls = resolve_name({place!r}), count()
    real = getattr(place, {attribute!r})

    def failing(*args, **more):
        if next(calls) % 2 == 0:
            raise RuntimeError("planted")
        return real(*args, **more)

    setattr(place, {attribute!r}, failing)
""")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
