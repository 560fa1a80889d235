"""What an endpoint needs of one model: the engine's client, the tokenizer, the parsers, the metrics, and the requests
being served."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from tailrace.api.access_log import Observer
from tailrace.api.cache_isolation import Isolation, choose_isolation, make_cache_salt
from tailrace.api.formats import choose_formats
from tailrace.api.logprobs import Labels
from tailrace.api.metrics import Metrics
from tailrace.api.request_record import RequestRecord
from tailrace.api.schema.common import Usage
from tailrace.api.supervise import Supervisor
from tailrace.api.user import index_named_users
from tailrace.api.user_metrics import UserMetrics
from tailrace.api.work_queue import WorkQueue
from tailrace.config import ServerConfig, UserConfig
from tailrace.errors import NotReadyError, TailraceError
from tailrace.params import SamplingParams
from tailrace.text.effort_probe import find_efforts
from tailrace.wire.async_client import AsyncClient
from tailrace.wire.messages import Owner, Replay

if TYPE_CHECKING:
    from tailrace.api.schema.common import GenerateRequest
    from tailrace.text.tokenizer import Tokenizer
    from tailrace.wire.async_stream import AsyncStream

log = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_POLL_S = 0.05
NO_NAME = UserConfig(api_key="")  # what users without a name have


class OpenRequest(Protocol):
    """A request that is being answered: a Generation, or a BeamRequest. Each method may be called at any time."""

    id: str

    @property
    def name(self) -> str:
        """What the client calls it."""
        ...

    @property
    def user(self) -> str:
        """The id of the user who asked."""
        ...

    @property
    def usage(self) -> Usage:
        """Its tokens so far."""
        ...

    @property
    def work(self) -> int:
        """Tokens that were computed for it so far, of its prompts too."""
        ...

    def cut(self, cause: str) -> None:
        """End the generation with the output so far."""
        ...

    def end_thoughts(self) -> bool:
        """Close its open thoughts. False where that can't be done."""
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
    user_metrics: UserMetrics | None


class Service:
    """One per model of a front end.

    Args:
        client: of the model's engine; not started. defaults: sampling fields that requests may leave out.

    Attributes:
        open_requests: requests that are being answered. isolation: which of them share cached prefixes.
        fingerprint: identifies the version and the model that an answer was made with.
        base_name: the model's first name.
        adapter, parent: the adapter that this service adds to the model `parent`; "" without an adapter.
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
        self.user_metrics, self.defaults = shared.user_metrics, defaults
        self.client, self.tokenizer, self.model_name = client, tokenizer, model_name
        self._named_users = index_named_users(config)
        self.isolation: Isolation = choose_isolation(config)
        self.adapter, self.parent, self.base_name = "", "", model_name
        self.fingerprint = fingerprint_of(model_name)
        called = f"the engine of {model_name}" if shared.named else "the engine"
        self.supervisor = Supervisor(client, config.on_engine_death, called)
        self.labels = Labels(tokenizer)
        find_efforts(tokenizer)  # the templates are tried now, not by the first request
        self._id_labels = Labels(tokenizer, self.labels)
        self.template, self.reasoning, self.tools = choose_formats(config, tokenizer)
        self.metrics = Metrics(
            lambda: client.stats,
            lambda: self.supervisor.condition == "ready",
            lambda: client.wasted_tokens,
            lambda: self.supervisor.stalls,
            lambda: client.model if client.ready else None,
            lambda: client.asleep,
        )
        for name, text, held in (
            ("num_requests_open", "Requests that are being answered.", lambda: len(self.open_requests)),
            ("num_aborts_unacknowledged", "Aborts that the engine has not confirmed.", lambda: client.unacknowledged),
        ):
            self.metrics.watch(f"tailrace_{name}", text, held)
        self.open_requests: set[OpenRequest] = set()
        self.created_s = int(time.time())
        self._warned: set[str] = set()

    def warn_once(self, text: str) -> None:
        """Log a warning about this model, the first time."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s: %s", self.model_name, text)

    def with_adapter(self, adapter: str) -> Service:
        """The same service with an adapter, under the adapter's name; all else is shared."""
        other = copy(self)
        other.model_name, other.adapter, other.parent = adapter, adapter, self.model_name
        other.fingerprint = fingerprint_of(adapter)
        return other

    def with_alias(self, alias: str) -> Service:
        """The same service under another name."""
        other = copy(self)
        other.model_name = alias
        return other

    @property
    def may_sleep(self) -> bool:
        """True if the model's memory may be given back while the server runs."""
        return self.client.sleep.after > 0 or self.config.sleep_endpoints

    @property
    def progress(self) -> float | None:
        """The share of the load of a model that has slept, from 0 to 0.99; None: none is loaded, or it is unknown."""
        share = self.client.sleep.progress
        return None if share is None else round(share, 2)

    def describe_wait(self) -> str:
        """What a request waits for, if its model has slept; "" for any other model."""
        if not self.client.asleep:
            return ""
        part, share = self.client.loading, self.progress
        of_part = f" ({part})" if part else ""
        return f"loading the model{of_part}" + ("" if share is None else f": {share:.0%}")

    def labels_for(self, ask: GenerateRequest) -> Labels:
        """How the logprobs of a request's answer name tokens."""
        return self._id_labels if ask.return_tokens_as_token_ids else self.labels

    def submit(
        self, record: RequestRecord, prompt: list[int], params: SamplingParams, replay: Replay | None = None
    ) -> AsyncStream:
        """Ask the engine for the answer to a prompt of the recorded request, or for the explanation of one."""
        origin = record.origin
        named = self._named_users.get(origin.user, NO_NAME)
        most = self.config.max_priority if named.max_priority is None else named.max_priority
        salt = make_cache_salt(self.isolation, origin.user, origin.cache_salt)
        return self.client.submit(
            prompt,
            params,
            id=record.engine_id,
            priority=max(-most, min(most, origin.priority)),
            adapter=self.adapter,
            replay=replay,
            owner=Owner(salt, origin.user, origin.priority, named.weight),
            reports_progress=origin.reports_progress,
        )

    @contextlib.contextmanager
    def track_request(self, request: OpenRequest, record: RequestRecord) -> Iterator[None]:
        """While the request is answered, it is one of `open_requests`. It is cut when its time limit is over, or the
        server's, whichever ends first. Everything of it has ended on exit, and its time or its failure is counted.

        Raises:
            NotReadyError, EngineDeadError: the engine can't take requests; then nothing has begun.
        """
        self.supervisor.check()
        self.open_requests.add(request)
        if self.user_metrics is not None:
            self.user_metrics.begin_request(record)
        limits = [limit for limit in (record.origin.deadline_s, self.config.max_request_s) if limit]
        timer = asyncio.get_running_loop().call_later(min(limits), request.cut, "deadline") if limits else None
        try:
            yield
            self.metrics.e2e_latency.observe(record.age_s)
        except Exception as error:
            if isinstance(error, TailraceError):  # else it is a bug of ours
                self.metrics.failed.labels(error.code).inc()
            record.record_interruption(None, error)
            request.abort("failed")
            raise
        finally:
            if timer is not None:
                timer.cancel()
            request.abort("closed")
            self.open_requests.discard(request)
            self._settle(request, record)
            record.end(request.usage)

    def _settle(self, request: OpenRequest, record: RequestRecord) -> None:
        """Count the request for its user. Nobody pays for a failure before the first token."""
        if (admission := record.origin.admission) is not None:
            admission.finish(0 if record.is_void else request.work)
        if self.user_metrics is not None:
            self.user_metrics.end_request(record, request.usage)

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing new; let what runs finish within the time, then end it with an error."""
        self.supervisor.drain()
        until_s = time.monotonic() + timeout_s
        while self.open_requests and time.monotonic() < until_s:
            await asyncio.sleep(DRAIN_POLL_S)
        if self.open_requests:
            log.warning("%d requests did not finish within %g s and are aborted", len(self.open_requests), timeout_s)
        self.end_requests()

    def end_requests(self) -> None:
        """End what runs with an error: the server ends."""
        for generation in list(self.open_requests):
            generation.fail(NotReadyError("the server is shutting down"), "shutdown")


@cache
def fingerprint_of(model_name: str) -> str:
    """The fingerprint. Cached, because the version is read from the disk."""
    return "fp_" + hashlib.sha256(f"{version('tailrace')} {model_name}".encode()).hexdigest()[:10]
