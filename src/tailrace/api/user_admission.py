"""The middleware of limits per user: admits the requests that count, and writes what the user has left into the headers
of their answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.api.anthropic_errors import is_anthropic
from tailrace.api.error_handlers import error_response
from tailrace.api.rate_bucket import divide_up
from tailrace.api.route_costs import Cost, find_cost
from tailrace.api.user import user_of
from tailrace.api.user_limits import Standing, UserLimits, format_duration
from tailrace.errors import TailraceError

ADMISSION = "tailrace.admission"  # where the ASGI scope has the Admission
LIMITS = Standing._fields
PARTS = ("limit", "remaining", "reset")
EXPOSED = (
    *(f"x-ratelimit-{part}-{limit}" for limit in LIMITS for part in PARTS),
    *(f"anthropic-ratelimit-{limit}-{part}" for limit in LIMITS for part in PARTS),
    "retry-after",
    "retry-after-ms",
)  # headers that pages of other sites may read


class UserAdmission:
    """Admits requests, or refuses them by a 429. route_costs.py says what counts.

    Args:
        now_s: the time of day, in seconds since 1970.
    """

    def __init__(self, app: ASGIApp, limits: UserLimits, now_s: Callable[[], float] = time.time) -> None:
        self._app, self._limits, self._now_s = app, limits, now_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cost = Cost.FREE if scope["type"] != "http" else find_cost(scope["method"], scope["path"])
        if cost is Cost.FREE:
            return await self._app(scope, receive, send)
        user = user_of(scope)

        async def send_with_standing(message: Message) -> None:
            if message["type"] == "http.response.start":
                standing = self._limits.read_standing(user)
                found = anthropic_headers(standing, self._now_s()) if is_anthropic(scope) else openai_headers(standing)
                MutableHeaders(scope=message).update(found)
            await send(message)

        try:
            # whoever runs as many requests as it may still reads and deletes the responses of those in the background
            runs = scope["method"] == "POST"
            admission = scope[ADMISSION] = self._limits.admit(user, cost is Cost.TOKENS, runs)
        except TailraceError as error:
            return await error_response(scope, error)(scope, receive, send_with_standing)
        try:
            await self._app(scope, receive, send_with_standing)
        finally:
            if not admission.outlives:
                admission.finish()


def openai_headers(standing: Standing) -> dict[str, str]:
    """Return what is left, under OpenAI's names: the time until a bucket is full is a duration."""
    found: dict[str, str] = {}
    for limit, bucket in zip(LIMITS, standing, strict=True):
        if bucket.limit:
            values = (bucket.limit, bucket.remaining, format_duration(divide_up(bucket.reset_us, 1000)))
            found |= {f"x-ratelimit-{part}-{limit}": str(value) for part, value in zip(PARTS, values, strict=True)}
    return found


def anthropic_headers(standing: Standing, now_s: float) -> dict[str, str]:
    """Return what is left, under Anthropic's names: the time at which a bucket is full is in RFC 3339."""
    found: dict[str, str] = {}
    for limit, bucket in zip(LIMITS, standing, strict=True):
        if bucket.limit:
            full = datetime.fromtimestamp(math.ceil(now_s + bucket.reset_us / 1e6), UTC)
            values = (bucket.limit, bucket.remaining, full.strftime("%Y-%m-%dT%H:%M:%SZ"))
            found |= {
                f"anthropic-ratelimit-{limit}-{part}": str(value) for part, value in zip(PARTS, values, strict=True)
            }
    return found
