"""The engine's interface to grammars: it compiles a request's grammar, and fills masks while the model computes."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tailrace.config import GrammarConfig
from tailrace.errors import EngineError
from tailrace.grammar.base import BitmaskJob, Compiled
from tailrace.grammar.bitmasks import BitmaskFilling, start_filling
from tailrace.grammar.compile_pool import CompileJob, CompilePool, GrammarTooBigError
from tailrace.grammar.completion import token_orders
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.grammar.worker import MIB
from tailrace.request.options import Grammar

LATE = 4  # further threads, for masks that a step no longer waits for
REFUSALS = 64  # Number of remembered grammars that took too much.
# During this time such grammars are refused at once, because each attempt blocks a process for its whole time limit.
REFUSED_S = 60.0
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RunningCompile:
    """A grammar that waits for a process or is being compiled, and the number of requests that wait for it."""

    key: bytes
    future: Future[Compiled]
    job: CompileJob
    requests: int = 1


class Grammars:
    """The grammars of one vocabulary.

    Args:
        folder: of the tokenizer, for forced tokens. None: texts are split greedily.
        token_bytes: the bytes of each id (engine/token_bytes.py).
        special: ids that never spell text.
        eos_token_ids: the ids that end the output. The grammar decides where they are allowed.
        vocab_size: of the logits. Ids beyond `token_bytes` are never allowed.

    Raises:
        ValueError: no EOS id, or one outside of the logits.
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
        self._config, self._vocabulary = config, vocabulary
        self._pool = CompilePool(vocabulary, config)
        self._cache = GrammarCache(config.cached, config.memory_mib * MIB)
        self._running: dict[bytes, RunningCompile] = {}
        self._refusals = RefusedGrammars(REFUSALS, REFUSED_S)
        self._lock = threading.Lock()
        self._warming: threading.Thread | None = None
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None

    def compile(self, grammar: Grammar) -> Future[Compiled]:
        """Compile a grammar; returns at once. A grammar that is known or being compiled is not compiled again.

        The future can't be cancelled, since others may wait for the same grammar: see `forget`. Grammars that took too
        much are remembered for a while. Those refused for another reason are compiled again when they come again.

        The future raises:
            ParameterError: (param "grammar") invalid, not supported, or too slow or too big to compile.
            OverloadedError: too many grammars wait to be compiled.
            EngineError: closed meanwhile, no request waits for it any more, or an error of ours.
        """
        key, future = hash_grammar(grammar), Future[Compiled]()
        future.set_running_or_notify_cancel()

        def finish_compile(outcome: Compiled | Exception, size: int) -> None:
            with self._lock:
                del self._running[key]
                if isinstance(outcome, GrammarTooBigError):
                    self._refusals.put(key, str(outcome))
                elif not isinstance(outcome, Exception):
                    self._cache.put(key, outcome, size)
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        with self._lock:
            if (running := self._running.get(key)) is not None:
                running.requests += 1
                return running.future
            if (known := self._cache.get(key)) is not None:
                future.set_result(known)
                return future
            if (refusal := self._refusals.get(key)) is not None:
                future.set_exception(GrammarTooBigError(refusal, "grammar"))
                return future
            job = CompileJob(grammar, finish_compile)
            self._running[key] = RunningCompile(key, future, job)
        self._pool.submit(job)
        return future

    def forget(self, future: Future[Compiled]) -> None:
        """Note that one of the requests that got this future no longer waits for it.

        If no request is left and no process has started on the grammar, the grammar is dropped and its future fails. If
        one has started, it finishes, and the grammar is kept for later requests.
        """
        with self._lock:
            running = next((r for r in self._running.values() if r.future is future), None)
            if running is None:
                return  # it is done
            running.requests -= 1
            if running.requests > 0 or not self._pool.withdraw_job(running.job):
                return
            del self._running[running.key]
        future.set_exception(EngineError("no request waits for this grammar any more"))

    def warm_up(self) -> None:
        """Import the library and give it the vocabulary, on a thread of its own; returns at once. This blocks the
        interpreter for about 0.3 s in pieces, so it should not happen while tokens are due. Errors are only logged: the
        first grammar will report them."""
        with self._lock:
            if self._warming is None and not self._closed:
                self._warming = threading.Thread(target=self._warm_up, name="grammar-warming", daemon=True)
                self._warming.start()

    def _warm_up(self) -> None:
        try:
            self._vocabulary.cut(b"a")
            token_orders(self._vocabulary)
            if not self._closed:
                self._pool.get_compiler()
        except BaseException:
            log.exception("the grammar library could not be warmed up")

    def fill(self, jobs: Sequence[BitmaskJob]) -> BitmaskFilling:
        """Start filling the jobs' masks. No matcher may be in two jobs, or be used before `wait` has returned."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._config.threads + LATE, thread_name_prefix="grammar-masks")
        return start_filling(self._threads, self._config.threads, jobs, self.step_s)

    @property
    def step_s(self) -> float:
        """Processor time in seconds that one sequence's grammar may take in a step."""
        return self._config.step_ms / 1e3

    @property
    def pids(self) -> list[int]:
        """Ids of the compiling processes."""
        return self._pool.pids

    def close(self) -> None:
        """End all threads and processes. Grammars being compiled fail with EngineError. May be called again."""
        with self._lock:
            self._closed, warming = True, self._warming
        self._pool.close()
        if warming is not None:
            warming.join()
        if self._threads is not None:
            self._threads.shutdown()


class GrammarCache:
    """The grammars used last, limited in number and in bytes (as far as their sizes are known)."""

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


class RefusedGrammars:
    """Why grammars that took too much were refused; remembered for a while."""

    def __init__(self, max_entries: int, seconds: float) -> None:
        self._max_entries, self._seconds = max_entries, seconds
        self._entries: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def get(self, key: bytes) -> str | None:
        text, until = self._entries.get(key, (None, 0.0))
        return text if time.monotonic() < until else None

    def put(self, key: bytes, text: str) -> None:
        self._entries[key] = (text, time.monotonic() + self._seconds)
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)


def hash_grammar(grammar: Grammar) -> bytes:
    """Return a key, equal for grammars that compile to the same."""
    bare = Grammar(kind=grammar.kind, source=grammar.source, whitespace=grammar.whitespace)
    return hashlib.sha256(msgspec.msgpack.encode(bare)).digest()
