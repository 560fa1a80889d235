"""A front end over a real engine with scripted logits, both in one event loop, and a tokenizer whose ids are bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import tokenizers
import torch
from starlette.applications import Starlette

from tailrace.api.app import create_app
from tailrace.api.serve import Server, uvicorn_config
from tailrace.api.service import Service
from tailrace.config import CacheConfig, EngineConfig, SchedulerConfig, ServerConfig
from tailrace.engine.engine import Engine
from tailrace.engine.token_bytes import TokenBytes
from tailrace.errors import EngineDeadError
from tailrace.grammar.service import Grammars
from tailrace.runners.scripted import ScriptedRunner
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.async_client import AsyncClient
from tailrace.wire.messages import Abort, EndThoughts, ModelInfo, Submit, ToEngine
from tailrace.wire.stream_table import StreamTable

NAME = "scripted"
START, EOS, VOCAB = 256, 257, 258  # below 256 an id is a byte
CONTEXT = 256
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'function' %}{{ raise_exception('no functions here') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}tools: {{ tools | length }}\n{% endif %}{% if shout %}LOUD\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARK = b"assistant\n"


def byte_names() -> list[str]:
    """The letter that byte-level tokenizers write for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(rest)) for b in range(256)]


def make_tokenizer(folder: Path, template: str = TEMPLATE) -> Tokenizer:
    """Every byte is a token, and there are two special ones."""
    vocab = {name: i for i, name in enumerate(byte_names())}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(folder)


def saying(answer: bytes, then: int = EOS) -> Callable[[list[int]], torch.Tensor]:
    """A script that answers so after "=" or after a chat's last turn was opened, and then goes on with `then`."""

    def script(ids: list[int]) -> torch.Tensor:
        begin = len(ids) - ids[::-1].index(START) + len(MARK) if START in ids else ids.index(ord("=")) + 1
        said = len(ids) - begin
        logits = torch.zeros(VOCAB)
        logits[answer[said] if said < len(answer) else then] = 50.0
        return logits

    return script


def endless(ids: list[int]) -> int:
    """A script that never ends by itself."""
    return ord("a") + len(ids) % 26


def random_row(ids: list[int]) -> torch.Tensor:
    """Some distribution that depends on all that was said."""
    rng = torch.Generator().manual_seed(sum((i + 1) * token for i, token in enumerate(ids)))
    logits = torch.randn(VOCAB, generator=rng) * 2
    logits[EOS] = -50.0
    return logits


class LocalClient(AsyncClient):
    """The asyncio client with the engine in the same loop instead of a process: real messages, no socket.

    `tick_s`: pause between steps. `hold`: while set, no step is made. `context`: the model's, in tokens.
    `vocab_size`: how many ids it has. `grammars`: None serves none.
    """

    context = CONTEXT
    vocab_size = VOCAB
    grammars: Grammars | None = None

    def __init__(self, script: Callable[[list[int]], Any], *, tick_s: float = 0.0, **runner: Any) -> None:
        super().__init__(EngineConfig())
        self._script, self._runner_options, self.tick_s = script, runner, tick_s
        self.hold = False
        self.patient = False  # a step only when all that came before has gone out: streams are then the same every time
        self.token_bytes = TokenBytes()  # none: stop strings are found by the front end alone
        self.starts = 0
        self.start_error: Exception | None = None

    async def start(self) -> ModelInfo:
        if self.start_error is not None:
            self.error = EngineDeadError(str(self.start_error))
            raise self.start_error
        self.starts += 1
        self.error = None
        self.died.clear()
        self.engine = Engine(
            ScriptedRunner(self.vocab_size, self._script, self.context, **self._runner_options),
            ModelInfo(NAME, self.vocab_size, self.context, [EOS]),
            CacheConfig(num_blocks=self.context, block_size=16),
            SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=2048, max_waiting=100),
            self.token_bytes,
            grammars=self.grammars,
        )
        self._streams.model = self.engine.info
        self._pump = asyncio.create_task(self._run())
        return self.model

    def send(self, message: ToEngine) -> None:
        """What would go over the socket."""
        if isinstance(message, Submit):
            self.engine.submit(message)
        elif isinstance(message, Abort):
            self.engine.abort(message)
        elif isinstance(message, EndThoughts):
            self.engine.end_thoughts(message)

    async def _run(self) -> None:
        while True:
            if not self.hold:
                self._streams.deliver_messages(self.engine.step().get(b"", []))
                self._streams.stats = self.engine.stats()
            for _ in range(50 if self.patient else 0):
                await asyncio.sleep(0)
            await asyncio.sleep(self.tick_s if self.engine.has_work else 0.001)

    def die(self) -> None:
        """As if the process had been killed."""
        self._pump.cancel()
        self.error = EngineDeadError("the engine process died (signal 9)")
        self._streams.fail_all(self.error)
        self.died.set()

    async def close(self) -> None:
        if hasattr(self, "_pump"):
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self.error = self.error or EngineDeadError("the client was closed")
        self._streams.fail_all(EngineDeadError(str(self.error)))

    @property
    def streams(self) -> StreamTable:
        """Open streams and unacknowledged aborts."""
        return self._streams

    def idle(self) -> bool:
        """Nothing is held anywhere."""
        stats = self.engine.stats()
        held = stats.running + stats.waiting + stats.blocks_used + len(self.engine.requests)
        return not held and not self._streams.open_streams and not self._streams.unacknowledged


class Front:
    """An app that is up, and an HTTP client that talks to it without a network."""

    def __init__(self, app: Starlette, client: LocalClient, http: httpx.AsyncClient) -> None:
        self.app, self.client, self.http = app, client, http
        self.service: Service = app.state.front.default

    async def chat(self, *, content: str = "hi", **fields: Any) -> httpx.Response:
        """POST a chat."""
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0} | fields
        return await self.http.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any = "x=", **fields: Any) -> httpx.Response:
        """POST a completion."""
        return await self.http.post("/v1/completions", json={"prompt": prompt, "temperature": 0} | fields)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 300) -> None:
        """Wait for it."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.002)

    def metric(self, line: str) -> float:
        """The value behind a name (with its labels) in the exposition; 0 if it is not there."""
        for text in self.app.state.front.metrics.render_metrics().decode().splitlines():
            if text.startswith(line + " "):
                return float(text.rsplit(" ", 1)[1])
        return 0.0


@contextlib.asynccontextmanager
async def front_of(
    client: LocalClient, tokenizer: Tokenizer, config: ServerConfig | None = None, wait: bool = True
) -> AsyncIterator[Front]:
    """An app over this client, from its start to its end."""
    app = create_app(client, tokenizer, config or ServerConfig(), NAME)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        front = Front(app, client, http)
        if wait:
            await front.until(lambda: front.service.supervisor.state != "starting")
        yield front


@contextlib.contextmanager
def served(app: Starlette, port: int, config: ServerConfig | None = None) -> Iterator[str]:
    """The app under uvicorn in a thread; yields its base URL."""
    settings = uvicorn_config(app, config or ServerConfig(port=port))
    settings.port = port
    server = Server(app.state.front, settings)

    def run() -> None:
        with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
            runner.run(server.until_end())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client() as http:
            for _ in range(15_000):
                with contextlib.suppress(httpx.TransportError):
                    if http.get(f"{url}/health").status_code == 200:
                        break
                threading.Event().wait(0.02)
            else:
                raise AssertionError("the server did not come up")
        yield url
    finally:
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive()


def events(text: str) -> list[Any]:
    """The data of every event of a stream; "[DONE]" stays a string."""
    blocks = text.split("\n\n")
    assert blocks.pop() == "", "the stream ends with a whole frame"
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [data if (data := block[6:]) == "[DONE]" else json.loads(data) for block in blocks]
