"""The engine's interface to grammars: it compiles a request's grammar, and fills masks while the model computes."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from tailrace.base.framed_pipes import MIB
from tailrace.config import GrammarConfig
from tailrace.grammar.base import BitmaskJob, Compiled
from tailrace.grammar.bitmasks import BitmaskFilling, start_filling
from tailrace.grammar.compile_pool import CompileJob, CompileOutcome, CompilePool, GrammarTooBigError
from tailrace.grammar.completion import token_orders
from tailrace.grammar.grammar_cache import RefusedGrammars, UserCache
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.request.options import Grammar

LATE = 4  # further threads, for masks that a step no longer waits for
REFUSALS = 64  # Number of remembered grammars that took too much.
# During this time such grammars are refused at once, because each attempt takes a place for its whole time limit.
REFUSED_S = 60.0
log = logging.getLogger(__name__)


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
        self._pool = CompilePool(vocabulary, config, self._keep_outcome)
        self._cache = UserCache[Compiled](config.cached, config.memory_mib * MIB)
        self._refusals = RefusedGrammars(REFUSALS, REFUSED_S)
        self._lock = threading.Lock()
        self._warming: threading.Thread | None = None
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None

    def compile(self, grammar: Grammar, user: str = "", salt: bytes = b"", weight: int = 1) -> Future[Compiled]:
        """Compile a grammar; returns at once. A grammar that is known or being compiled under the same salt is not
        compiled again.

        The future can't be cancelled, since others may wait for the same grammar: see `forget`. Grammars that took too
        much are remembered for a while. Those refused for another reason are compiled again when they come again.

        Args:
            user: whose request it is. Users take turns, and share the places for waiting grammars and the cache.
            salt: requests find each other's grammars only under the same salt (wire.messages.Owner).
            weight: the user's. Turns and places are by weight.

        The future raises:
            ParameterError: (param "grammar") invalid, not supported, or too slow or too big to compile.
            OverloadedError: too many grammars of the user wait to be compiled.
            EngineError: closed meanwhile, no request waits for it any more, or an error of ours.
        """
        key = hash_grammar(grammar, salt)
        if (running := self._pool.join(key, user, weight)) is not None:
            return running
        with self._lock:
            known, refusal = self._cache.get(key), self._refusals.get(key)
        if known is None and refusal is None:
            return self._pool.submit(key, grammar, user, weight)
        future = Future[Compiled]()
        if known is not None:
            future.set_result(known)
        elif refusal is not None:
            future.set_exception(GrammarTooBigError(refusal, "grammar"))
        return future

    def _keep_outcome(self, job: CompileJob, outcome: CompileOutcome) -> None:
        user = job.payer or ""
        with self._lock:
            if isinstance(outcome.result, GrammarTooBigError):
                self._refusals.put(job.key, str(outcome.result), user)
            elif not isinstance(outcome.result, Exception):
                self._cache.put(job.key, outcome.result, outcome.size, user)

    def forget(self, future: Future[Compiled]) -> None:
        """Note that the request that got this future no longer waits for it; then the future fails.

        If no request is left, a grammar that waits is dropped, and a grammar beyond the fast lane is stopped. Any other
        grammar that a process has started on is finished and kept for later requests.
        """
        self._pool.forget(future)

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
        return start_filling(self._threads, self._config.threads, jobs, self._config.step_ms / 1e3)

    @property
    def pids(self) -> list[int]:
        """Ids of the compiling process, and of its children that compile."""
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


def hash_grammar(grammar: Grammar, salt: bytes = b"") -> bytes:
    """Return a key, equal for grammars that compile to the same and have the same salt."""
    bare = Grammar(kind=grammar.kind, source=grammar.source, whitespace=grammar.whitespace)
    return hashlib.sha256(msgspec.msgpack.encode((salt, bare))).digest()
