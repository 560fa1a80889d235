"""A front end whose model says the same each time, whose prompts can be read, for tests of the Responses API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from api.harness import LocalClient, front_of, make_tokenizer, saying
from tailrace.config import ServerConfig
from tailrace.wire.messages import Submit

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}tools: {{ tools | length }}\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
PARSERS = {"reasoning_parser": "think", "tool_parser": "hermes"}


class Talk:
    """The front end, and the prompts that the engine got."""

    def __init__(self, http: httpx.AsyncClient, front: Any) -> None:
        self.http, self.front = http, front
        self.prompts: list[str] = []

    async def post(self, path: str = "/v1/responses", status: int = 200, **fields: Any) -> Any:
        """The answer's JSON."""
        key = fields.pop("key", None)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        answer = await self.http.post(path, json=fields, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def get(self, path: str, status: int = 200, method: str = "GET") -> Any:
        """The answer's JSON."""
        answer = await self.http.request(method, path)
        assert answer.status_code == status, answer.text
        return answer.json()


@contextlib.asynccontextmanager
async def talk_to(
    folder: Path, says: str | Any = "Hello", context: int = 2048, tick_s: float = 0.0, **settings: Any
) -> AsyncIterator[Talk]:
    """Talk to a model that says this; a function is its script."""
    folder.mkdir(exist_ok=True)
    script = saying(says.encode()) if isinstance(says, str) else says
    client = LocalClient(script, tick_s=tick_s)
    client.context = context
    async with front_of(client, make_tokenizer(folder, TEMPLATE), ServerConfig(**PARSERS, **settings)) as front:
        talk, send = Talk(front.http, front), client.send

        def note(message: Any) -> None:
            if isinstance(message, Submit):
                text = bytes(id if id < 256 else ord("|") for id in message.prompt)
                talk.prompts.append(text.decode())
            send(message)

        client.send = note  # type: ignore[method-assign]
        yield talk
