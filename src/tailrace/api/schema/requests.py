"""DELETE /v1/requests/{id}, and POST /v1/chat/completions/{id}/control."""

from __future__ import annotations

from typing import Literal

import msgspec


class Cancelled(msgspec.Struct, frozen=True):
    """It ends now; its own answer has the finish reason "abort" and the stop reason "cancelled"."""

    id: str
    object: str = "request.cancelled"
    cancelled: bool = True


class ControlRequest(msgspec.Struct, kw_only=True):
    """`id`: of the answer, if the path has none. `action`: what ends."""

    action: Literal["reasoning_end", "answer_end"]
    id: str | None = None
    model: str | None = None


class Controlled(msgspec.Struct, frozen=True, omit_defaults=True):
    """`success`: whether the request could be controlled; `message` says why not."""

    id: str
    success: bool
    message: str = ""
