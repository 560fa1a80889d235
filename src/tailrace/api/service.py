"""What an endpoint needs of one model: the engine's client, the tokenizer, the parsers, the metrics, and the requests
being served."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from starlette.requests import Request

from tailrace.api.access_log import Observer
from tailrace.api.logprobs import Labels
from tailrace.api.metrics import Metrics
from tailrace.api.supervise import Supervisor
from tailrace.api.work_queue import WorkQueue
from tailrace.config import ServerConfig
from tailrace.errors import NotReadyError, TailraceError
from tailrace.text.reasoning import REASONING_MARKERS
from tailrace.text.tool_parsers import ALIASES, TOOL_FORMATS
from tailrace.wire.async_client import AsyncClient

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_POLL_S = 0.05


class OpenRequest(Protocol):
    """A request that is being answered: a Generation, or a BeamRequest. Each method may be called at any time."""

    id: str

    @property
    def name(self) -> str:
        """What the client calls it."""
        ...

    def cut(self, cause: str) -> None:
        """End it with what there is."""
        ...

    def abort(self, cause: str) -> None:
        """End it; nothing more comes."""
        ...

    def fail(self, error: TailraceError, cause: str) -> None:
        """End it with an error."""
        ...


class Shared(NamedTuple):
    """What the services of one front end share. named: the operator has named the models."""

    config: ServerConfig
    work_queue: WorkQueue
    observer: Observer
    named: bool


class Service:
    """One per model of a front end.

    Args:
        client: of the model's engine; not started. defaults: sampling fields that requests may leave out.

    Attributes:
        open_requests: those that are being answered.
        adapter, parent: the adapter that this service adds to the model `parent`; "" where there is none.
    """

    def __init__(
        self,
        shared: Shared,
        client: AsyncClient,
        tokenizer: Tokenizer,
        model_name: str,
        defaults: Mapping[str, float | int],
    ) -> None:
        config = shared.config
        self.config, self.work_queue, self.observer = config, shared.work_queue, shared.observer
        self.client, self.tokenizer, self.model_name = client, tokenizer, model_name
        self.defaults = defaults
        self.adapter = self.parent = ""
        called = f"the engine of {model_name}" if shared.named else "the engine"
        self.supervisor = Supervisor(client, config.on_engine_death, called)
        self.labels = Labels(tokenizer)
        self.reasoning = select_parser(
            config.reasoning_parser, REASONING_MARKERS, lambda markers: (markers,), tokenizer
        )
        name = ALIASES.get(config.tool_parser, config.tool_parser)
        self.tools = select_parser(name, TOOL_FORMATS, lambda form: form.evidence, tokenizer)
        self.metrics = Metrics(
            lambda: client.stats,
            lambda: self.supervisor.condition == "ready",
            lambda: client.wasted_tokens,
            lambda: self.supervisor.stalls,
        )
        for name, text, held in (
            ("num_requests_open", "Requests that are being answered.", lambda: len(self.open_requests)),
            ("num_aborts_unacknowledged", "Aborts that the engine has not confirmed.", lambda: client.unacknowledged),
        ):
            self.metrics.watch(f"tailrace_{name}", text, held)
        self.open_requests: set[OpenRequest] = set()
        self.created_s = int(time.time())

    @property
    def fingerprint(self) -> str:
        """Identifies the version and the model that an answer was made with."""
        return fingerprint_of(self.model_name)

    def adapted(self, adapter: str) -> Service:
        """The same service with an adapter, under the adapter's name; all else is shared."""
        other = copy(self)
        other.model_name, other.adapter, other.parent = adapter, adapter, self.model_name
        return other

    def call_at_deadline(self, deadline_s: float | None, cut: Callable[[str], None]) -> asyncio.TimerHandle | None:
        """Call `cut` when the request's time limit is over, or the server's, whichever ends first. None where there is
        no limit."""
        limits = [limit for limit in (deadline_s, self.config.max_request_s) if limit]
        return asyncio.get_running_loop().call_later(min(limits), cut, "deadline") if limits else None

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing new; let what runs finish within the time, then end it with an error."""
        self.supervisor.drain()
        until_s = time.monotonic() + timeout_s
        while self.open_requests and time.monotonic() < until_s:
            await asyncio.sleep(DRAIN_POLL_S)
        if self.open_requests:
            log.warning("%d requests did not finish within %g s and are aborted", len(self.open_requests), timeout_s)
        for generation in list(self.open_requests):
            generation.fail(NotReadyError("the server is shutting down"), "shutdown")


def select_parser(
    name: str, known: Mapping[str, T], evidence: Callable[[T], Sequence[tuple[str, ...]]], tokenizer: Tokenizer
) -> T | None:
    """The parser of this name. "auto": the first parser for which the model's template or vocabulary shows all of some
    evidence."""
    if name == "auto":
        return next((it for it in known.values() if any(all(map(tokenizer.writes, e)) for e in evidence(it))), None)
    return known.get(name)


def service_of(request: Request) -> Service:
    """The service of the model that a request names; of the default model until that is known."""
    return getattr(request.state, "service", None) or request.app.state.front.default


@cache
def fingerprint_of(model_name: str) -> str:
    """The fingerprint. Cached, because the version is read from the disk."""
    return "fp_" + hashlib.sha256(f"{version('tailrace')} {model_name}".encode()).hexdigest()[:10]
