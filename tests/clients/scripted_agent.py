"""A server whose model plays an agent's part, for clients that run tools: it calls `get_weather`, and when it is told
the weather it says so, or gives it to the tool `final_result` where there is one. Run by the project's own Python, with
tests/ on its path; the first argument is the port.

    POST /format/NAME    how the model writes its calls from now on
    GET /formats         the names there are: those of TOOL_FORMATS

The call is a text of the format's own grammar, in which nothing is free, so a format needs nothing here but its entry
in the table. A user who says "think" makes the model think first.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.harness import EOS, START, VOCAB, LocalClient, make_tokenizer
from api.test_forced_tools import vocabulary
from tailrace.api.app import create_app
from tailrace.api.serve import Server, uvicorn_config
from tailrace.config import GrammarConfig, ServerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.service import Grammars
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.functions import functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CITY = "Paris"


@cache
def call_text(form: str, name: str, arguments: str) -> bytes:
    """A call of the function with these arguments, as the format writes it."""
    values: dict[str, str] = json.loads(arguments)
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "enum": [value]} for key, value in values.items()},
        "required": list(values),
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}}]
    words = vocabulary(form, "text")
    writer = GrammarWriter(functions_of(tools), words.tokenizer, many=False, whitespace=0)
    return words.walk(forced_grammar(TOOL_FORMATS[form], writer), 0, ends=("",)).encode()


def answer_to(form: str, prompt: bytes) -> bytes:
    """What the model says behind a prompt. `<|im_start|>` is left out of it."""
    *turns, last = prompt.split(b"<|im_end|>\n")
    role, _, content = turns[-1].partition(b"\n")
    tools = re.search(rb"<tools>(.*)</tools>", last, re.DOTALL)
    names = [tool["function"]["name"] for tool in json.loads(tools[1])] if tools else []
    thought = b"<think>hm</think>" if b"think" in turns[-1] else b""
    if role == b"tool" and "final_result" in names:
        return call_text(form, "final_result", json.dumps({"city": CITY, "weather": content.decode()}))
    if role == b"tool":
        return b"They say: " + content
    return thought + (call_text(form, "get_weather", json.dumps({"city": CITY})) if names else b"Hello")


class Agent:
    """The model. form: how it writes calls."""

    def __init__(self) -> None:
        self.form = "hermes"

    def __call__(self, ids: list[int]) -> torch.Tensor:
        begin = len(ids) - ids[::-1].index(START) + len("assistant\n")
        said = len(ids) - begin
        prompt = b"".join(b"" if id == START else b"<|im_end|>" if id == EOS else bytes([id]) for id in ids[:begin])
        answer = answer_to(self.form, prompt)
        logits = torch.zeros(VOCAB)
        logits[answer[said] if said < len(answer) else EOS] = 50.0
        return logits


async def main(port: int) -> None:
    """Serve until the process is told to end."""
    tokenizer = make_tokenizer(Path(tempfile.mkdtemp()), TEMPLATE)
    agent = Agent()
    client = LocalClient(agent)
    client.context, client.token_bytes = 16_384, TokenBytes.of(tokenizer, VOCAB)
    spelt = [tokenizer.bytes_of(id) for id in range(VOCAB)]
    client.grammars = Grammars(GrammarConfig(), None, spelt, tokenizer.special_ids, [EOS], VOCAB)
    config = ServerConfig(port=port, tool_parser="hermes", reasoning_parser="think")
    app = create_app(client, tokenizer, config, "small")

    async def write_as(request: Request) -> Response:
        agent.form = request.path_params["name"]
        app.state.front.default.tools = TOOL_FORMATS[agent.form]
        return Response(status_code=204)

    app.router.routes.append(Route("/format/{name}", write_as, methods=["POST"]))
    app.router.routes.append(Route("/formats", formats))
    await Server(app.state.front, uvicorn_config(app, config)).until_end()
    client.grammars.close()


async def formats(request: Request) -> Response:
    """The names of the table."""
    return Response(json.dumps(list(TOOL_FORMATS)), media_type="application/json")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
