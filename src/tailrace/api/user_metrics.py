"""What each user does, for /metrics. The number of users with samples of their own is bounded; all others share one.

The label of a user is its name in the settings, else the begin of its id. Keys and addresses do not appear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tailrace.api.request_record import RequestRecord
from tailrace.api.schema.common import Usage
from tailrace.api.user import make_user_id
from tailrace.api.user_table import UserTable
from tailrace.config import OTHER_USERS, ServerConfig

LABEL = "user"
ID_CHARS = 16  # of a user without a name


@dataclass(slots=True)
class UserCounts:
    """What is counted under one label. refused: requests by the limit that refused them."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    wait_s: float = 0.0
    refused: Counter[str] = field(default_factory=Counter[str])


COUNTERS: tuple[tuple[str, str, Callable[[UserCounts], float]], ...] = (
    ("requests", "Requests that have ended, by user.", lambda counts: counts.requests),
    ("prompt_tokens", "Tokens of their prompts.", lambda counts: counts.prompt_tokens),
    ("generation_tokens", "Tokens of their outputs.", lambda counts: counts.output_tokens),
    ("preparation_wait_seconds", "Time that requests waited until they were prepared.", lambda counts: counts.wait_s),
)


class UserMetrics(Collector):
    """The metrics by user of one front end.

    Args:
        table: shared by all front ends, so that a user has the same label in all.
    """

    def __init__(self, config: ServerConfig, table: UserTable) -> None:
        self._most, self._table = config.metrics_by_user, table
        self._names = {make_user_id("key", user.api_key): name for name, user in config.users.items()}
        self._labels: dict[str, str] = {}  # of the users with samples of their own
        self._counts: dict[str, UserCounts] = {}
        self._open: set[RequestRecord] = set()

    def begin_request(self, record: RequestRecord) -> None:
        """A request is accepted."""
        self._open.add(record)

    def end_request(self, record: RequestRecord, usage: Usage) -> None:
        """A request that was accepted has ended."""
        self._open.discard(record)
        counts = self._counts_of(record.origin.user)
        counts.requests += 1
        counts.prompt_tokens += usage.prompt_tokens
        counts.output_tokens += usage.completion_tokens

    def count_refusal(self, user: str, limit: str) -> None:
        """Count a request that a limit has refused."""
        self._counts_of(user).refused[limit] += 1

    def add_wait(self, user: str, wait_s: float) -> None:
        """Add the time that a request of a user has waited until it was prepared."""
        self._counts_of(user).wait_s += wait_s

    def describe(self) -> list[Metric]:
        """Nothing: duplicates are not looked for before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        running, waiting = Counter[str](), Counter[str]()
        for record in self._open:
            (waiting if record.first_token_s is None else running)[self._label_of(record.origin.user)] += 1
        for name, text, value in COUNTERS:
            family = CounterMetricFamily(f"tailrace_user_{name}", text, labels=[LABEL])
            for label, counts in self._counts.items():
                family.add_metric([label], value(counts))
            yield family
        for name, text, requests in (
            ("running", "Requests with a token, by user.", running),
            ("waiting", "Requests without a token so far, by user.", waiting),
        ):
            gauge = GaugeMetricFamily(f"tailrace_user_requests_{name}", text, labels=[LABEL])
            for label in dict.fromkeys([*self._counts, *running, *waiting]):
                gauge.add_metric([label], requests[label])
            yield gauge
        refused = CounterMetricFamily(
            "tailrace_user_requests_refused", "Requests that a limit has refused, by user.", labels=[LABEL, "limit"]
        )
        for label, counts in self._counts.items():
            for limit, number in counts.refused.items():
                refused.add_metric([label, limit], number)
        yield refused

    def _counts_of(self, user: str) -> UserCounts:
        return self._counts.setdefault(self._label_of(user), UserCounts())

    def _label_of(self, user: str) -> str:
        """The user's label. The first users get one of their own, as long as there are any."""
        if user not in self._labels and len(self._labels) < self._most:
            with self._table as table:
                new = table.list_own_metrics(len(self._labels))
                if user not in new and len(self._labels) + len(new) < self._most:
                    table.add_own_metrics(user)
                    new.append(user)
            self._labels |= {id: self._names.get(id, id[:ID_CHARS]) for id in new}
        return self._labels.get(user, OTHER_USERS)
