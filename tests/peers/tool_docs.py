"""What is written into docs/tools.md: the formats of tool calls in a table, and where the peers' parsers read
otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.formats import ToolFormat
from tool_examples import STREAMED, TAGGED, TREES, UNQUOTED, written

CALL = ("NAME", {"a": 1, "b": "x"})
REFERENCE = "It does not follow the reference in an optional object, so the value stays a text."
# how a parser reads otherwise than ours, as its results show
REASONS = {
    ("vLLM", "qwen3_coder"): REFERENCE,
    ("vLLM", "qwen3_xml"): REFERENCE,
    ("vLLM", "step3p5"): REFERENCE,
    ("vLLM", "glm45"): REFERENCE,
    ("vLLM", "glm47"): REFERENCE,
    ("vLLM", "minimax_m2"): REFERENCE,
    ("vLLM", "seed_oss"): REFERENCE,
    ("vLLM", "step5"): REFERENCE,
    ("vLLM", "ling3"): REFERENCE,
    ("vLLM", "hy_v3"): REFERENCE,
    ("vLLM", "hy_v4"): REFERENCE,
    ("vLLM", "mimo"): REFERENCE,
    ("vLLM", "k2_horizon"): REFERENCE,
    ("SGLang", "hunyuan"): REFERENCE,
    ("SGLang", "spark25"): REFERENCE,
    ("SGLang", "mimo"): REFERENCE,
    ("vLLM", "muse_glimmer"): "A text that is JSON becomes a number.",
    ("SGLang", "muse"): "A text that is JSON becomes a number.",
    ("vLLM", "gigachat3"): "It reads one call, as the model's template writes one.",
    ("SGLang", "gigachat3"): "As vLLM's.",
    ("vLLM", "gemma4"): "Numbers are texts until a schema says otherwise, and it does not follow the reference.",
    ("vLLM", "functiongemma"): "It reads quoted values alone, and a quoted number as a number.",
    ("vLLM", "minimax_m3"): "No argument is found in the text alone. The cause was not looked into.",
    ("vLLM", "step3"): "It converts numbers and truth values, and leaves lists and objects as texts.",
    ("vLLM", "phi4_mini_json"): "Its pattern ends at the first closing bracket, also at one inside the arguments.",
    ("vLLM", "cohere_command3"): "Its parser of whole answers is a package of its own, which was not run.",
    ("vLLM", "cohere_command4"): "As cohere_command3.",
    ("vLLM", "internlm"): "Several calls are an error.",
    ("SGLang", "minimax-m2"): "An optional object is null.",
    ("SGLang", "minimax-m3"): "It does not follow the reference, so the number inside is a text.",
    ("SGLang", "step3"): REFERENCE,
}
TEMPLATED = "it names no format. The format is declared in the model's own folder, which is not read here."
# names of the peers' parsers that are none here
UNKNOWN = {"hf": TEMPLATED, "beam": TEMPLATED}
PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
HEAD = ("format", "models", "a call", "vLLM", "SGLang", "streams", "forced")


def page(text: str, found: Mapping[tuple[str, str], Mapping[str, str]], versions: Mapping[str, str]) -> str:
    """The page with all that is written here. found: (peer, parser) → case → what it made of it."""
    named = " and ".join(f"{package} {version}" for package, version in versions.items())
    head = f"""`make test-peers` gives the same outputs, written as the models' templates show, to the parsers of
{named} (whole answers; all that a parser imports besides other parsers is a stand-in).
Every parser that is not listed reads all outputs as ours does.

| parser | outputs | why |
|---|---|---|
"""
    told = "".join(
        f"| {peer} `{parser}` | {', '.join(cases)} | {REASONS.get((peer, parser), '?')} |\n"
        for (peer, parser), cases in found.items()
    )
    unknown = "".join(f"- `{name}`: {why}\n" for name, why in UNKNOWN.items())
    return replace_part(replace_part(with_formats(text), "names", unknown), "peers", head + told)


def with_formats(text: str) -> str:
    """The page with its table of formats."""
    lines = (f"| {' | '.join(HEAD)} |\n", f"|{'---|' * len(HEAD)}\n")
    return replace_part(text, "formats", "".join((*lines, *(row(name, one) for name, one in TOOL_FORMATS.items()))))


def replace_part(text: str, name: str, part: str) -> str:
    """The page with a part between its marks."""
    pattern = rf"<!-- table: {name} -->\n.*?<!-- end -->"
    return re.sub(pattern, lambda _: f"<!-- table: {name} -->\n{part}<!-- end -->", text, flags=re.DOTALL)


def row(name: str, one: ToolFormat) -> str:
    """A format in the table."""
    call = written(name, [CALL]).replace("\n", " ").replace("|", "\\|")
    vllm, sglang = (", ".join(f"`{other}`" for other in names) for names in (one.vllm, one.sglang))
    streams = "yes" if name in STREAMED else "texts" if name in UNQUOTED else ""
    if name in TREES:
        forced = "nested"
    else:
        separate = name in TAGGED or name not in STREAMED
        forced = "separate" if separate else "all"
    return f"| `{name}` | {one.models} | `{call}` | {vllm} | {sglang} | {streams} | {forced} |\n"
