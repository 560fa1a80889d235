"""Text that clients keep for the server: encrypted and authenticated with the server's key, for one user (decision
0106). Knows no HTTP."""

from __future__ import annotations

import secrets
from base64 import b64decode, urlsafe_b64encode
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from tailrace.base.extras import require_extra
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Kind = Literal["reasoning", "compaction"]
PREFIX = "tailrace1."  # of sealed text; the number is that of this form
NONCE_BYTES = 12
MIN_SECRET = 16  # characters


class Sealer:
    """Seals text with AES-256-GCM, under a key that is made of the server's secret.

    Args:
        secret: the operator's; "": a random one, which ends with the process.

    Raises:
        ConfigError: the secret is too short.
    """

    def __init__(self, secret: str) -> None:
        if secret and len(secret) < MIN_SECRET:
            raise ConfigError(
                f"server.encryption_key (--encryption-key, TAILRACE_SERVER_ENCRYPTION_KEY) must have at least "
                f"{MIN_SECRET} characters; make one with: openssl rand -hex 32"
            )
        secret = secret or secrets.token_hex(32)
        self._key = blake2b(secret.encode(), digest_size=32, person=b"tailrace sealed").digest()

    @cached_property
    def _cipher(self) -> AESGCM:
        with require_extra("serve"):
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only a request that needs it loads it
        return AESGCM(self._key)

    def seal(self, kind: Kind, user: str, text: str) -> str:
        """Return text that only `open` can read."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, text.encode(), bind_user(kind, user))
        return write_sealed(nonce + sealed)

    def open(self, kind: Kind, user: str, sealed: str) -> str | None:
        """Return the text that was sealed for this user; None if it was changed, or sealed for another kind or user or
        with another key."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = b64decode(sealed.removeprefix(PREFIX), b"-_", validate=True)
            opened = self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], bind_user(kind, user))
        except (ValueError, InvalidTag):  # ValueError: it is no base64, or too short
            return None
        return opened.decode() if sealed == write_sealed(raw) else None


def write_sealed(raw: bytes) -> str:
    """Return the one form of sealed bytes as text. Base64 can be read in other forms too, with more padding."""
    return PREFIX + urlsafe_b64encode(raw).decode()


def bind_user(kind: Kind, user: str) -> bytes:
    """Return what a sealed text is bound to."""
    return f"{kind} {user}".encode()
