"""`tailrace explain`: what it writes to a terminal and into a file, whatever a model says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest
import torch

from tailrace.api.schema.explain import Sentences, TokenExplanation
from tailrace.cli import explain as command
from tailrace.cli import main
from tailrace.cli.explain_html import page
from tailrace.cli.explain_table import ladder, printable, table
from tailrace.explain.record import ExplainOptions
from tailrace.explain.sentences import sentences_of
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots

HOSTILE = [
    "<script>alert(1)</script>",
    "</details><img src=x onerror=alert(1)>",
    '" onclick="alert(1)',
    "a\x1b[2J\x1b]0;title\x07b",
    "line\nend\r\n",
    "\u202eright to left\u202c",
    "zero\u200bwidth\ufeff",
    "{format} %s \\n",
    "&amp;",
    "\ue000\x00",
]
VOCAB = len(HOSTILE)


def records(fields: dict[str, Any] | None = None, count: int = 8) -> list[TokenExplanation]:
    """As the API has them, of a vocabulary that is hostile throughout."""
    slots = Slots(1, VOCAB)
    slots.add(0, SamplingParams(**(fields or {"top_p": 0.9, "logit_bias": {1: 1.0}})), key=3, prompt=[0])
    found = []
    for step in range(count):
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(step))
        rows = Rows.plain([0], [0])
        [[record]] = Sampler(slots).explain(logits, rows, ExplainOptions(4))
        slots.commit([0], [[record.token_id]])
        said = sentences_of(record, HOSTILE.__getitem__)
        found.append(
            TokenExplanation(
                *msgspec.structs.astuple(record),
                token=HOSTILE[record.token_id],
                bytes=list(HOSTILE[record.token_id].encode()),
                tokens=[HOSTILE[id] for id in record.ids],
                sentences=Sentences(*msgspec.structs.astuple(said)),
            )
        )
    return found


class Tags(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


STRUCTURE = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "p",
    "pre",
    "a",
    "span",
    "b",
    "small",
    "i",
    "bdi",
}
OURS = STRUCTURE | {"details", "summary", "ol", "li", "div", "table", "tr", "th", "td"}


def test_a_page_has_our_tags_alone_and_every_character_is_text():
    shown = records()
    assert {record.token_id for record in shown} > {0}
    tags = Tags()
    tags.feed(page("".join(HOSTILE), {"stop": HOSTILE}, shown))
    assert tags.open == []
    assert tags.tags <= OURS
    assert tags.attributes <= {
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "href",
        "id",
        "style",
        "dir",
    }
    for text in ("<script>alert(1)</script>", "</details><img src=x onerror=alert(1)>", "{format} %s"):
        assert text in tags.text
    assert not [char for char in tags.text if not char.isprintable() and char not in "\n\t"]
    assert "http" not in page("p", {}, shown).replace("http-equiv", "")


def test_what_a_token_ended_is_said_everywhere():
    first, second = records(count=2)
    shown = [
        msgspec.structs.replace(first, ended="thinking_token_budget"),
        msgspec.structs.replace(second, ended="stop"),
    ]
    assert [line.endswith(f"  {record.ended}") for line, record in zip(table(shown)[1:], shown, strict=False)] == [
        True
    ] * 2
    assert "With it the thinking budget was used up." in ladder(shown[0])
    assert "The output ended with it: stop." in ladder(shown[1])
    made = page("p", {}, shown)
    assert made.count("The output ended with it: stop.") == 1
    assert not any("ended" in text for record in (first, second) for text in ladder(record))


def test_a_page_keeps_the_order_of_tokens_whatever_their_direction():
    [record] = records(count=1)
    for token, direction in (("abc", "ltr"), (" 1 שלום", "rtl"), ("مرحبا", "rtl"), ("12", "ltr")):
        made = page("p", {}, [msgspec.structs.replace(record, token=token)])
        assert f'<p class="text" dir="{direction}">' in made
        assert f"<bdi>{token}</bdi></a>" in made
        assert f"“<bdi>{token}</bdi>”" in made


def test_markup_that_is_not_escaped_is_seen(monkeypatch):
    monkeypatch.setattr("tailrace.cli.explain_html.escape", lambda text: text)
    with pytest.raises(AssertionError):
        test_a_page_has_our_tags_alone_and_every_character_is_text()


def test_a_page_has_every_token_and_every_sentence():
    shown = records()
    tags = Tags()
    made = page("prompt", {"top_p": 0.9}, shown)
    tags.feed(made)
    for record in shown:
        assert f'href="#t{record.index}"' in made
        assert f'id="t{record.index}"' in made
        said = record.sentences
        for sentence in (said.model, *said.edits, *said.refinements, said.draw, *said.why_not):
            assert printable(sentence) in tags.text
    assert "top_p 0.9" in tags.text


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"forced_token_ids": (3, 4, 5)}, {"top_k": 1}])
def test_tables_and_ladders_are_for_any_terminal(fields):
    shown = records(fields)
    lines = table(shown)
    assert len(lines) == len(shown) + 3
    for record, line in zip(shown, lines[1:], strict=False):
        assert line.split()[0] == str(record.index)
        assert record.origin in line
    for line in [*lines, *(line for record in shown for line in ladder(record))]:
        assert line.isprintable()


def test_the_ladder_has_a_row_for_each_candidate_and_says_which_came():
    [record] = records(count=1)
    lines = ladder(record)
    assert sum("← came" in line for line in lines) == 1
    assert sum(line.startswith("Why not") for line in lines) == len(record.ids) - 1
    assert any("logit_bias" in line and "top_p" in line for line in lines)


# ---- the command


@pytest.fixture
def answered(monkeypatch) -> list[TokenExplanation]:
    """An engine that is none."""
    shown = records()
    answer = command.Answer("prompt", "text", {"top_p": 0.9}, shown)
    monkeypatch.setattr(command, "local_answer", lambda args, options: answer)
    return shown


def test_a_table_a_ladder_and_files(answered, capsys, tmp_path):
    assert main(["explain", "prompt"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(answered) + 3
    assert main(["explain", "prompt", "--token", "2"]) == 0
    assert capsys.readouterr().out.startswith("Token 2, ")
    html, data = tmp_path / "why.html", tmp_path / "why.json"
    assert main(["explain", "prompt", "--html", str(html), "--json", str(data)]) == 0
    out = capsys.readouterr()
    assert (out.out, out.err.splitlines()) == ("", [f"wrote {data}", f"wrote {html}"])
    assert html.read_text().startswith("<!doctype html>")
    found = json.loads(data.read_text())
    assert [record["token_id"] for record in found["explanations"]] == [record.token_id for record in answered]
    assert main(["explain", "prompt", "--token", "2", "--json", str(data)]) == 0
    assert [record["index"] for record in json.loads(data.read_text())["explanations"]] == [2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--token", "8"], "--token must be an integer in [0, 7], for 8 tokens came; got 8"),
        (["--token", "-1"], "--token must be an integer in [0, 7]"),
        (["--top", "0"], "explain.top must be an integer in [1, 100], got 0"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json can't be written"),
        (["--url", "localhost:1"], "--url must begin with http://"),
        (["--url", "http://127.0.0.1:1"], "http://127.0.0.1:1/v1/completions: "),
        (["--url", "http://127.0.0.1:1", "--n", "2"], "n must be 1"),
    ],
)
def test_bad_words_are_answered_in_a_line(answered, words, says, capsys):
    assert main(["explain", "prompt", *words]) in (1, 2)
    assert says in capsys.readouterr().err


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """One that answers every request with the same records, and what it was asked."""
    asked: list[dict[str, Any]] = []
    choice = {"text": "said", "message": {"content": "said"}, "explanations": msgspec.to_builtins(records())}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append({"path": self.path, "key": self.headers.get("authorization"), **body})
            refused = body.get("top_k") == 7
            data = json.dumps({"error": {"message": "no"}} if refused else {"choices": [choice]}).encode()
            self.send_response(400 if refused else 200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", asked
        http.shutdown()
        thread.join()


def test_a_server_is_asked_for_what_the_flags_say(server, capsys):
    url, asked = server
    assert main(["explain", "prompt", "--url", url, "--temperature", "0.5", "--top", "3", "--api-key", "k"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8 + 3
    assert main(["explain", "prompt", "--url", url + "/v1", "--system", "be brief", "--max-tokens", "5"]) == 0
    completion, chat = asked
    assert completion == {
        "path": "/v1/completions",
        "key": "Bearer k",
        "prompt": "prompt",
        "temperature": 0.5,
        "max_tokens": 64,
        "explain": {"top": 3},
    }
    assert (chat["path"], chat["max_tokens"]) == ("/v1/chat/completions", 5)
    assert [message["role"] for message in chat["messages"]] == ["system", "user"]
    assert main(["explain", "prompt", "--url", url, "--top-k", "7"]) == 2
    assert "the server answers 400: no" in capsys.readouterr().err


@pytest.mark.model
@pytest.mark.long
def test_a_models_own_tokens_are_explained(model_folder, tmp_path):
    data = tmp_path / "why.json"
    flags = ["--model", str(model_folder), "--num-blocks", "500", "--max-tokens", "6", "--seed", "3", "--top-p", "0.9"]
    assert main(["explain", "The capital of France is", *flags, "--json", str(data)]) == 0
    answer = msgspec.json.decode(data.read_bytes(), type=command.Answer)
    assert 0 < len(answer.explanations) <= 6
    assert answer.text.startswith("".join(record.token for record in answer.explanations[:2]))
    assert all(record.refinements[0].method == "top_p" for record in answer.explanations)
