"""GET / and /page/…: the page's files, as they stand in the package; and what the page must know of the server: its
fields (page_fields.py) and whether its models are ready. Knows nothing of what the page does.

The files are read when they are asked for, so a server whose page nobody opens never touches them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.front_end import FrontEnd, front_of
from tailrace.api.page_fields import page_fields
from tailrace.api.routes.health import Health, health_of
from tailrace.api.streaming import json_response

FOLDER = Path(__file__).parents[2] / "page"
INDEX = "index.html"
# a file of another kind is not served
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".LICENSE": "text/plain; charset=utf-8",
}
# A part of a path begins with a letter or a digit: there is no way up, and no hidden file.
PATH = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*/)*[A-Za-z0-9][A-Za-z0-9._-]*")
# Nothing from elsewhere, nothing inline, no eval, and no text that becomes markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-cache",  # a browser asks each time, and mostly hears 304
}


class Asset(NamedTuple):
    """A file. tag: of its content, in quotes, as ETag has it."""

    content: bytes
    tag: str


class PageStatus(msgspec.Struct, frozen=True):
    """What a page that is open shows before it can ask anything. `health`: as GET /health says. `models`: every name
    that a request may give. `keys`: requests need one. `loading`: the model that still loads → the part of its start
    (wire/pulse.py), "" where that is not known."""

    version: str
    health: Health
    models: list[str]
    keys: bool
    loading: dict[str, str]


async def get_index(request: Request) -> Response:
    """The page."""
    return serve_file(request, INDEX)


async def redirect_page(request: Request) -> Response:
    """/page and /page/ → the page, at the root: wherever a proxy has put the root."""
    up = "../" if request.url.path.endswith("/") else "./"
    return Response(status_code=308, headers=HEADERS | {"location": up})


async def get_asset(request: Request) -> Response:
    """One of its files."""
    return serve_file(request, request.path_params["path"])


async def get_fields(request: Request) -> Response:
    """Every sampling field, what it starts from, and whether streams can be resumed."""
    front = front_of(request)
    defaults = {name: dict(service.defaults) for name, service in front.served.items()}
    return with_headers(json_response(page_fields(defaults, front.config.resume_s > 0)))


async def get_status(request: Request) -> Response:
    """Whether the models are ready; answered while they load."""
    return with_headers(json_response(status_of(front_of(request))))


def status_of(front: FrontEnd) -> PageStatus:
    """Of all models."""
    keys = bool(front.config.keys)
    services = front.services.items()
    loading = {name: s.client.loading for name, s in services if s.supervisor.condition in ("starting", "loading")}
    return PageStatus(version("tailrace"), health_of(front), list(front.served), keys, loading)


def serve_file(request: Request, path: str) -> Response:
    """A file, or 304 where the browser has it already.

    Raises:
        HTTPException: 404, with the headers of the page's files.
    """
    kind = TYPES.get(Path(path).suffix)
    if kind is None or not PATH.fullmatch(path):
        raise HTTPException(404, headers=HEADERS)
    file = FOLDER / path
    try:
        content, tag = load_asset(file, file.stat().st_mtime_ns)
    except OSError:
        raise HTTPException(404, headers=HEADERS) from None
    headers = HEADERS | {"etag": tag}
    if tag in re.findall(r'"[^"]*"', request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers | {"content-type": kind})


@lru_cache(maxsize=128)
def load_asset(file: Path, mtime_ns: int) -> Asset:
    """The file as it is since `mtime_ns`.

    Raises:
        OSError: it can't be read.
    """
    content = file.read_bytes()
    return Asset(content, f'"{blake2b(content, digest_size=12).hexdigest()}"')


def with_headers(response: Response) -> Response:
    """The same answer with the headers of the page's files."""
    response.headers.update(HEADERS)
    return response
