"""What every endpoint has at hand of one model: the engine's client, the tokenizer, the requests being served, and the front end's own."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request

from tailrace.api.logprobs import Labels
from tailrace.api.metrics import Metrics
from tailrace.api.supervise import Supervisor
from tailrace.errors import NotReadyError
from tailrace.text.reasoning import REASONING_MARKERS
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.wire.async_client import AsyncClient

if TYPE_CHECKING:
    from tailrace.api.beam import BeamRequest
    from tailrace.api.front_end import FrontEnd
    from tailrace.api.generate import Generation
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_POLL_S = 0.05


class Service:
    """One per model of a front end."""

    def __init__(
        self,
        front: FrontEnd,
        client: AsyncClient,
        tokenizer: Tokenizer,
        model_name: str,
        defaults: Mapping[str, float | int],
    ) -> None:
        config = front.config
        self.front, self.config, self.turns, self.observer = front, config, front.turns, front.observer
        self.client, self.tokenizer, self.model_name = client, tokenizer, model_name
        self.defaults = defaults
        self.adapter = self.parent = ""  # see `adapted`
        called = f"the engine of {model_name}" if front.named else "the engine"
        self.supervisor = Supervisor(client, config.on_engine_death, called)
        self.labels = Labels(tokenizer)
        self.reasoning = chosen(config.reasoning_parser, REASONING_MARKERS, lambda markers: (markers,), tokenizer)
        self.tools = chosen(config.tool_parser, TOOL_FORMATS, lambda form: form.evidence, tokenizer)
        self.metrics = Metrics(
            lambda: client.stats,
            lambda: self.supervisor.condition == "ready",
            lambda: client.wasted_tokens,
            lambda: self.supervisor.stalls,
        )
        for name, text, held in (
            ("num_requests_open", "Requests that are being answered.", lambda: len(self.live)),
            ("num_aborts_unacknowledged", "Aborts that the engine has not confirmed.", lambda: client.unacknowledged),
        ):
            self.metrics.watch(f"tailrace_{name}", text, held)
        self.live: set[Generation | BeamRequest] = set()
        self.created_s = int(time.time())

    @property
    def fingerprint(self) -> str:
        """What an answer was made with."""
        return fingerprint_of(self.model_name)

    def adapted(self, adapter: str) -> Service:
        """The same with an adapter, under its name: all else is shared."""
        other = copy(self)
        other.model_name, other.adapter, other.parent = adapter, adapter, self.model_name
        return other

    def limited(self, deadline_s: float | None, cut: Callable[[str], None]) -> asyncio.TimerHandle | None:
        """Call `cut` when a request has had its time: its own, or the server's if that ends before; None where there is no limit."""
        limits = [limit for limit in (deadline_s, self.config.max_request_s) if limit]
        return asyncio.get_running_loop().call_later(min(limits), cut, "deadline") if limits else None

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing new; let what runs finish within the time, then end it with an error."""
        self.supervisor.drain()
        until_s = time.monotonic() + timeout_s
        while self.live and time.monotonic() < until_s:
            await asyncio.sleep(DRAIN_POLL_S)
        if self.live:
            log.warning("%d requests did not finish within %g s and are aborted", len(self.live), timeout_s)
        for generation in list(self.live):
            generation.fail(NotReadyError("the server is shutting down"), "shutdown")


def chosen(
    name: str, known: Mapping[str, T], evidence: Callable[[T], Sequence[tuple[str, ...]]], tokenizer: Tokenizer
) -> T | None:
    """What has this name; of "auto" the first of which the model is known to write all of some evidence."""
    if name == "auto":
        return next((it for it in known.values() if any(all(map(tokenizer.writes, e)) for e in evidence(it))), None)
    return known.get(name)


def service_of(request: Request) -> Service:
    """The service behind a request: of the model that it names, once that is known; until then the default's."""
    return getattr(request.state, "service", None) or request.app.state.front.default


@cache
def fingerprint_of(model_name: str) -> str:
    """Of this version and a model; the version is looked up on the disk."""
    return "fp_" + hashlib.sha256(f"{version('tailrace')} {model_name}".encode()).hexdigest()[:10]
