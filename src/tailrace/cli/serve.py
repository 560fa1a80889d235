"""tailrace serve: engine process and HTTP front end."""

from __future__ import annotations

import argparse
import logging
import sys
import time

import uvloop

from tailrace.cli.local import prepare
from tailrace.cli.options import add_config, read_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `tailrace serve`."""
    add_config(parser, "model", "cache", "scheduler", "server")
    parser.add_argument("--no-model-defaults", action="store_true", help="ignore the sampling defaults of the model")


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    started = time.perf_counter()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    config = read_config(arguments)
    local = prepare(config)
    from tailrace.api.app import create_app
    from tailrace.api.serve import serve
    from tailrace.wire.aio import AsyncClient

    def ready() -> None:
        url = f"http://{config.server.host}:{config.server.port}"
        print(f"tailrace serves {local.name} at {url} (ready in {time.perf_counter() - started:.1f} s). Try:\n", file=sys.stderr)
        print(
            f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '"
            '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "stream": true, "max_tokens": 100}\'\n',
            file=sys.stderr,
            flush=True,
        )

    async def main() -> int:
        client = AsyncClient(local.engine, config.server.start_timeout_s)
        defaults = {} if arguments.no_model_defaults else local.defaults
        app = create_app(client, local.tokenizer, local.name, config.server, defaults)
        return await serve(app, client, config.server, ready)

    return uvloop.run(main())
