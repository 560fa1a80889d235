"""Lists of items, page by page."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.requests import Request

from tailrace.api.schema.responses import ItemList
from tailrace.errors import ParameterError, format_json


class PageQuery(NamedTuple):
    """What a page of a list holds: at most so many items, in this order, behind the item with this id."""

    limit: int
    order: str
    after: str | None


def read_page_query(request: Request) -> PageQuery:
    """Return what the query asks for: `limit`, `order`, `after`.

    Raises:
        ParameterError: naming the query's parameter.
    """
    limit, order = read_query_number(request, "limit", 20, 1, 100), read_query_choice(request, "order", ("desc", "asc"))
    return PageQuery(limit, order, request.query_params.get("after"))


def make_page(items: list[dict[str, Any]], query: PageQuery) -> ItemList:
    """Return the page of the items.

    Raises:
        ParameterError: `after` names no item.
    """
    items = items if query.order == "asc" else items[::-1]
    names = [item["id"] for item in items]
    if query.after is not None and query.after not in names:
        raise ParameterError(f"after: there is no item {format_json(query.after)}", "after")
    begin = 0 if query.after is None else names.index(query.after) + 1
    shown, ids = items[begin : begin + query.limit], names[begin : begin + query.limit]
    return ItemList(shown, ids[0] if ids else None, ids[-1] if ids else None, begin + query.limit < len(items))


def read_query_choice(request: Request, name: str, values: tuple[str, ...]) -> str:
    """A parameter of the query; the first value where it is not given.

    Raises:
        ParameterError: it is none of the values.
    """
    given = request.query_params.get(name, values[0])
    if given not in values:
        raise ParameterError(f"{name} must be {' or '.join(values)}, got {format_json(given)}", name)
    return given


def read_query_number(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A parameter of the query.

    Raises:
        ParameterError: it is no whole number, or out of range.
    """
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < 12 and low <= int(given) <= high):
        raise ParameterError(f"{name} must be an integer in [{low}, {high}], got {format_json(given)}", name)
    return int(given)
