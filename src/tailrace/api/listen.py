"""The sockets that a server listens on. An address that can't be had is one sentence, before a model is loaded."""

from __future__ import annotations

import contextlib
import errno
import socket

from tailrace.config import ServerConfig
from tailrace.errors import ConfigError


def bind_sockets(config: ServerConfig) -> list[socket.socket]:
    """Return a bound socket for each address of the host; one alone if several front ends share it.

    Raises:
        ConfigError: an address can't be had.
    """
    shared = config.front_ends > 1
    family = socket.AF_UNSPEC if not shared or ":" in config.host else socket.AF_INET
    host, port = config.host or None, config.port
    found: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        try:
            infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for kind, _, _, _, address in list(dict.fromkeys(infos))[: 1 if shared else None]:
                if (bound := bind_socket(kind, address)) is not None:
                    found.append(undo.enter_context(bound))
        except OSError as error:
            raise ConfigError(explain_bind_error(config, error)) from None
        undo.pop_all()
    return found


def bind_socket(family: socket.AddressFamily, address: tuple) -> socket.socket | None:
    """Return a socket bound to the address; None if this machine lacks the family."""
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def explain_bind_error(config: ServerConfig, error: OSError) -> str:
    """Return the sentence for an address that can't be had."""
    host, port = config.host or "all addresses", config.port
    if isinstance(error, socket.gaierror):
        return f"the host {host!r:.200} is not known: {error.strerror} (--host)"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken; `ss -ltnp 'sport = :{port}'` shows by which process. "
            "Stop it, or choose another port (--port; 0: any free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine (--host)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"this user may not listen on port {port} of {host}; choose one above 1023 (--port)"
    return f"the server can't listen on port {port} of {host}: {error.strerror or error}"


def check_address(config: ServerConfig) -> None:
    """Check that the server could listen now.

    Raises:
        ConfigError: see bind_sockets.
    """
    for bound in bind_sockets(config):
        bound.close()
