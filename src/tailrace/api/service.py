"""What every endpoint has at hand: the engine's client, the tokenizer, the settings, the requests being served."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request

from tailrace.api.logprobs import Labels
from tailrace.api.metrics import Metrics
from tailrace.api.observe import Observer
from tailrace.api.peers import answer
from tailrace.api.store import ResponseStore
from tailrace.api.supervise import Supervisor
from tailrace.api.turns import Turns
from tailrace.config import ServerConfig
from tailrace.errors import ModelNotFoundError, NotReadyError
from tailrace.text.channels import REASONING
from tailrace.text.tools import TOOLS
from tailrace.wire.aio import AsyncClient

if TYPE_CHECKING:
    from tailrace.api.beam import BeamRequest
    from tailrace.api.generate import Generation
    from tailrace.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_POLL_S = 0.05


class Service:
    """One per app, in `app.state.service`."""

    def __init__(
        self,
        client: AsyncClient,
        tokenizer: Tokenizer,
        config: ServerConfig,
        model_name: str,
        defaults: Mapping[str, float | int],
    ) -> None:
        self.client, self.tokenizer, self.config, self.model_name = client, tokenizer, config, model_name
        self.defaults = defaults
        self.supervisor = Supervisor(client, config.on_engine_death)
        self.labels = Labels(tokenizer)
        self.reasoning = chosen(config.reasoning_parser, REASONING, lambda markers: (markers,), tokenizer)
        self.tools = chosen(config.tool_parser, TOOLS, lambda form: form.evidence, tokenizer)
        self.metrics = Metrics(
            lambda: client.stats,
            lambda: self.supervisor.condition == "ready",
            lambda: client.wasted_tokens,
            lambda: self.supervisor.stalls,
        )
        for name, text, held in (
            ("num_requests_open", "Requests that are being answered.", lambda: len(self.live)),
            ("num_aborts_unacknowledged", "Aborts that the engine has not confirmed.", lambda: client.unacknowledged),
            ("num_responses_stored", "Responses kept for retrieval.", lambda: len(self.responses)),
            ("responses_stored_bytes", "Memory that they take.", lambda: self.responses.bytes),
        ):
            self.metrics.watch(f"tailrace_{name}", text, held)
        self.observer = Observer(model_name, config)
        self.responses = ResponseStore()
        self.turns = Turns()
        client.answer = partial(answer, self)
        self.live: set[Generation | BeamRequest] = set()
        self.others_gone: Callable[[], Awaitable[None]] = nobody  # waits for whoever else needs this one's engine
        self.created_s = int(time.time())
        self.fingerprint = "fp_" + hashlib.sha256(f"{version('tailrace')} {model_name}".encode()).hexdigest()[:10]

    def check_model(self, name: str | None) -> None:
        """None is whatever is served.

        Raises:
            ModelNotFoundError: any other name.
        """
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(f"the model {name!r} does not exist; there is {self.model_name!r}", "model")

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


async def nobody() -> None:
    """There is nobody to wait for."""


def service_of(request: Request) -> Service:
    """The service behind a request."""
    return request.app.state.service
