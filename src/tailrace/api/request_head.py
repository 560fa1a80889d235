"""Checks of a request's line and headers before anything else reads them (RFC 9112). Knows no endpoint and no
socket."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

VERSIONS = ("1.0", "1.1")
ONCE = (b"origin", b"content-type", b"authorization", b"x-api-key")
MAX_PORT = 65_535
TLS = b"\x16\x03"  # how a TLS handshake begins

_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::([0-9]{0,5}))?")
_ABSOLUTE = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?#]*)(.*)", re.DOTALL)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class RefusedError(Exception):
    """A request that is refused: the status and the message of the answer. The connection ends with it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class RequestTarget(NamedTuple):
    """The target of a request: the path, decoded and as sent, and the query."""

    path: str
    raw_path: bytes
    query: bytes


def target_of(method: str, version: str, url: bytes, headers: list[tuple[bytes, bytes]]) -> RequestTarget:
    """The target of a request whose head is complete. headers: with names in small letters.

    Raises:
        RefusedError: for what the parser accepts although its meaning is not certain.
    """
    if version not in VERSIONS:
        raise RefusedError(505, f"HTTP/{version} is not served here; HTTP/1.1 is")
    if method == "CONNECT":
        raise RefusedError(405, "CONNECT is not served here: this is no proxy")
    hosts = [value.strip() for name, value in headers if name == b"host"]
    check_hosts(hosts, version)
    check_once(headers)
    check_framing(headers, version)
    if absolute := _ABSOLUTE.fullmatch(url):
        authority, url = absolute.groups()
        if authority != (hosts or [authority])[0]:
            raise RefusedError(400, "the host of the request's target is another than that of its Host header")
        url = url if url.startswith(b"/") else b"/" + url
    elif not url.startswith(b"/") and not (url == b"*" and method == "OPTIONS"):
        raise RefusedError(400, "the request's target must be a path that begins with /")
    return split_url(url.partition(b"#")[0])


def check_hosts(hosts: list[bytes], version: str) -> None:
    """Raise RefusedError unless there is one Host header with a valid host. HTTP/1.0 needs no Host header."""
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise RefusedError(400, f"a request must have exactly one Host header, not {len(hosts)}")
    if hosts and (not (host := _HOST.fullmatch(hosts[0])) or int(host[2] or 0) > MAX_PORT):
        raise RefusedError(400, "the Host header holds no host")


def check_once(headers: list[tuple[bytes, bytes]]) -> None:
    """Headers that decide who may call and how a body is read must not be repeated: a proxy may have read the other
    one."""
    names = [name for name, _ in headers]
    for name in ONCE:
        if (count := names.count(name)) > 1:
            raise RefusedError(400, f"a request may have one {name.decode()} header, not {count}")


def check_framing(headers: list[tuple[bytes, bytes]], version: str) -> None:
    """Only framings without ambiguity: a proxy must not see other requests than this server does."""
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and version == "1.0":
        raise RefusedError(400, "HTTP/1.0 has no Transfer-Encoding")
    if codings not in ([], [b"chunked"]):
        raise RefusedError(501, "the only Transfer-Encoding that is served is chunked")
    expected = [value.strip().lower() for name, value in headers if name == b"expect"]
    if any(value != b"100-continue" for value in expected):
        raise RefusedError(417, "the only expectation that can be met is 100-continue")


def read_path(url: bytes) -> str:
    """Return the path of a URL as far as it can be read, for the answer to a request that is refused."""
    absolute = _ABSOLUTE.fullmatch(url)
    return unquote_to_bytes((absolute[2] if absolute else url).partition(b"?")[0]).decode("utf-8", "replace")


def split_url(url: bytes) -> RequestTarget:
    """A path with its query.

    Raises:
        RefusedError: an escape that is none, or one that stands for a control character.
    """
    raw_path, _, query = url.partition(b"?")
    if _BAD_ESCAPE.search(raw_path):
        raise RefusedError(400, "the path holds a % that two hexadecimal digits do not follow")
    path = unquote_to_bytes(raw_path).decode("utf-8", "replace")
    if _CONTROL.search(path):
        raise RefusedError(400, "the path holds a control character")
    return RequestTarget(path, raw_path, query)


def reason_of(error: Exception, begin: bytes) -> RefusedError:
    """The answer to what the parser could not read. begin: the first bytes of it."""
    if begin.startswith(TLS):
        return RefusedError(400, "this port speaks plain HTTP, not TLS")
    if begin.startswith(b"PRI * HTTP/2"):
        return RefusedError(505, "HTTP/2.0 is not served here; HTTP/1.1 is")
    if "Invalid HTTP version" in str(error):  # the parser's words for a number that it does not know
        return RefusedError(505, "the request is of no version of HTTP that is served here; HTTP/1.1 is")
    return RefusedError(400, f"the request is not valid HTTP: {error}")


def framing_of(headers: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    """The header that says how long the body is; None: there is no body."""
    found = (h for h in headers if h[0] == b"transfer-encoding" or (h[0] == b"content-length" and h[1].strip(b" 0")))
    return next(found, None)
