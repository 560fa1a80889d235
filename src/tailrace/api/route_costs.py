"""What a request of each endpoint costs its user (api/user_limits.py). Everything that takes more than an answer from
memory counts as a request. Every route of api/app.py has a row here.
"""

from __future__ import annotations

from enum import Enum

from starlette.routing import compile_path


class Cost(Enum):
    """What a request counts as. FREE: nothing."""

    TOKENS = "a request, and the tokens that it computes"
    REQUEST = "a request"
    FREE = "nothing"


ENDS = "ends work of its user that has been counted"
REST = "gives the rest of an answer that has been counted"
MEMORY = "answers from memory"
OPEN = "needs no key, so it has no user"
COSTS: dict[tuple[str, str], Cost] = {
    **dict.fromkeys(
        (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("POST", "/generate"),
            ("POST", "/v1/responses"),
            ("POST", "/v1/responses/compact"),
            ("POST", "/v1/messages"),
            ("POST", "/v1/explain"),
            ("POST", "/inference/v1/generate"),
        ),
        Cost.TOKENS,
    ),
    **dict.fromkeys(
        (
            ("POST", "/v1/responses/input_tokens"),
            ("POST", "/v1/messages/count_tokens"),
            ("POST", "/v1/chat/completions/render"),
            ("POST", "/v1/chat/completions/derender"),
            ("POST", "/v1/completions/render"),
            ("POST", "/v1/messages/render"),
            ("POST", "/v1/responses/render"),
            ("POST", "/v1/completions/derender"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("GET", "/v1/responses/{id:path}/input_items"),
            ("GET", "/v1/responses/{id:path}"),
            ("DELETE", "/v1/responses/{id:path}"),
            ("POST", "/v1/conversations"),
            ("POST", "/v1/conversations/{id:path}/items"),
            ("GET", "/v1/conversations/{id:path}/items"),
            ("GET", "/v1/conversations/{id:path}/items/{item:path}"),
            ("DELETE", "/v1/conversations/{id:path}/items/{item:path}"),
            ("GET", "/v1/conversations/{id:path}"),
            ("POST", "/v1/conversations/{id:path}"),
            ("DELETE", "/v1/conversations/{id:path}"),
            ("POST", "/v1/load_lora_adapter"),
            ("POST", "/v1/unload_lora_adapter"),
            ("POST", "/sleep"),
            ("POST", "/wake_up"),
        ),
        Cost.REQUEST,
    ),
}
FREE: dict[tuple[str, str], str] = {
    ("POST", "/v1/responses/{id:path}/cancel"): ENDS,
    ("DELETE", "/v1/requests/{id:path}"): ENDS,
    ("POST", "/v1/chat/completions/control"): ENDS,
    ("POST", "/v1/chat/completions/{id:path}/control"): ENDS,
    ("GET", "/v1/chat/completions/{id:path}"): REST,
    ("GET", "/v1/completions/{id:path}"): REST,
    ("GET", "/v1/messages/msg_{id:path}"): REST,
    ("GET", "/is_sleeping"): MEMORY,
    ("GET", "/v1/models"): MEMORY,
    ("GET", "/v1/models/{id:path}"): MEMORY,
    **dict.fromkeys(
        (
            ("GET", "/openapi.json"),
            ("GET", "/health"),
            ("GET", "/ping"),
            ("POST", "/ping"),
            ("GET", "/version"),
            ("GET", "/metrics"),
            ("GET", "/"),
            ("GET", "/page/fields.json"),
            ("GET", "/page/status"),
            ("GET", "/page"),
            ("GET", "/page/"),
            ("GET", "/page/{path:path}"),
        ),
        OPEN,
    ),
}
_PATTERNS = [
    (method, compile_path(path)[0], COSTS.get((method, path), Cost.FREE))
    for method, path in sorted({**COSTS, **FREE}, key=lambda route: ("{" in route[1], -len(route[1])))
]  # those without a parameter first, then the longest: as the routes of app.py, whose ids may have slashes


def find_cost(method: str, path: str) -> Cost:
    """Return what a request costs. A path without a route costs nothing."""
    sought = "GET" if method == "HEAD" else method
    if (exact := COSTS.get((sought, path))) is not None:
        return exact
    return next((cost for known, regex, cost in _PATTERNS if known == sought and regex.match(path)), Cost.FREE)
