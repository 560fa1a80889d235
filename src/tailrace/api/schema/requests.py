"""DELETE /v1/requests/{id}."""

from __future__ import annotations

import msgspec


class Cancelled(msgspec.Struct, frozen=True):
    """It ends now; its own answer has the finish reason "abort" and the stop reason "cancelled"."""

    id: str
    object: str = "request.cancelled"
    cancelled: bool = True
