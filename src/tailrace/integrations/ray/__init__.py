"""tailrace as a Ray Serve application: `serve run tailrace.integrations.ray:app model.model=…`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: dict[str, Any]) -> Application:
    """Return the application with these settings (settings.read). Ray is imported here.

    Raises:
        ConfigError: naming the field.
    """
    from tailrace.integrations.ray.application import build_application

    return build_application(args)
