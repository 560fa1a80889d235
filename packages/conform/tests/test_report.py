"""Reports: what is found is there, whole and harmless, in every form; a request can be repeated by its curl."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from judging import judge
from scripted_server.honest import HonestServer
from tailrace_conform.exchange import Exchange
from tailrace_conform.law import Law
from tailrace_conform.report import WRITERS
from tailrace_conform.report.text import ending
from tailrace_conform.runner import ConformRun, JudgedLaw
from tailrace_conform.verdict import Verdict, broken, curl, holds, inconclusive, not_offered

EVIL = "</pre><script>alert('x')</script>\x00\x1b[31m\ud800 ]]>"


async def no_check(ctx: object) -> Verdict:
    raise AssertionError


def law(name: str) -> Law:
    return Law(name, "A sentence & more.", "why", "method", "violation", no_check)


@pytest.fixture
def run() -> ConformRun:
    made = Exchange("POST", "/completions", {"prompt": EVIL}, status=200, raw=EVIL.encode(errors="replace"))
    found = ConformRun("http://x/v1", "m" + EVIL, "quick", 7)
    found.judged = [
        JudgedLaw(law("a.held"), holds("3 cases"), 3, 0.1),
        JudgedLaw(law("a.broken"), broken(EVIL, made, counts={"x": 1}), 2, 0.2),
        JudgedLaw(law("b.absent"), not_offered("refused: " + EVIL), 1, 0.1),
        JudgedLaw(law("b.unsure"), inconclusive("no"), 1, 0.1),
    ]
    found.unjudged = [law("c.left")]
    return found


class Tags(HTMLParser):
    """The tags of a page, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)
        assert not [name for name, _ in attrs if name == "src" or name.startswith("on")]
        assert (dict(attrs).get("href") or "#").startswith("#")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_has_nothing_of_what_a_server_says(run: ConformRun):
    page = WRITERS["html"](run)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "default-src 'none'" in page
    assert "&lt;script&gt;" in page
    assert all(name in page for name in ("a.held", "a.broken", "b.absent", "b.unsure", "c.left"))
    page.encode()


def test_json_has_all(run: ConformRun):
    found = json.loads(WRITERS["json"](run))
    assert [one["verdict"] for one in found["laws"]] == ["holds", "broken", "not_offered", "inconclusive"]
    assert found["left_out"] == ["c.left"]
    assert found["interrupted"] is True
    assert found["laws"][1]["evidence"][0]["body"] == {"prompt": EVIL}
    assert found["laws"][1]["figures"] == {"counts": {"x": 1}}


def test_html_has_the_findings_first(run: ConformRun):
    head = WRITERS["html"](run).split("<h2>")[0]
    assert "<a href='#a.broken' class=broken>" in head
    assert head.count("<a ") == len(run.findings)


def test_junit_is_xml_and_counts(run: ConformRun):
    suite = ElementTree.fromstring(WRITERS["junit"](run))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "3")
    assert [case.get("name") for case in suite.iter("testcase")][1] == "a.broken"


def test_text_says_what_was_seen(run: ConformRun):
    text = ending(run)
    assert "a.broken: broken" in text
    assert "interrupted, 1 law left out" in text
    assert "curl -s http://x/v1/completions" in text


def test_every_report_can_be_written(run: ConformRun):
    for write in WRITERS.values():
        write(run).encode("utf-8")


def test_a_key_is_never_in_a_command():
    made = Exchange("POST", "/completions", {"prompt": "it's"}, needs_key=True)
    assert shlex.split(curl(made, "http://x/v1"))[3:5] == ["-H", "Authorization: Bearer $API_KEY"]
    assert json.loads(shlex.split(curl(made, "http://x/v1"))[-1]) == {"prompt": "it's"}


async def test_the_command_repeats_the_request():
    async with HonestServer("stop-one-late") as server:
        run = await judge(server, ["stops.cut"])
        command = run.findings[0].verdict.curl(run.url)
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", str(command)], capture_output=True, text=True, check=True, timeout=60
        )
    seen = run.findings[0].verdict.evidence[0]
    answered, again = (json.loads(text)["choices"] for text in (seen.text, done.stdout))
    assert answered == again
