"""Who may call: by which host name, from which site's pages, and with which API key; and the key's user. Knows no
endpoint."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection, Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.api import error_handlers
from tailrace.api.user import USER, make_user_id
from tailrace.errors import AuthenticationError, format_json

# load balancers, scrapers and tools have no key
OPEN = ("/health", "/ping", "/version", "/metrics", "/openapi.json")
PAGE = re.compile(r"/|/page(?:/.*)?", re.DOTALL)  # a browser opens the page before it has a key


class ApiKeys:
    """Lets a request through if its `Authorization: Bearer …` or its `x-api-key` is one of the keys; compared in
    constant time. The key names the request's user. Of two headers one may be wrong; the keys of two users are refused,
    because the request's user would be a guess. page: the files of the page are open to all."""

    def __init__(self, app: ASGIApp, keys: Iterable[str], page: bool = False) -> None:
        self._app, self._page = app, page
        self._users = {key.encode(): make_user_id("key", key) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open_path(scope["path"]) or scope["method"] == "OPTIONS":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        given = [key.encode() for key in (bearer, headers.get("x-api-key", "").strip()) if key]
        found = {
            user for word in given for key, user in self._users.items() if hmac.compare_digest(word, key)
        }  # all are compared, whatever the first says
        if len(found) == 1:
            [scope[USER]] = found
            return await self._app(scope, receive, send)
        error = AuthenticationError(explain_refusal(len(found), bool(given or token)))
        response = error_handlers.make_error_response(
            scope,
            error.status,
            error_handlers.make_error_body(error),
            {"www-authenticate": "Bearer", "connection": "close"},
        )
        await response(scope, receive, send)

    def _is_open_path(self, path: str) -> bool:
        return path in OPEN or (self._page and PAGE.fullmatch(path) is not None)


def explain_refusal(users: int, given: bool) -> str:
    """Return why a request is refused. users: whose keys it has. given: it has a key at all."""
    if users:
        return "Authorization and x-api-key are the keys of two users: send one of them"
    return "Incorrect API key provided" if given else "an API key is required: Authorization: Bearer …"


class Site:
    """Lets a request through if its Host is a name of this server and its Origin is no other site's page.

    A page can send requests to every server that its reader's machine can reach. It can read the answers if its own
    host name resolves to that machine (DNS rebinding). But it can set neither Host nor Origin.

    The page's own files are public. They load under any Origin, so that a page behind a proxy that changes Host can
    show why its requests are refused.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._origins = {origin.lower() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if host and not self._is_known_host(host):
            message = f"this server is not called {format_json(host, 200)}; --allowed-hosts names what it is called"
        elif origin is not None and not is_page_file(scope) and not self._is_allowed_origin(origin.lower(), host):
            message = (
                f"pages of {format_json(origin, 200)} may not call this server; --cors-origins names those that may, "
                f"and a proxy must pass Host with its port (got {format_json(host, 200)})"
            )
        else:
            return await self._app(scope, receive, send)
        response = error_handlers.make_error_response(
            scope, 403, error_handlers.of_http(403, message), {"connection": "close"}
        )
        await response(scope, receive, send)

    def _is_known_host(self, host: str) -> bool:
        name = name_of(host)
        return name in self._hosts or (LOOPBACK in self._hosts and is_loopback(name))

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        return "*" in self._origins or origin in self._origins or origin in (f"http://{host}", f"https://{host}")


def is_page_file(scope: Scope) -> bool:
    """Return whether a request reads a file of the page."""
    return scope["method"] in ("GET", "HEAD") and scope["path"].startswith("/page/")


LOOPBACK = "localhost"  # stands for every name of the loopback interface


def name_of(host: str) -> str:
    """The name in a Host header: without the port, brackets, and a final dot."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.removesuffix(".")


def is_loopback(name: str) -> bool:
    """A name or an address of the loopback interface."""
    if name == LOOPBACK or name.endswith("." + LOOPBACK):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def hosts_of(allowed: Collection[str], bound: str) -> Collection[str] | None:
    """The host names that are accepted: the allowed ones, the bound one, and loopback's. None: every name.

    bound: the address that the server listens on. Without allowed names, only a server on loopback checks names.
    """
    if "*" in allowed or not (allowed or is_loopback(bound.lower())):
        return None
    return [*allowed, LOOPBACK, bound]
