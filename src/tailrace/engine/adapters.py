"""LoRA adapters that come and go at run time. A front end asks by a PeerQuery that the engine answers itself.

A thread reads an adapter's files; between two steps the engine packs the weights. An unloaded adapter has no name any
more. Its weights stay until the last request that uses them has ended. A number is never given twice, so cached
prefixes of one adapter never serve another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tailrace.base.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from tailrace.config import MODEL_NAME, NAME_RULE, ModelConfig
from tailrace.engine.cache_size import measure_available_memory
from tailrace.engine.engine import Engine
from tailrace.engine.validation import adapter_number
from tailrace.errors import (
    ModelLoadError,
    ModelNotFoundError,
    ParameterError,
    RequestError,
    describe_error,
    format_json,
)
from tailrace.wire.messages import AdapterChange, AdapterOutcome, PeerCount, PeerQuery, PeerReply, Ready

log = logging.getLogger(__name__)

LOAD, UNLOAD = "load_adapter", "unload_adapter"
SHARE = 1 / 3  # of the available memory, that the file of one adapter may have: it is read and then unpacked
FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)


class PendingLoad(NamedTuple):
    """An adapter whose files are being read."""

    client: bytes
    query: PeerQuery
    change: AdapterChange
    weights: Future[Any]


class AdapterChanges:
    """The changes of one engine's adapters.

    Args:
        send: sends messages to a front end. clients: all front ends.
    """

    def __init__(
        self, engine: Engine, model: ModelConfig, send: Callable[[bytes, list[Any]], object], clients: set[bytes]
    ) -> None:
        self._engine, self._send, self._clients = engine, send, clients
        self._folder, self._most = model.lora_folder, model.max_loras
        if self._folder is not None:
            engine.info = msgspec.structs.replace(engine.info, max_adapters=self._most)
        self._pending: list[PendingLoad] = []
        self._retired: set[int] = set()
        self._bytes: dict[int, int] = {}  # number → memory of the weights
        self._made: dict[str, AdapterChange] = {}
        self._first = frozenset(engine.runner.adapters)
        self._threads = ThreadPoolExecutor(1, "adapters")

    @property
    def loading(self) -> bool:
        """True while files are being read."""
        return bool(self._pending)

    @property
    def changes(self) -> list[AdapterChange]:
        """What makes the first adapters of an engine those of now."""
        return [*self._made.values()]

    def restore(self, changes: Sequence[AdapterChange]) -> None:
        """Make the changes of an earlier engine, before this one is ready. An adapter that can't be loaded is left
        out."""
        for change in changes:
            weights = None
            try:
                if change.folder:
                    folder = find_folder(self._folder or "", change.folder)
                    weights = self._engine.runner.read_adapter(change.name, folder)
                self._make(change, weights)
            except Exception as error:
                log.error("adapter %s is not loaded again: %s", change.name, describe_error(error))
                self._make(AdapterChange(change.name), None)
        if changes:
            names = [*filter(None, self._engine.runner.adapters)]
            self._engine.info = msgspec.structs.replace(self._engine.info, adapters=names)

    def answers(self, client: bytes, query: PeerQuery) -> bool:
        """Begin to answer a query about adapters. Return False for any other query."""
        if query.question not in (LOAD, UNLOAD):
            return False
        change = msgspec.json.decode(query.argument, type=AdapterChange)
        try:
            self._check_change(query.question, change)
            if query.question == LOAD:
                folder = find_folder(self._folder or "", change.folder)
                weights = self._threads.submit(self._engine.runner.read_adapter, change.name, folder)
                self._pending.append(PendingLoad(client, query, change, weights))
            else:
                self._make(change, None)
                self._reply(client, query, None)
        except RequestError as error:
            self._reply(client, query, error)
        return True

    def advance(self) -> None:
        """Add adapters whose files have been read, and free those that no request uses any more."""
        for load in [load for load in self._pending if load.weights.done()]:
            self._pending.remove(load)
            self._finish(load)
        if self._retired:
            used = {request.adapter for request in self._engine.requests.values()}
            for number in self._retired - used:
                self._engine.runner.drop_adapter(number)
                self._engine.memory_limit.add_own(-self._bytes.pop(number, 0))
            self._retired &= used

    def _check_change(self, question: str, change: AdapterChange) -> None:
        names = [*filter(None, self._engine.runner.adapters), *(load.change.name for load in self._pending)]
        if self._folder is None:
            raise ParameterError("lora_name: the operator allows no changes of adapters (--lora-folder)", "lora_name")
        if not MODEL_NAME.fullmatch(change.name):
            raise ParameterError(f"lora_name must be {NAME_RULE}, got {format_json(change.name, 200)}", "lora_name")
        if question == UNLOAD:
            if change.name not in self._engine.runner.adapters:
                raise ModelNotFoundError(f"lora_name: there is no adapter {format_json(change.name)}", "lora_name")
        elif change.name in names and not change.in_place:
            raise ParameterError(
                f"lora_name: the adapter {format_json(change.name)} is loaded already; load_inplace replaces it",
                "lora_name",
            )
        elif change.name not in names and len(names) >= self._most:
            raise ParameterError(f"lora_name: {self._most} adapters are loaded (--max-loras); unload one", "lora_name")

    def _make(self, change: AdapterChange, weights: Any) -> None:
        """Unload the adapter, then add the one with these weights if there are any."""
        name, runner = change.name, self._engine.runner
        if name in runner.adapters:
            self._retire(name)
        self._made.pop(name, None)
        if weights is not None:
            size = runner.add_adapter(name, weights)
            self._bytes[adapter_number(runner.adapters, name)] = size
            self._engine.memory_limit.add_own(size)
            log.info("adapter %s: loaded from %s", name, change.folder)
        if weights is not None or name in self._first:
            self._made[name] = change

    def _finish(self, load: PendingLoad) -> None:
        name = load.change.name
        try:
            self._make(load.change, load.weights.result())
        except ModelLoadError as error:
            self._reply(load.client, load.query, ParameterError(f"lora_path: {error}", "lora_path"))
        except Exception as error:
            log.exception("the adapter %s could not be loaded", name)
            self._reply(load.client, load.query, ParameterError(f"lora_path: {describe_error(error)}", "lora_path"))
        else:
            self._reply(load.client, load.query, None)

    def _retire(self, name: str) -> None:
        self._retired.add(adapter_number(self._engine.runner.adapters, name))
        self._engine.runner.retire_adapter(name)
        log.info("adapter %s: unloaded", name)

    def _reply(self, client: bytes, query: PeerQuery, error: RequestError | None) -> None:
        """Send the outcome. Before it, all front ends get the names of the adapters."""
        if error is None:
            names = [*filter(None, self._engine.runner.adapters)]
            self._engine.info = info = msgspec.structs.replace(self._engine.info, adapters=names)
            for each in list(self._clients):
                self._send(each, [Ready(info)])
        outcome = AdapterOutcome() if error is None else AdapterOutcome(error.code, str(error), error.param)
        data = msgspec.json.encode(outcome)
        self._send(client, [PeerCount(query.number, 1), PeerReply(b"", query.number, data)])


def find_folder(root: str, asked: str) -> Path:
    """Return the adapter's folder. Links are followed, and must not lead out of the operator's folder.

    Raises:
        ParameterError: it is not below the operator's folder, or has no adapter, or its file is too large.
    """
    base = Path(root).expanduser().resolve()
    try:
        folder = (base / asked).resolve()
        paths = [(folder / name).resolve() for name in FILES]
        inside = all(path.is_relative_to(base) for path in (folder, *paths))
        missing = inside and not all(path.is_file() for path in paths)
        size = 0 if missing or not inside else paths[1].stat().st_size
    except (OSError, ValueError, RuntimeError) as error:  # a name with a NUL, a circle of links
        raise ParameterError(f"lora_path: {format_json(asked, 200)} is no path of a folder", "lora_path") from error
    if not inside:
        raise ParameterError("lora_path must be a folder below the one of --lora-folder", "lora_path")
    if missing:
        raise ParameterError(f"lora_path: {format_json(asked, 200)} has no {' and '.join(FILES)}", "lora_path")
    if size > (most := int(SHARE * measure_available_memory())):
        raise ParameterError(f"lora_path: the adapter has {size} bytes, and {most} is the most now", "lora_path")
    return folder
