"""The sockets that a server listens on."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from tailrace.api.listen import bind_sockets, check_address, explain_bind_error
from tailrace.config import ServerConfig
from tailrace.errors import ConfigError


def test_taken_port_is_named_with_the_way_to_its_process():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            check_address(ServerConfig(port=port))
    assert str(refused.value).startswith(f"port {port} of 127.0.0.1 is taken; `ss -ltnp 'sport = :{port}'` shows")


def test_free_port_is_bound_once_per_address(free_port):
    port = free_port()
    check_address(ServerConfig(port=port))
    with ExitStack() as stack:
        sockets = [stack.enter_context(one) for one in bind_sockets(ServerConfig(port=port))]
        assert [one.getsockname() for one in sockets] == [("127.0.0.1", port)]


@pytest.mark.parametrize(
    ("host", "error", "says"),
    [
        ("192.0.2.1", OSError(99, "Cannot assign requested address"), "192.0.2.1 is no address of this machine"),
        ("no.invalid", socket.gaierror(-2, "Name or service not known"), "the host 'no.invalid' is not known"),
        ("127.0.0.1", OSError(13, "Permission denied"), "may not listen on port 80 of 127.0.0.1"),
        ("127.0.0.1", OSError(24, "Too many open files"), "can't listen on port 80 of 127.0.0.1: Too many open files"),
    ],
)
def test_each_reason_is_one_sentence(host: str, error: OSError, says: str):
    assert says in explain_bind_error(ServerConfig(host=host, port=80), error)
