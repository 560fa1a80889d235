"""The engine as a process of its own: started by wire/engine_process.py.

It reads its settings from the first line of stdin and loads the model. Then its loop runs (engine/loop.py). It ends
after a Drain or Sleep message, when it has been idle for `sleep_after`, on SIGTERM, and when stdin closes because its
parent has ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from tailrace.base.memory_trim import freeze_objects
from tailrace.base.reporting_child import report_failure
from tailrace.config import EngineConfig
from tailrace.engine.cache_size import check_memory
from tailrace.engine.engine import Engine
from tailrace.engine.loop import Loop
from tailrace.engine.token_bytes import TokenBytes, token_bytes_of
from tailrace.engine.watchdog import Watchdog
from tailrace.errors import EngineError
from tailrace.grammar.service import Grammars
from tailrace.sampling import processors
from tailrace.wire.messages import AdapterChange, ModelInfo
from tailrace.wire.pulse import Pulse
from tailrace.wire.sockets import EngineSocket, delete_left_folder

log = logging.getLogger("tailrace.engine")

SCRIPTED_VOCAB = 49152


class EngineStart(msgspec.Struct):
    """The line on stdin. changes: of the adapters, made before the engine is ready."""

    url: str
    config: EngineConfig
    changes: list[AdapterChange] = []


def build_engine(config: EngineConfig, enter: Callable[[str], object] = lambda part: None) -> Engine:
    """Return the engine for a resolved model.

    Args:
        enter: called with each part of the start (wire/pulse.py).
        config: its model is a folder, or `scripted:…`. A script may name a folder with a tokenizer, which gives the
            bytes of its tokens: `scripted:next:1@FOLDER`.

    Raises:
        TailraceError: the model or the settings are impossible.
    """
    from tailrace.drafting import load_drafter
    from tailrace.runners import load_runner
    from tailrace.runners.load_checks import pick_device

    processors.load_processors(config.model.processors)
    enter("weights")
    name = config.model.model or ""
    if name.startswith("scripted:"):
        script, _, tokenizer_folder = name.partition("@")
        model = msgspec.structs.replace(config.model, model=script)
        runner = load_runner(model, None, block_size=config.cache.block_size, vocab_size=SCRIPTED_VOCAB)
        info = ModelInfo(config.model.name or script, runner.vocab_size, runner.max_model_len, [2])
        folder = Path(tokenizer_folder) if tokenizer_folder else None
        token_bytes = TokenBytes()
        if folder is not None:
            token_bytes = token_bytes_of(folder, config.model.trust_remote_code, info.vocab_size)
    else:
        folder = Path(name)
        if pick_device(config.model.device).type == "cpu":
            check_memory(folder, config.model, config.speculation)
        runner = load_runner(
            config.model,
            folder,
            block_size=config.cache.block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=config.scheduler.max_model_len,
        )
        info = describe_model(config, folder, runner.vocab_size)
        token_bytes = token_bytes_of(folder, config.model.trust_remote_code, info.vocab_size)
    enter("grammars")
    grammars = grammars_of(config, folder, token_bytes, info.eos_token_ids, runner.vocab_size)
    enter("cache")
    drafter = None
    if config.speculation.drafter != "none" or config.speculation.lookup != "none":
        drafter = partial(load_drafter, config.speculation, config.model, runner, block_size=config.cache.block_size)
    return Engine(runner, info, config.cache, config.scheduler, token_bytes, grammars, config.speculation, drafter)


def describe_model(config: EngineConfig, folder: Path, vocab_size: int) -> ModelInfo:
    """Return the data of the model for front ends. A tokenizer may know more ids than the model has."""
    from tailrace.models import describe

    model = config.model
    info = describe(folder, model.name or folder.name, config.scheduler.max_model_len, model.trust_remote_code)
    return msgspec.structs.replace(info, eos_token_ids=[i for i in info.eos_token_ids if 0 <= i < vocab_size])


def grammars_of(
    config: EngineConfig, folder: Path | None, token_bytes: TokenBytes, eos_token_ids: list[int], vocab_size: int
) -> Grammars | None:
    """Return the compiler of grammars; None if the bytes of tokens, or the EOS ids, are unknown."""
    if not token_bytes.token_bytes or not eos_token_ids:
        return None
    grammars = Grammars(config.grammar, folder, token_bytes.token_bytes, token_bytes.special, eos_token_ids, vocab_size)
    grammars.warm_up()
    return grammars


def die_with_parent(url: str) -> None:
    """End this process when its parent ends. stdin then closes, however the parent ended. url: of this engine's socket,
    whose folder the parent may have left behind."""

    def watch_parent() -> None:
        while os.read(0, 4096):
            pass
        delete_left_folder(url)
        os._exit(0)

    threading.Thread(target=watch_parent, daemon=True, name="life line").start()


def read_start() -> EngineStart | None:
    """Return the settings on stdin; None if the parent has ended."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    return msgspec.json.decode(line, type=EngineStart)


def run_process(status: int) -> int:
    """Run the process. Return 0 after a drain, 1 after a failure. status: see base/reporting_child.py."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (start := read_start()) is None:
        return 0
    die_with_parent(start.url)
    socket = EngineSocket(start.url)
    pulse = Pulse(start.url, start.config.scheduler.stall_s)
    loop = Loop(build_engine(start.config, pulse.enter), socket, pulse, start.config)
    loop.adapters.restore(start.changes)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    freeze_objects()  # the model lives as long as the process: garbage collections need not visit it
    Watchdog(pulse, start.config.scheduler.stall_s, lambda: list({s.request.id: None for s in loop.engine.running}))
    try:
        loop.run()
    except Exception as error:
        log.exception("the engine's loop failed")
        loop.fail_all(EngineError(f"{type(error).__name__}: {error}"))
        report_failure(status, error)
        socket.close()
        return 1
    finally:
        loop.engine.close()
    socket.close()
    return 0
