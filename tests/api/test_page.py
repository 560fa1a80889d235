"""The page's files and what they may do: which are served, with which headers, to whom; and what the page knows of the
fields."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes, urljoin

import pytest

from api.harness import NAME, LocalClient, endless, front_of, saying
from tailrace.api.page_fields import PageField, shown_fields
from tailrace.api.routes import page
from tailrace.api.schema.chat import ChatRequest
from tailrace.api.schema.completions import CompletionRequest
from tailrace.config import ServerConfig
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling.pipeline import EDITS, REFINEMENTS

FILES = {
    "index.html": "<!doctype html>",
    "style.css": "body {}",
    "js/app.js": "export {}",
    "vendor/LICENSE.txt": "yours",
    "js/notes.py": "secret",
    ".hidden.js": "secret",
    "js/.map.js": "secret",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A page of a few files, beside which a secret lies."""
    inside = tmp_path / "page"
    for name, text in FILES.items():
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_text(text)
    (tmp_path / "secret.js").write_text("secret")
    monkeypatch.setattr(page, "FOLDER", inside)
    return inside


async def test_the_page_and_its_files_come_with_their_types(front, folder):
    for path, kind in (
        ("/", "text/html; charset=utf-8"),
        ("/page/index.html", "text/html; charset=utf-8"),
        ("/page/style.css", "text/css; charset=utf-8"),
        ("/page/js/app.js", "text/javascript; charset=utf-8"),
        ("/page/vendor/LICENSE.txt", "text/plain; charset=utf-8"),
    ):
        answer = await front.http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
        assert answer.text == FILES[path.removeprefix("/page/") if path != "/" else "index.html"]


async def test_nothing_is_allowed_but_its_own(front, folder):
    every = ("/", "/page", "/page/", "/page/js/app.js", "/page/fields.json", "/page/status", "/page/no.js", "/page/js")
    for path in every:
        headers = (await front.http.get(path)).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in str(policy)
        assert "http" not in str(policy)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/page", "/page/"])
async def test_the_folders_own_address_leads_to_the_page(front, folder, path):
    answer = await front.http.get(path, follow_redirects=False)
    assert answer.status_code == 308
    followed = await front.http.get(path, follow_redirects=True)
    assert (followed.status_code, followed.url.path, followed.text) == (200, "/", FILES["index.html"])
    # behind a proxy that has put the server below a path of its own
    assert urljoin(f"https://there/tailrace{path}", answer.headers["location"]) == "https://there/tailrace/"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.js",
        "js/../../secret.js",
        "%2e%2e/secret.js",
        "..%2fsecret.js",
        "..%5csecret.js",
        "/etc/passwd.txt",
        "//etc/hosts.txt",
        "js/notes.py",
        ".hidden.js",
        "js/.map.js",
        "js",
        "js/",
        "js//app.js",
        "js/app.js%00.css",
        "./js/app.js%3f",
        "a" * 400 + ".js",
        "%ff.js",
    ],
)
async def test_nothing_else_is_served(front, folder, path):
    status, content = await asked(front, f"/page/{path}")
    assert status == 404
    assert json.loads(content)["error"]["code"] == "not_found"


async def test_a_way_out_would_be_seen(front, folder, monkeypatch):
    """With a pattern that lets everything through, the secret comes."""
    monkeypatch.setattr(page, "PATH", re.compile(".*"))
    assert await asked(front, "/page/js/%2e%2e/../secret.js") == (200, b"secret")


async def asked(front, raw_path: str) -> tuple[int, bytes]:
    """Status and body of a path that no client has tidied up."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote_to_bytes(raw_path).decode("utf-8", "replace"),
        "raw_path": raw_path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }
    sent: list = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await front.app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def test_a_browser_that_has_a_file_hears_304(front, folder):
    first = await front.http.get("/page/js/app.js")
    tag = first.headers["etag"]
    for given in (tag, f'"other", {tag}', f"W/{tag}"):
        again = await front.http.get("/page/js/app.js", headers={"if-none-match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await front.http.get("/page/js/app.js", headers={"if-none-match": '"other"'})).status_code == 200
    (folder / "js/app.js").write_text("export const changed = 1")
    changed = await front.http.get("/page/js/app.js", headers={"if-none-match": tag})
    assert (changed.status_code, changed.text) == (200, "export const changed = 1")


async def test_head_and_other_methods(front, folder):
    for path in ("/", "/page/js/app.js", "/page/fields.json", "/page/status"):
        assert (await front.http.head(path)).status_code == 200
        refused = await front.http.post(path, json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_without_a_page_there_is_none(tokenizer, folder):
    for keys, status in (("", 404), ("one", 401)):
        config = ServerConfig(page=False, api_keys=keys)
        async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:
            for path in ("/", "/page/index.html", "/page/fields.json", "/page/status"):
                assert (await front.http.get(path)).status_code == status
            headers = {"authorization": "Bearer one"}
            assert (await front.http.get("/v1/models", headers=headers)).status_code == 200


async def test_with_keys_the_page_is_open_and_calls_are_not(tokenizer, folder):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, ServerConfig(api_keys="one")) as front:
        for path in ("/", "/page/js/app.js", "/page/fields.json", "/page/status"):
            assert (await front.http.get(path)).status_code == 200
        assert (await front.http.get("/page", follow_redirects=False)).status_code == 308
        for path in ("/pages", "/x/page/js/app.js", "/v1/models", "//", "/page%2f../v1/models"):
            assert (await front.http.get(f"http://localhost{path}")).status_code in (401, 404)
        assert (await front.http.get("/v1/models")).status_code == 401
        assert (await front.chat()).status_code == 401
        assert (await front.http.get("/page/status")).json()["keys"] is True


async def test_the_status_is_there_while_a_model_loads(tokenizer, folder):
    client = LocalClient(saying(b"Hello"))
    async with front_of(client, tokenizer, wait=False) as front:
        early = (await front.http.get("/page/status")).json()
        assert early["health"]["status"] in ("starting", "ready")
        assert early["loading"] == ({NAME: ""} if early["health"]["status"] == "starting" else {})
        assert (await front.http.get("/")).status_code == 200
        await front.until(lambda: front.service.supervisor.state == "ready")
        ready = (await front.http.get("/page/status")).json()
        assert (ready["health"]["status"], ready["models"], ready["keys"]) == ("ready", [NAME], False)
        assert ready["loading"] == {}
        client.die()
        await front.until(lambda: front.service.supervisor.state == "dead")
        dead = await front.http.get("/page/status")
        assert (dead.status_code, dead.json()["health"]["status"]) == (200, "dead")
        assert "signal 9" in dead.json()["health"]["error"]


async def test_every_field_of_the_declarations_is_there(front):
    shown = (await front.http.get("/page/fields.json")).json()
    assert shown["defaults"] == {NAME: {}}
    by_name = {field["name"]: field for field in shown["fields"]}
    wanted = {field.http_name or name for name, field in FIELDS.items() if field.http != ""}
    assert by_name.keys() == wanted
    assert {field["kind"] for field in shown["fields"]} <= shown["kinds"].keys()
    assert {name for field in shown["fields"] for name in field.get("needs", [])} <= wanted
    assert by_name["top_p"] == {
        "name": "top_p",
        "doc": FIELDS["top_p"].doc,
        "kind": "truncation",
        "forms": {"chat": "number", "completion": "number"},
        "method": "top_p",
        "neutral": 1.0,
        "low": 0.0,
        "high": 1.0,
        "voided_by": ["mirostat"],
    }
    forms = {name: next(iter(field["forms"].values())) for name, field in by_name.items()}
    assert forms["stop"] == forms["bad_words"] == forms["dry_sequence_breakers"] == "texts"
    assert forms["logit_bias"] == "map"
    assert forms["stop_token_ids"] == "ids"
    assert by_name["thinking_token_budget"]["forms"] == {"chat": "integer"}
    assert by_name["repetition_scope"]["choices"] == ["prompt", "output", "both"]
    for field in shown["fields"]:
        for endpoint, kind in (("chat", ChatRequest), ("completion", CompletionRequest)):
            assert (endpoint in field["forms"]) == (field["name"] in kind.__struct_fields__)


@pytest.mark.parametrize("resume_s", [60.0, 0.0])
async def test_the_page_knows_whether_streams_can_be_resumed(tokenizer, resume_s):
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, ServerConfig(resume_s=resume_s)) as front:
        assert (await front.http.get("/page/fields.json")).json()["resumable"] is (resume_s > 0)


async def test_the_methods_order_and_titles_are_there(front):
    shown = (await front.http.get("/page/fields.json")).json()
    assert shown["refinements"] == list(REFINEMENTS)
    assert shown["titles"].keys() <= {"grammar", "draft", *EDITS, *REFINEMENTS}
    assert shown["titles"]["top_n_sigma"] == "Top-nσ"
    assert "temperature" not in shown["titles"]  # the name is title enough


EXAMPLES = {"switch": True, "text": "x", "texts": ["x"], "ids": [65], "map": {"x": 1.0}}


async def test_what_the_page_would_give_is_taken(tokenizer):
    """A value of each form is understood, and the neutral value does nothing."""
    # what this model can't do, or what needs more than one other field
    skipped = {"thinking_token_budget", "logprob_token_ids", "report_entropy", "sampler_order"}
    skipped |= {"banned_strings", "banned_ignore_case", "banned_regex"}
    by_name = {field.name: field for field in shown_fields()}
    async with front_of(LocalClient(endless), tokenizer) as front:
        for field in by_name.values():
            if field.name in skipped or field.forms["chat"] == "json":
                continue
            body = {"temperature": 0.7, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
            body |= {name: example(by_name[name]) for name in field.needs[:1]} | {field.name: example(field)}
            answer = await front.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, (body, answer.json())
            assert field.neutral is None or FIELDS[field.name].neutral(field.neutral)


def example(field: PageField) -> object:
    """A value at which the field does something."""
    if field.choices:
        return field.choices[-1]
    form = field.forms["chat"]
    if field.low is None or field.high is None:
        return EXAMPLES[form]
    return 2 if field.high > 2 else (max(field.low, 0) + field.high) / 2 if form == "number" else 1


async def test_presets_are_those_of_the_server(front):
    presets = (await front.http.get("/page/fields.json")).json()["presets"]
    assert {"greedy", "balanced", "creative"} <= presets.keys()
    for fields in presets.values():
        SamplingParams(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})


def test_nothing_of_it_is_read_before_somebody_opens_it():
    """An app is made and asked for something else: no file of the page is opened, and the fields are not listed."""
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import tailrace.api.app, tailrace.api.page_fields as fields
from tailrace.api.routes import page
assert fields.shown_fields.cache_info().currsize == page.load_asset.cache_info().currsize == 0
assert not [name for name in opened if name.startswith(str(page.FOLDER) + "/")]
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
