"""A server whose model plays an agent's part, for clients that run tools: it calls `get_weather`, and when it is told
the weather it says so, or gives it to the tool `final_result` where there is one. Run by the project's own Python, with
tests/ on its path; the first argument is the port.

    POST /format/NAME    how the model writes its calls from now on: one of TOOL_FORMATS, or harmony
    POST /script         what the model answers from now on: a JSON list with an answer for each turn of the
                         conversation, {"thought": str, "calls": [[name, arguments], ...], "text": str}. A script with
                         calls is for prompts with tools.
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
from tailrace.api.app import create_app
from tailrace.api.serve import Server, uvicorn_config
from tailrace.api.service import Service
from tailrace.config import GrammarConfig, ServerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.service import Grammars
from tailrace.text.reasoning import HARMONY_MARKS, REASONING_FORMATS
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.harmony import HARMONY
from tool_examples import written

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CITY = "Paris"
REPORT = {"city": CITY, "weather": "sunny"}


def calls_text(form: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls, as such a model writes them. Behind a call gpt-oss stops, so it makes one."""
    if form == "harmony":
        name, arguments = calls[0]
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}"
    return written(form, calls)


def thought_text(form: str, thought: str = "hm") -> str:
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


def find_last(ids: list[int], id: int) -> int:
    """Return the last place of an id."""
    return next(place for place in range(len(ids) - 1, -1, -1) if ids[place] == id)


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

    def __call__(self, ids: list[int]) -> torch.Tensor:
        begin = find_last(ids, START) + 1 + len("assistant\n")
        said, prompt = len(ids) - begin, (begin, *ids[max(0, begin - 500) : begin])
        if said == 0:
            self.answers[prompt] = self.answer(ids)
        answer = self.answers[prompt]
        logits = torch.zeros(VOCAB)
        logits[answer[said] if said < len(answer) else EOS] = 50.0
        return logits

    def answer(self, ids: list[int]) -> bytes:
        """Return the answer to a prompt."""
        prompt = b"".join(b"" if id == START else b"<|im_end|>" if id == EOS else bytes([id]) for id in ids)
        if not self.script or (b"<tools>" not in prompt and any("calls" in turn for turn in self.script)):
            return answer_to(self.form, prompt)
        self.prompts.append(prompt)
        turn = self.script[min(prompt.count(b"assistant\n") - 1, len(self.script) - 1)]
        thought = thought_text(self.form, turn["thought"]) if turn.get("thought") else ""
        calls = [(name, arguments) for name, arguments in turn.get("calls", ())]
        return (thought + (calls_text(self.form, calls) if calls else said_text(self.form, turn["text"]))).encode()

    def becomes(self, form: str, service: Service) -> None:
        """Another model, in the same process: another way to write, another template."""
        self.form, harmony = form, form == "harmony"
        service.tokenizer = tokenizer_of(form)
        service.reasoning = REASONING_FORMATS["harmony" if harmony else "think"]
        service.tools = HARMONY if harmony else TOOL_FORMATS[form]


async def main(port: int) -> None:
    """Serve until the process is told to end."""
    agent, tokenizer = Agent(), tokenizer_of("hermes")
    client = LocalClient(agent)
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB)
    client.context = 400_000  # The system prompt and the tools of Claude Code take 100,000 bytes.
    spelt = [tokenizer.bytes_of(id) for id in range(VOCAB)]
    client.grammars = Grammars(GrammarConfig(), None, spelt, tokenizer.special_ids, [EOS], VOCAB)
    config = ServerConfig(port=port, tool_parser="hermes", reasoning_parser="think")
    app = create_app(client, tokenizer, config, "small")

    async def write_as(request: Request) -> Response:
        agent.becomes(request.path_params["name"], app.state.front.default)
        return Response(status_code=204)

    async def follow(request: Request) -> Response:
        agent.script, agent.prompts = await request.json(), []
        return Response(status_code=204)

    async def tell(request: Request) -> Response:
        return JSONResponse([prompt.decode(errors="replace") for prompt in agent.prompts])

    app.router.routes.append(Route("/format/{name}", write_as, methods=["POST"]))
    app.router.routes.append(Route("/script", follow, methods=["POST"]))
    app.router.routes.append(Route("/prompts", tell, methods=["GET"]))
    await Server(app.state.front, uvicorn_config(app, config)).until_end()
    client.grammars.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
