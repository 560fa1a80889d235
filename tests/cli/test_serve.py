"""What `tailrace serve` checks and says before a model is loaded."""

from __future__ import annotations

import pytest

from tailrace.cli.serve import warn_if_open
from tailrace.config import ServerConfig


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [
        ("0.0.0.0", "", True),
        ("::", "", True),
        ("", "", True),
        ("10.1.2.3", "", True),
        ("0.0.0.0", "secret", False),
        ("127.0.0.1", "", False),
        ("localhost", "", False),
        ("::1", "", False),
    ],
)
def test_open_server_is_warned_of(host: str, keys: str, warned: bool, caplog):
    warn_if_open(ServerConfig(host=host, api_keys=keys))
    assert [message.startswith("ANYBODY WHO REACHES") for message in caplog.messages] == [True] * warned


def test_the_default_address_is_this_machines_alone(caplog):
    assert ServerConfig().host == "127.0.0.1"
    warn_if_open(ServerConfig())
    assert caplog.messages == []
