"""Answers as text: Markdown becomes nodes, and nothing that a model writes becomes markup or a call."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import DESK, PHONE, Served, say
from page.test_history import count_stored

if TYPE_CHECKING:
    from playwright.sync_api import Page

SAMPLE = """# A title

Some *words*, `a < b`, and [a page](https://example.org/a?b=1 "its title").

1. one
2. two
   - inner

| left | right |
|:-----|------:|
| a    | 1     |

```python
def f(x):
\treturn x  # <b> & "c"

```

> said https://example.com/x
"""
HOSTILE = """<script>alert(1)</script>

<img src=x onerror=alert(2)> ![seen](https://example.org/seen.png) [![a](https://example.org/b.png)](javascript:alert(3))

[a](javascript:alert(4)) [b](JaVaScRiPt&colon;alert(5)) [c](data:text/html,<script>alert(6)</script>)
[d](vbscript:x) [e](/v1/models) [f](//example.org/) <javascript:alert(7)> [g](mailto:a@example.org)
[h]( java\tscript:alert(8)) [i][j]

[j]: javascript:alert(9)

```<img/src=x/onerror=alert(10)>
</code></pre><script>alert(11)</script>
```
"""
# draws a text in a box of its own, and returns it; each prefix in turn if there are several texts
DRAW = """async (texts) => {
    const { html, render } = await import("./page/js/lib.js");
    const { Markdown } = await import("./page/js/markdown.js");
    const box = document.createElement("div");
    texts.forEach((text, i) => render(html`<${Markdown} text=${text} done=${i === texts.length - 1} />`, box));
    return LOOK;
}"""


def draw(modules: Page, texts: list[str], look: str) -> Any:
    """Return what the expression `look` finds in `box`, where the texts were drawn one after another."""
    return modules.evaluate(DRAW.replace("LOOK", look), texts)


def answer_with(page: Page, text: str) -> None:
    """Let the server answer with this text, in pieces of seven characters."""
    pieces = [{"content": text[at : at + 7]} for at in range(0, len(text), 7)]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in pieces]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, headers={"content-type": "text/event-stream"}),
    )


def ask_for_text(page: Page, text: str) -> None:
    """Show answers as text, and get this one."""
    say(page, "hello 3")
    page.get_by_role("radio", name="Text", exact=True).check(force=True)
    answer_with(page, text)
    page.fill(".composer textarea", "more")
    page.keyboard.press("Enter")
    page.locator(".written[aria-busy=false]").nth(1).wait_for()


@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)])
def test_markdown_is_drawn_and_copied_exactly(
    open_page: Callable[..., Page], served: Served, size: dict[str, int], dark: bool
):
    page = open_page(served.url, size, dark, permissions=["clipboard-read", "clipboard-write"])
    ask_for_text(page, SAMPLE)
    answer = page.locator(".turn.answer").last
    assert answer.locator("h3").inner_text() == "A title"
    assert answer.locator("ol > li > ul > li").inner_text() == "inner"
    assert answer.locator("td.to-right").inner_text() == "1"
    assert answer.locator("blockquote a").get_attribute("href") == "https://example.com/x"
    link = answer.get_by_role("link", name="a page")
    assert link.get_attribute("rel") == "noopener noreferrer"
    answer.get_by_role("button", name="Copy the code").click()
    page.wait_for_selector("text=Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == 'def f(x):\n\treturn x  # <b> & "c"\n'
    answer.get_by_role("button", name="Copy", exact=True).click()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('# A')")
    assert page.evaluate("navigator.clipboard.readText()") == SAMPLE
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert count_stored(page) == 4
    page.reload()
    page.locator(".written .prose").first.wait_for()
    page.get_by_role("radio", name="Tokens", exact=True).check(force=True)
    assert page.locator(".tokens .t").count() == 4


def test_thoughts_and_calls_have_their_places_in_a_text(page: Page):
    say(page, "think tool")
    tokens = page.locator(".section.thought .t:not(.special)").all_text_contents()
    page.get_by_role("radio", name="Text", exact=True).check(force=True)
    shown = page.locator(".written .thought .prose").inner_text()
    assert shown.split() == "".join(tokens).split()  # Markdown drops spaces at the beginning of a line
    assert page.locator(".written .tool").inner_text().startswith('Tool call\nget_weather( {"city": "Paris"')


def test_raw_text_stays_tokens(page: Page):
    say(page, "hello 3")
    page.get_by_role("radio", name="Text", exact=True).check(force=True)
    page.get_by_label("Raw text").check(force=True)
    page.fill(".composer textarea", "Once 5")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(".tokens .t")
    assert page.get_by_role("radio", name="Text", exact=True).count() == 0


def test_hostile_markdown_stays_text(page: Page):
    """The page fixture fails for a dialog, a request elsewhere, or a breach of the policy."""
    ask_for_text(page, HOSTILE)
    answer = page.locator(".turn.answer").last
    assert answer.locator("script, img, iframe, [onerror]").count() == 0
    addresses = answer.locator("a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    assert sorted(addresses) == [
        "https://example.org/b.png",
        "https://example.org/seen.png",
        "mailto:a@example.org",
    ]
    text = answer.inner_text()
    assert all(f"alert({number})" in text for number in (1, 2, 3, 4, 6, 7, 8, 11))


@pytest.mark.parametrize(
    "text",
    [
        ">" * 100_000,
        "- " * 50_000,
        "*a " * 33_000 + "end",
        "[" * 50_000 + "](" * 25_000,
        "![[]()" * 17_000,
        "a_" * 50_000,
        "word " * 20_000,
        "```\n" + "x = 1\n" * 17_000,
    ],
    ids=lambda text: text[:6],
)
def test_long_and_deep_texts_lose_nothing(modules: Page, text: str):
    letters = draw(
        modules, [text], "(box.querySelector('figcaption')?.remove(), box.textContent.replace(/[^a-z=1]/g, ''))"
    )
    assert letters == "".join(letter for letter in text if letter.islower() or letter in "=1")
    if text.startswith(">"):
        assert draw(modules, [text], "box.textContent.trim()") == text


# what a new line may change: a list that goes on, a table, an open fence, a title below its text, a late address
GROWING = [
    SAMPLE,
    "1. a\n\n2. b\n\n3. c\n\ntext\n\n3. d\n4. e",
    "- a\n\n  b\n\n      c\n- d\n\n*e*\n\n* f",
    "a | b\n--|--\n1 | 2\n\nTitle\n=====\n\nlast\n---\nmore",
    "text\n\n~~~js\nopen\n\n# no title",
    "[x] and [y]\n\nmore\n\nmore\n\n[x]: https://example.org/x\n[y]: https://example.org/y\n",
    "one\r\n\r\n```\r\ntwo\r\n```\r\nthree\r\n",
]


@pytest.mark.parametrize("text", GROWING, ids=range(len(GROWING)))
def test_a_text_that_grows_is_what_it_is_at_once(modules: Page, text: str):
    """At each character too, but for the addresses that a later line defines."""
    look = """async (text) => {
        const { parse } = await import("./page/js/markdown.js");
        const show = ({ blocks }) => JSON.stringify(blocks.map(({ line, source, tokens }) =>
            [line, source, tokens.map(({ type, content, children }) => [type, content, children?.map(
                ({ type, content }) => [type, content])])]));
        let grown;
        const wrong = [];
        for (let size = 1; size <= text.length; size++) {
            grown = parse(text.slice(0, size), grown);
            if (!text.includes("]: ") && show(grown) !== show(parse(text.slice(0, size)))) wrong.push(size);
        }
        return wrong;
    }"""
    assert modules.evaluate(look, text) == []
    grown = draw(modules, [text[:size] for size in range(1, len(text) + 1)], "box.innerHTML")
    assert grown == draw(modules, [text], "box.innerHTML")


def test_an_open_fence_is_code_already(modules: Page):
    found = draw(modules, ["a\n\n```python\nx = *1*"], "box.querySelector('pre code').textContent")
    assert found == "x = *1*"
