"""A server whose model plays an agent's part, for clients that run tools: it calls `get_weather`, and when it is told
the weather it says so, or gives it to the tool `final_result` where there is one. Run by the project's own Python, with
tests/ on its path; the first argument is the port.

    POST /format/NAME    how the model writes its calls from now on: one of TOOL_FORMATS, or harmony
    POST /format/NAME/PACKAGE/TEMPLATE
                         the same, for a model with a real chat template, which peers/fetch.py has fetched. The server
                         finds the formats of thoughts and calls by itself. Conversations have a script.
    POST /script         what the model answers from now on: a JSON list with an answer for each turn of the
                         conversation, {"thought": str, "calls": [[name, arguments], ...], "text": str}. A script with
                         calls is for prompts with tools. With "fails": true, the model fails behind the answer.
    GET  /prompts        the prompts that the script has answered

It writes calls as tests/tool_examples.py does, so a format needs nothing here but its entry there. A user who says
"think" makes the model think first. A user who says "JSON" gets an object, by the tool `json` where there is one.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from api.harness import EOS, START, VOCAB, LocalClient, make_tokenizer
from api.test_forced_tools import vocabulary
from peers.fetch import TEMPLATES
from tailrace.api.app import create_app
from tailrace.api.formats import choose_formats
from tailrace.api.serve import Server, uvicorn_config
from tailrace.api.service import Service
from tailrace.config import GrammarConfig, ServerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.service import Grammars
from tailrace.text.reasoning import HARMONY_MARKS
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Submit, ToEngine
from tool_examples import written

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Stands before a real template, so that the model knows its turn.
HEAD = "[[{{ messages | selectattr('role', 'equalto', 'assistant') | list | length }}{{ ' tools' if tools else '' }}]]"
HEADED = re.compile(rb"\[\[(\d+)( tools)?\]\]")
CITY = "Paris"
FAILURE = b"\xff"  # no part of a text
REPORT = {"city": CITY, "weather": "sunny"}


def calls_text(form: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls, as such a model writes them. Behind a call gpt-oss stops, so it makes one."""
    if form == "harmony":
        name, arguments = calls[0]
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}"
    return written(form, calls)


def thought_text(form: str, thought: str = "hm", opened: bool = False) -> str:
    """A thought, which the prompt may have opened already; then an empty one is closed, too."""
    if opened:
        return f"{thought}</think>\n\n"
    if not thought:
        return ""
    if form == "harmony":
        return f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant"
    return f"<think>{thought}</think>"


def said_text(form: str, text: str) -> str:
    return f"<|channel|>final<|message|>{text}" if form == "harmony" else text


def answer_to(form: str, prompt: bytes) -> bytes:
    """What the model says behind a prompt. `<|im_start|>` is left out of it."""
    *turns, last = prompt.split(b"<|im_end|>\n")
    role, _, told = turns[-1].partition(b"\n")
    tools = re.search(rb"<tools>(.*)</tools>", last, re.DOTALL)
    names = [tool["function"]["name"] for tool in json.loads(tools[1])] if tools else []
    thought = thought_text(form) if b"think" in turns[-1] else ""
    if role == b"tool" and "final_result" in names:
        answer = calls_text(form, [("final_result", {"city": CITY, "weather": told.decode()})])
    elif b"JSON" in told:
        text = said_text(form, json.dumps(REPORT))
        answer = thought + (calls_text(form, [("json", REPORT)]) if "json" in names else text)
    elif role == b"tool":
        answer = said_text(form, f"They say: {told.decode()}")
    else:
        answer = thought + (calls_text(form, [("get_weather", {"city": CITY})]) if names else said_text(form, "Hello"))
    return answer.encode()


def tokenizer_of(form: str) -> Tokenizer:
    """Bytes, and a template that shows the markers: by them the server knows which of a format's ways its model has."""
    shown = "".join(HARMONY_MARKS) if form == "harmony" else vocabulary(form, "text").tokenizer.template_source
    return make_tokenizer(Path(tempfile.mkdtemp()), f"{TEMPLATE}{{# {shown} #}}")


def read_template(package: str, name: str) -> str:
    """Return a real template, behind what tells the model its turn."""
    source = next(one for one in TEMPLATES if one.package == package)
    return HEAD + (source.folder / f"{name}.jinja").read_text(encoding="utf-8")


class Agent:
    """The model.

    - form: how it writes calls.
    - script: its answers, one for each turn of the conversation; empty: it asks for the weather.
    - prompts: the prompts that the script has answered.
    """

    def __init__(self) -> None:
        self.form = "hermes"
        self.script: list[dict[str, Any]] = []
        self.prompts: list[bytes] = []
        self.answers: dict[tuple[int, ...], bytes] = {}  # By the length and the end of the prompt.
        self.lengths: list[int] = []  # Of all prompts, the longest first.

    def __call__(self, ids: list[int]) -> torch.Tensor:
        keys = (key_of(ids, length) for length in self.lengths if length <= len(ids))
        key = next(key for key in keys if key in self.answers)
        answer, said = self.answers[key], len(ids) - key[0]
        if answer[said:] == FAILURE:
            raise RuntimeError("the scripted model fails here, as it was told to")
        logits = torch.zeros(VOCAB)
        logits[answer[said] if said < len(answer) else EOS] = 50.0
        return logits

    def hear(self, prompt: list[int]) -> None:
        """Find the answer to a prompt."""
        self.lengths = sorted({*self.lengths, len(prompt)}, reverse=True)
        text = b"".join(b"" if id == START else b"<|im_end|>" if id == EOS else bytes([id]) for id in prompt)
        self.answers[key_of(prompt, len(prompt))] = self.answer(text)

    def answer(self, prompt: bytes) -> bytes:
        """Return the answer to a prompt."""
        head = HEADED.match(prompt)
        number = int(head[1]) if head else prompt.count(b"assistant\n") - 1
        has_tools = bool(head[2]) if head else b"<tools>" in prompt
        if not self.script or (not has_tools and any("calls" in turn for turn in self.script)):
            if head is None:
                return answer_to(self.form, prompt)
            turn: dict[str, Any] = {"text": "Hello"}
        else:
            self.prompts.append(prompt)
            turn = self.script[min(number, len(self.script) - 1)]
        opened = prompt.rstrip().endswith(b"<think>")
        thought = thought_text(self.form, turn.get("thought", ""), opened)
        calls = [(name, arguments) for name, arguments in turn.get("calls", ())]
        text = calls_text(self.form, calls) if calls else said_text(self.form, turn["text"])
        return (thought + text).encode() + FAILURE * bool(turn.get("fails"))

    def becomes(self, form: str, service: Service, template: str = "") -> None:
        """Another model, in the same process: another way to write, another template."""
        self.form = form
        service.tokenizer = make_tokenizer(Path(tempfile.mkdtemp()), template) if template else tokenizer_of(form)
        named = ServerConfig(tool_parser=form, reasoning_parser="harmony" if form == "harmony" else "think")
        config = ServerConfig() if template else named
        service.template, service.reasoning, service.tools = choose_formats(config, service.tokenizer)


def key_of(ids: list[int], length: int) -> tuple[int, ...]:
    """Return the length of a prompt and its end, which tell it from others."""
    return (length, *ids[max(0, length - 500) : length])


class Client(LocalClient):
    """An engine whose model hears each prompt before it answers."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self.agent = agent

    def send(self, message: ToEngine) -> None:
        if isinstance(message, Submit):
            self.agent.hear(message.prompt)
        super().send(message)


async def main(port: int) -> None:
    """Serve until the process is told to end."""
    agent, tokenizer = Agent(), tokenizer_of("hermes")
    client = Client(agent)
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB)
    client.context = 400_000  # The system prompt and the tools of Claude Code take 100,000 bytes.
    spelt = [tokenizer.bytes_of(id) for id in range(VOCAB)]
    client.grammars = Grammars(GrammarConfig(), None, spelt, tokenizer.special_ids, [EOS], VOCAB)
    config = ServerConfig(port=port, tool_parser="hermes", reasoning_parser="think")
    app = create_app(client, tokenizer, config, "small")

    async def write_as(request: Request) -> Response:
        package, template = (request.path_params.get(name, "") for name in ("package", "template"))
        source = read_template(package, template) if template else ""
        agent.becomes(request.path_params["name"], app.state.front.default, source)
        return Response(status_code=204)

    async def follow(request: Request) -> Response:
        agent.script, agent.prompts = await request.json(), []
        return Response(status_code=204)

    async def tell(request: Request) -> Response:
        return JSONResponse([prompt.decode(errors="replace") for prompt in agent.prompts])

    for path in ("/format/{name}", "/format/{name}/{package}/{template}"):
        app.router.routes.append(Route(path, write_as, methods=["POST"]))
    app.router.routes.append(Route("/script", follow, methods=["POST"]))
    app.router.routes.append(Route("/prompts", tell, methods=["GET"]))
    await Server(app.state.front, uvicorn_config(app, config)).until_end()
    client.grammars.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
