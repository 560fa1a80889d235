"""`tailrace serve`: finds the model, or several, hands everything to api/serve.py, and says when it is ready."""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

import msgspec

from tailrace.base.environment import warn_about_unknown
from tailrace.base.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, LOG_FORMATS, start_logging
from tailrace.cli.flags import add_config_flags, read_config
from tailrace.cli.local import PreparedModel, prepare_all
from tailrace.config import SECTIONS, Config, ServerConfig
from tailrace.models import choose_sampling_defaults

log = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")
POLL_S = 0.05
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # listening on all addresses: reach it on this one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting."""
    level = os.environ.get(LEVEL_VARIABLE, "info").lower()
    parser.add_argument("--log-level", choices=LEVELS, default=level, help=f"of server and engine (default: {level})")
    form = os.environ.get(FORMAT_VARIABLE, "text")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=form, help=f"of the log (default: {form})")
    add_config_flags(parser, SECTIONS, several=True)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal or the engine's death. The exit code is the server's."""
    start_s = time.monotonic()
    start_logging(args.log_level, args.log_format)
    os.environ[LEVEL_VARIABLE], os.environ[FORMAT_VARIABLE] = args.log_level, args.log_format
    from tailrace.api.formats import check_parsers
    from tailrace.api.listen import check_address
    from tailrace.api.serve import serve_models
    from tailrace.api.workers import ServedModel

    config = with_port(read_config(args))
    warn_about_unknown(os.environ)
    check_parsers(config.server)  # before a model is fetched
    warn_if_open(config.server)
    check_address(config.server)
    prepared = prepare_all(config)

    arguments = (config.server, ", ".join(one.name for one in prepared), start_s)
    threading.Thread(target=announce, args=arguments, daemon=True, name="announce").start()
    models = [
        ServedModel(one.config.engine, str(one.folder), read_defaults(one, config.server.model_defaults))
        for one in prepared
    ]
    return serve_models(config.server, models, [one.tokenizer for one in prepared], named=bool(config.models))


def read_defaults(model: PreparedModel, used: bool) -> dict[str, float | int]:
    """Return the model's sampling defaults and log them. used: those of its generation config count."""
    found = choose_sampling_defaults(model.folder, model.asked, used)
    if found:
        values = ", ".join(f"{name} {value}" for name, value in found.items())
        log.info("%s: a request that leaves these fields out gets the model's defaults: %s", model.name, values)
    return found


def with_port(config: Config) -> Config:
    """Replace port 0 by a port that was free a moment ago, so that it can be announced."""
    if config.server.port:
        return config
    family = socket.AF_INET6 if ":" in config.server.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((config.server.host, 0))
        port = probe.getsockname()[1]
    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=port))


def warn_if_open(server: ServerConfig) -> None:
    """Log a warning if other machines may reach a server without keys."""
    from tailrace.api.auth import is_loopback

    if not server.keys and not is_loopback(server.host.lower()):
        log.warning(
            "ANYBODY WHO REACHES %s:%d MAY USE THIS SERVER: it has no keys, and listens beyond this machine. "
            "Set TAILRACE_SERVER_API_KEYS, or listen on 127.0.0.1 (--host)",
            server.host,
            server.port,
        )


def base_url(server: ServerConfig) -> str:
    """Return the URL at which a client on this machine reaches the server."""
    host = ANYWHERE.get(server.host, server.host)
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"


def announce(server: ServerConfig, names: str, start_s: float) -> None:
    """Wait until the server is ready, then print its address, the start time and an example."""
    url = base_url(server)
    while not is_ready(url):
        time.sleep(POLL_S)
    body = json.dumps({"messages": [{"role": "user", "content": "What is a tailrace?"}], "stream": True})
    verb, seconds = "are" if ", " in names else "is", time.monotonic() - start_s
    print(f"tailrace: {names} {verb} ready at {url} after {seconds:.1f} s; try:")
    print(f"  curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
    if server.page:
        print(f"  {url} in a browser")
    sys.stdout.flush()


def is_ready(url: str) -> bool:
    """Return whether /health answers 200."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False
