"""Which requests share cached prefixes: `--cache-isolation` and the field `cache_salt` (decision 0088)."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

from tailrace.config import ServerConfig
from tailrace.errors import ParameterError

FIELD = "cache_salt"
Isolation = Literal["none", "salt", "user"]


def choose_isolation(config: ServerConfig) -> Isolation:
    """Return the operator's choice. auto: "user" with several keys, else "salt"."""
    if config.cache_isolation != "auto":
        return config.cache_isolation
    return "user" if len(config.keys) > 1 else "salt"


def check_cache_salt(isolation: Isolation, salt: str) -> None:
    """Raise ParameterError for a salt that would have no effect, because all requests share prefixes."""
    if salt and isolation == "none":
        raise ParameterError(f"{FIELD} has no effect with --cache-isolation none; leave it out", FIELD)


def make_cache_salt(isolation: Isolation, user: str, salt: str) -> bytes:
    """Return the salt of a request's cached prefixes; b"" for the prefixes that all requests without a salt share."""
    match isolation:
        case "none":
            return b""
        case "salt":
            return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest() if salt else b""
        case "user":
            return blake2b(f"{user} {salt}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
