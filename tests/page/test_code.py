"""The request as code: what is copied is what would be sent, whatever stands in it, and nothing hides in it."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
import subprocess
import sys
import types
import unicodedata
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from page.conftest import say
from tailrace.api.routes.page import FOLDER

if TYPE_CHECKING:
    from playwright.sync_api import Page

WRITE = """async ([request, key]) => {
  const { asCurl, asJson, asPython } = await import("./page/js/code.js");
  const where = { base: document.baseURI, key };
  const [curl, python, json] = [asCurl(request, where), asPython(request, where), asJson(request.body)];
  return { curl, python, json, base: document.baseURI };
}"""
TEXTS = (
    'it\'s "quoted" `twice` $HOME \\ $(rm -rf /) %s !! ${x}',
    "line\nbreaks\r\nand\ttabs\0\x07\x1b[31m",
    "'''\"\"\" \\' \\\" \\u0041 \\N{DASH} {braces} #",
    "\u202eevil\u2066\u2069\u200b\ufeff\u00ad\u2028\u2029",
    "tags \U000e0041\U000e0042 and 👩‍👩‍👧‍👦 漢字 שלום",
    "",
)
PLAIN = {"model": "a/b", "seed": 2**53 - 1, "temperature": 0.7, "stream": True}
FIELDS = {
    **PLAIN,
    "min_p": 1e-7,
    "stop": ["'", "\n\n"],
    "logit_bias": {"1": -100, " it's": 2.5},
    "watermark": {"kind": "kgw", "key": 42, "nested": {"list": [1, None, True, False, {"deep": "'\\"}] * 3}},
    "not an identifier": [],
}


@pytest.mark.few(5)
@pytest.mark.parametrize("key", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_what_is_copied_is_what_would_be_sent(modules: Page, text: str, key: bool):
    chat = {"path": "/v1/chat/completions", "body": {**FIELDS, "messages": [{"role": "user", "content": text}]}}
    completion = {"path": "/v1/completions", "body": {**PLAIN, "stream": False, "top_k": 3, "prompt": text}}
    for request in (chat, completion):
        made = modules.evaluate(WRITE, [request, key])
        assert json.loads(made["json"]) == request["body"]
        words = shlex.split(made["curl"])
        assert words[0] == "curl"
        assert f"{made['base']}{request['path'][1:]}" in words
        assert json.loads(words[words.index("-d") + 1]) == request["body"]
        assert ("authorization: Bearer $TAILRACE_API_KEY" in words) == key
        assert json.loads(by_a_shell(made["curl"])[-1]) == request["body"]
        assert called(made["python"], key) == (request["path"], request["body"])
        for name in ("curl", "python", "json"):
            assert not [
                c for c in made[name] if unicodedata.category(c) in ("Cf", "Co", "Cs") or c in "\x1b\x07\0\u2028"
            ]


def by_a_shell(command: str) -> list[str]:
    """The arguments that a real shell gives to curl."""
    script = command.replace("curl ", "printf '%s\\0' ", 1)
    done = subprocess.run(["sh", "-c", script], check=True, capture_output=True, timeout=300)
    return [word.decode() for word in done.stdout.split(b"\0")][:-1]


def called(program: str, key: bool) -> tuple[str, dict[str, Any]]:
    """Path and body that the program would send: it runs, with a client that only listens."""
    ast.parse(program)
    seen: list[tuple[str, dict[str, Any]]] = []

    def create(path: str):
        def called(extra_body: dict[str, Any] | None = None, **fields: Any) -> Any:
            seen.append((path, fields | (extra_body or {})))
            return [] if fields.get("stream") else answer

        return types.SimpleNamespace(create=called)

    answer = types.SimpleNamespace(choices=[types.SimpleNamespace(text="", message=types.SimpleNamespace(content=""))])

    def client(base_url: str, api_key: str) -> Any:
        assert base_url.endswith("/v1")
        assert api_key == ("secret" if key else "none")
        chat = types.SimpleNamespace(completions=create("/v1/chat/completions"))
        return types.SimpleNamespace(chat=chat, completions=create("/v1/completions"))

    with (
        patch.dict(sys.modules, openai=types.SimpleNamespace(OpenAI=client)),
        patch.dict(  # type: ignore[dict-item]
            "os.environ", TAILRACE_API_KEY="secret"
        ),
    ):
        exec(program, {})
    [found] = seen
    return found


def test_the_openai_package_takes_these_fields():
    """Each that the program gives to its method, and not as extra_body, is one of the method's own."""
    openai = pytest.importorskip("openai")
    source = (FOLDER / "js" / "code.js").read_text()
    table = source[source.index("const TAKEN") : source.index("};", source.index("const TAKEN"))]
    chat, completion = (set(ast.literal_eval(f"[{part.split(']')[0]}]")) for part in table.split("new Set([")[1:])
    client = openai.OpenAI(api_key="none")
    for names, method in ((chat, client.chat.completions.create), (completion, client.completions.create)):
        assert names <= set(inspect.signature(method).parameters)


@pytest.mark.long
def test_the_panel_shows_the_request_of_the_answer(page: Page):
    page.fill("[data-field=top_p] input[type=text]", "0.9")
    say(page, "it's")
    open_panel(page, "Code")
    code = page.locator(".code pre")
    assert json.loads(shlex.split(code.inner_text())[-1])["top_p"] == 0.9
    page.locator(".code").get_by_label("Python").check()
    path, body = called(code.inner_text(), False)
    assert (path, body["messages"][-1]["content"], body["stream"]) == ("/v1/chat/completions", "it's", True)
    page.locator(".code").get_by_label("with explanations").check()
    assert called(code.inner_text(), False)[1]["explain"] is True
    row = page.locator(".used tr", has_text="top_p")
    assert row.inner_text().split() == ["top_p", "0.9", "the", "request"]
    row = page.locator(".used tr", has_text="max_tokens")
    assert row.inner_text().split() == ["max_tokens", "512", "this", "page"]


@pytest.mark.long
def test_copying_works_with_and_without_the_clipboard(open_page, served):
    page = open_page(served.url, permissions=["clipboard-read", "clipboard-write"])
    say(page, "hello 3")
    open_panel(page, "Code")
    page.locator(".code").get_by_label("JSON").check()
    page.locator(".code").get_by_role("button", name="Copy").click()
    page.get_by_text("Copied.").wait_for()
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["model"] == "fake"
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as off localhost, without TLS
    page.evaluate("document.addEventListener('copy', () => (window.copied = document.activeElement.value))")
    page.locator(".code").get_by_role("button", name="Copy").click()
    page.wait_for_function("window.copied")
    assert json.loads(page.evaluate("window.copied"))["model"] == "fake"


def open_panel(page: Page, name: str) -> None:
    """The panel beside the conversation, which comes with a selected token."""
    page.locator(".tokens .t").first.click()
    page.get_by_role("tab", name=name).click()
