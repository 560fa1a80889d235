"""All of the grammar room that the engine sees: from what a request asks to a compiled grammar, and masks while the model computes."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from tailrace.config import GrammarConfig
from tailrace.grammar.base import Compiled
from tailrace.grammar.filling import Filling, Job, start
from tailrace.grammar.pool import Pool
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.grammar.worker import MIB
from tailrace.options import Grammar


class Grammars:
    """One vocabulary's grammars.

    Args:
        folder: of the tokenizer, for `forced`; None: texts are cut greedily.
        token_bytes: what each id spells (engine/spelling.py). special: ids that never spell text.
        eos_token_ids: each of them ends the output where the grammar allows it.
        vocab_size: of the logits; ids beyond `token_bytes` are never allowed.
    Raises:
        ValueError: no EOS id, or one outside the logits.
    """

    def __init__(
        self,
        config: GrammarConfig,
        folder: Path | None,
        token_bytes: Sequence[bytes],
        special: frozenset[int],
        eos_token_ids: Sequence[int],
        vocab_size: int,
    ) -> None:
        vocabulary = Vocabulary.of(folder, token_bytes, special, eos_token_ids, vocab_size)
        self._config = config
        self._pool = Pool(vocabulary, config)
        self._cache = Cache(config.cached, config.memory_mib * MIB)
        self._running: dict[bytes, Future[Compiled]] = {}
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def compile(self, grammar: Grammar) -> Future[Compiled]:
        """Returns at once; a grammar that is known, or being compiled, is not compiled again. The future can't be cancelled: others may
        wait for the same grammar. Only what was compiled is kept, so a grammar that was refused is tried again when it comes again.

        The future raises:
            ParameterError: (param "grammar") invalid, supported by no backend, or too slow or too big to compile.
            EngineError: closed meanwhile, or an error of ours.
        """
        key = digest(grammar)
        with self._lock:
            if (future := self._running.get(key)) is not None:
                return future
            future = Future()
            future.set_running_or_notify_cancel()
            if (known := self._cache.get(key)) is not None:
                future.set_result(known)
                return future
            self._running[key] = future

        def done(outcome: Compiled | Exception, size: int) -> None:
            with self._lock:
                del self._running[key]
                if not isinstance(outcome, Exception):
                    self._cache.put(key, outcome, size)
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._pool.submit(grammar, done)
        return future

    def fill(self, jobs: Sequence[Job]) -> Filling:
        """Starts filling their masks; no matcher may stand in two jobs, or be used before `wait` has returned."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._config.threads, thread_name_prefix="grammar-masks")
        return start(self._threads, self._config.threads, jobs)

    @property
    def pids(self) -> list[int]:
        """Of the processes that compile."""
        return self._pool.pids

    def close(self) -> None:
        """Ends all threads and processes; what is being compiled fails with EngineError. May be called again."""
        self._pool.close()
        if self._threads is not None:
            self._threads.shutdown()


class Cache:
    """The grammars used last: at most so many, and at most so many bytes of them, as far as their size is known."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[bytes, tuple[Compiled, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> Compiled | None:
        if (entry := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, compiled: Compiled, size: int) -> None:
        self._entries[key] = (compiled, size)
        self._bytes += size
        while len(self._entries) > self._max_entries or (self._bytes > self._max_bytes and len(self._entries) > 1):
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed


def digest(grammar: Grammar) -> bytes:
    """Equal for grammars that compile to the same."""
    bare = msgspec.structs.replace(grammar, after=None, opening_token_id=None, close_in_time=False)
    return hashlib.sha256(msgspec.msgpack.encode(bare)).digest()
