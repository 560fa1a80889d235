"""Users are separate: what one user runs or stores is, for another user, as if it did not exist."""

from __future__ import annotations

from starlette.types import Scope

from tailrace.api.auth import ApiKeys
from tailrace.api.user import make_user_id, user_of


async def found_user(client: tuple[str, int] | None, *headers: tuple[str, str]) -> str:
    """The user of a request that passes the check of keys."""
    found: list[str] = []

    async def app(scope: Scope, receive, send) -> None:
        found.append(user_of(scope))

    scope = {"type": "http", "method": "GET", "path": "/v1/models", "client": client}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    await (ApiKeys(app, ["one", "two"]) if headers else app)(scope, None, None)  # pyright: ignore[reportArgumentType]
    return found[0]


async def test_a_key_is_a_user_whatever_its_address_and_header():
    ones = {
        await found_user(client, *headers)
        for client in (("10.0.0.1", 1), ("10.0.0.2", 2), None)
        for headers in (
            [("authorization", "Bearer one")],
            [("x-api-key", "one")],
            [("authorization", "Bearer one"), ("x-api-key", "two")],
            [("authorization", "Bearer three"), ("x-api-key", "one")],
        )
    }
    assert ones == {make_user_id("key", "one")}
    assert await found_user(None, ("x-api-key", "two")) == make_user_id("key", "two")


async def test_without_keys_an_address_is_a_user():
    assert await found_user(("10.0.0.1", 1)) == await found_user(("10.0.0.1", 2))
    ids = [await found_user(client) for client in (("10.0.0.1", 1), ("10.0.0.2", 1), ("", 1))]
    assert len(set(ids)) == 3
    assert await found_user(None) == ids[2]


def test_an_id_does_not_show_the_key():
    ids = {make_user_id(kind, name) for kind in ("key", "address") for name in ("one", "10.0.0.1", "é" * 300)}
    assert len(ids) == 6
    assert all(len(id) == 32 and set(id) <= set("0123456789abcdef") for id in ids)
