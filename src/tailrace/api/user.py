"""The id of a request's user, made of the API key or the address (decision 0088). api/auth.py checks the key.

Running requests, stored responses, cached prefixes and priorities belong to a user. They are kept under the user's id.
The id is a hash, so logs and messages never hold a key. It is the same in every front end.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from starlette.types import Scope

if TYPE_CHECKING:
    from tailrace.base.fair_line import Weigh
    from tailrace.config import ServerConfig, UserConfig

USER = "tailrace.user"  # where the ASGI scope has the id


def make_user_id(kind: Literal["key", "address"], name: str) -> str:
    """Return the id of the user with this API key or address: 32 hexadecimal digits."""
    return blake2b(name.encode(), digest_size=16, person=kind.encode()).hexdigest()


def index_named_users(config: ServerConfig) -> dict[str, UserConfig]:
    """Return the users of the settings file by id."""
    return {make_user_id("key", user.api_key): user for user in config.users.values()}


def make_weigher(config: ServerConfig) -> Weigh:
    """Return a function that returns a user's weight."""
    weights = {id: user.weight for id, user in index_named_users(config).items()}
    return lambda user: weights.get(user, 1)


def user_of(scope: Scope) -> str:
    """Return the id of the user who sent a request. It is the one that ApiKeys has found, else that of the address."""
    if USER not in scope:
        client = scope.get("client")
        scope[USER] = make_user_id("address", client[0] if client else "")
    return scope[USER]
