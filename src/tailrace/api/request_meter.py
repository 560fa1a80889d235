"""Counts the bytes of the requests on one connection, against the limits of a head and of what frames a body. Knows no
socket."""

from __future__ import annotations

from tailrace.api.request_head import RefusedError
from tailrace.config import ServerConfig

CHUNK_LINE = 12  # bytes that a chunk may take besides its data; what is beyond counts as extensions
FIRST_BYTES = 16  # by which other protocols are known


class RequestMeter:
    """What has been read of the present request. Each method raises RefusedError where a limit is exceeded.

    Attributes:
        in_head: a head, or the start of one, is read.
        head_bytes: of a head that is not complete. first: the first bytes of what is read.
    """

    def __init__(self, limits: ServerConfig) -> None:
        self._limits = limits
        self.in_head = self._started = True
        self.head_bytes, self.first = 0, b""
        self._boundary = False  # a head or a body began or ended in the piece at hand
        self._header_bytes = 0  # of the headers so far
        self._framing_left = 0  # bytes that a body may still take besides its data

    def begin_piece(self, data: bytes) -> None:
        """A piece of data goes to the parser."""
        self._boundary = False
        self._started = self._started or self.in_head
        if self.in_head and len(self.first) < FIRST_BYTES:
            self.first += data[:FIRST_BYTES]

    def end_piece(self, size: int) -> None:
        """The parser has read the piece. A piece in which a head or a body begins or ends is not counted."""
        limits = self._limits
        if self._boundary:
            self.head_bytes = size if self._started else 0
        elif self.in_head:
            self.head_bytes += size
            if self.head_bytes > limits.max_header_bytes + limits.max_url_bytes:
                raise too_large(f"its headers must have at most {limits.max_header_bytes} bytes in all")
        else:
            self._framing_left -= size
            if self._framing_left < 0:
                most = limits.max_header_bytes
                raise too_large(f"chunk extensions and trailers must have at most {most} bytes in all")

    def begin_message(self) -> None:
        """A request line comes."""
        self._boundary = self._started = True
        self._header_bytes = 0

    def check_url(self, size: int) -> None:
        """So much of the URL has come."""
        if size > self._limits.max_url_bytes:
            raise RefusedError(414, f"the URL must have at most {self._limits.max_url_bytes} bytes")

    def add_header(self, size: int, count: int) -> None:
        """A header of this size has come; there are `count` now."""
        limits = self._limits
        self._header_bytes += size
        if size > limits.max_header_line_bytes:
            raise too_large(f"a header must have at most {limits.max_header_line_bytes} bytes")
        if self._header_bytes > limits.max_header_bytes:
            raise too_large(f"its headers must have at most {limits.max_header_bytes} bytes in all")
        if count > limits.max_headers:
            raise too_large(f"there must be at most {limits.max_headers} headers")

    def end_head(self) -> None:
        """The head is complete."""
        self.in_head, self._boundary, self._framing_left = False, True, self._limits.max_header_bytes
        self._started, self.head_bytes = False, 0

    def add_chunk(self) -> None:
        """A chunk begins."""
        self._framing_left += CHUNK_LINE

    def add_body(self, size: int) -> None:
        """So much of the body's data has come."""
        self._framing_left += size

    def end_message(self) -> None:
        """The request is complete."""
        self.in_head, self._boundary, self.first = True, True, b""


def too_large(what: str) -> RefusedError:
    """The refusal of a head."""
    return RefusedError(431, f"the request is too large: {what}")
