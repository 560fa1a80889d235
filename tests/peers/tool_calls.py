"""The peers' parsers of tool calls on the same outputs as ours. `make test-peers` runs this; with --write it also
writes docs/tools.md. It fails where a difference has no reason in REASONS, and where a reason has no difference.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

import tool_parsers as peers  # noqa: E402, behind the path
from tool_docs import PAGE, REASONS, UNKNOWN, page  # noqa: E402

from tailrace.config import ServerConfig  # noqa: E402
from tailrace.text.channel_splitter import ChannelSplitter  # noqa: E402
from tailrace.text.tool_parsers import TOOL_FORMATS, tool_schemas  # noqa: E402
from tool_examples import tokens, written  # noqa: E402

PARAMETERS = {
    "type": "object",
    "properties": {
        "where": {"type": "string"},
        "coats": {"type": "integer"},
        "rooms": {"type": "array", "items": {"type": "string"}},
        "size": {"anyOf": [{"$ref": "#/$defs/size"}, {"type": "null"}]},
    },
    "$defs": {"size": {"type": "object", "properties": {"w": {"type": "number"}}}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("paint", "wash")]
ONE = ("paint", {"where": "a", "coats": 2, "rooms": ["x", "y"]})
FENCED = r"\1function<｜tool▁sep｜>\2\n```json\n\3\n```\4"
CALLS = {
    "one call": [ONE],
    "a text like a number": [("paint", {"where": "12", "coats": 2})],
    "an optional object": [("paint", {"where": "a", "size": {"w": 1.5}})],
    "two calls": [ONE, ("wash", {"where": "b c"})],
    "no arguments": [("wash", {})],
    "quotes and brackets": [("paint", {"where": "say \"]\" or '}'", "rooms": ["[", "}"]})],
}


# parsers that read another form of the format than the one of tool_examples.py: it as regular expressions
FORMS = {
    "deepseek_v3": ((r"(<｜tool▁call▁begin｜>)(\w+)<｜tool▁sep｜>(.*?)(<｜tool▁call▁end｜>)", FENCED),),
    "deepseekv3": ((r"(<｜tool▁call▁begin｜>)(\w+)<｜tool▁sep｜>(.*?)(<｜tool▁call▁end｜>)", FENCED),),
    "interns1": ((r"(<\|action_start\|>)(<\|plugin\|>)", r"\1 \2\n"), (r"(<\|action_end\|>)", r"\n\1")),
    "glm47": ((r"\n", ""),),
    "spark25": ((r"\n", ""),),
}


def form_of(parser: str, text: str) -> str:
    """A text in the form that this parser is for."""
    for pattern, other in FORMS.get(parser, ()):
        text = re.sub(pattern, other, text, flags=re.DOTALL)
    return text


def ours(name: str, text: str) -> peers.Found:
    """What our parser makes of a whole text."""
    splitter = ChannelSplitter(None, TOOL_FORMATS[name], declared=tool_schemas(TOOLS))
    calls: list[list[str]] = []
    segments = splitter.feed(text) + splitter.flush()
    for call in (segment.call for segment in segments if segment.call is not None):
        if call.name:
            calls.append([call.name, ""])
        calls[-1][1] += call.arguments
    said = "".join(segment.text for segment in segments if segment.channel == "content")
    return [(name, json.loads(arguments)) for name, arguments in calls], said


def differences() -> Iterator[tuple[str, str, str, str]]:
    """(peer, its parser, case, what it makes of it) for each output that it reads otherwise than it was written."""
    for name, one in TOOL_FORMATS.items():
        for case, calls in CALLS.items():
            text = written(name, calls)
            for form in {text, *(form_of(parser, text) for parser in (*one.vllm, *one.sglang))}:
                if ours(name, form) != (calls, ""):
                    yield "tailrace", name, case, told(ours(name, form))
            for peer, names in (("vLLM", one.vllm), ("SGLang", one.sglang)):
                for parser in names:
                    try:
                        found = getattr(peers, peer.lower())(
                            parser, form_of(parser, text), TOOLS, tokens(name) or one.marks
                        )
                    except Exception as error:
                        yield peer, parser, case, f"{type(error).__name__}"
                        continue
                    if (found[0], found[1].strip()) != (calls, ""):
                        yield peer, parser, case, told(found)


def unknown_names() -> dict[str, set[str]]:
    """The names of the peers' parsers that are none here, by setting."""
    hints = get_type_hints(ServerConfig)
    return {field: {*names} - {*get_args(hints[field])} for field, names in peers.names().items()}


def told(found: peers.Found) -> str:
    """A short form of what was found."""
    calls, content = found
    return f"content {content[:40]!r}" if not calls else json.dumps(calls, ensure_ascii=False)[:160]


def main(arguments: list[str]) -> int:
    """Compare, and write the page if asked."""
    logging.disable(logging.CRITICAL)
    peers.prepare()
    found: dict[tuple[str, str], dict[str, str]] = {}
    for peer, parser, case, what in differences():
        found.setdefault((peer, parser), {})[case] = what
    versions: dict[str, Any] = {source.package: source.version for source in peers.PARSERS[:2]}
    ours_too = [key for key in found if key[0] == "tailrace"]
    there = PAGE.read_text(encoding="utf-8")
    text = page(there, {key: cases for key, cases in found.items() if key not in ours_too}, versions)
    if "--write" in arguments:
        PAGE.write_text(text, encoding="utf-8")
    for (peer, parser), cases in found.items():
        for case, what in cases.items():
            print(f"{peer} {parser}: {case}: {what}")
    if PAGE.read_text(encoding="utf-8") != text:
        print("docs/tools.md is not what was found: run this with --write and look at the difference", file=sys.stderr)
        return 1
    unexplained = found.keys() ^ REASONS.keys()
    for field, missing in unknown_names().items():
        for name in sorted(missing ^ (UNKNOWN.keys() if field == "tool_parser" else missing & UNKNOWN.keys())):
            print(f"{field}: {name} is a name of a peer's, and neither known here nor explained", file=sys.stderr)
            unexplained |= {(field, name)}
    for peer, parser in sorted(unexplained):
        print(f"{peer} {parser}: a difference without a reason, or a reason without a difference", file=sys.stderr)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
