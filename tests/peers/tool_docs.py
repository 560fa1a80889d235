"""docs/tools.md: the formats of tool calls in a table, and where the peers' parsers read otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.formats import ToolFormat
from tool_examples import STREAMED, TAGGED, TREES, written

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
HEAD = """# How models write tool calls

`--tool-parser` takes the names in the first column, and also those that vLLM and SGLang use. `auto` looks for the
markers in the vocabulary and the chat template ([Chat and tools](api/chat.md)).

- *streams*: arguments go out as they are written. Otherwise a call goes out whole, because its values must be
  converted to JSON.
- *forced*: what a grammar can express of a tool's schema (`tool_choice`, `strict`). *all*: what JSON can; *separate*:
  parameters one by one, and strings with `enum`, `const`, `pattern`, `format` and lengths; *nested*: as *separate*,
  also inside of objects and lists; of a value that may be anything, only one without an inside.

<!-- written by tests/peers/tool_calls.py -->

| format | models | a call | vLLM | SGLang | streams | forced |
|---|---|---|---|---|---|---|
"""
TOLERATED = """
## What is read besides

What models write beside their templates is read where nothing else can be meant:

- `qwen3_coder`: a call without `<tool_call>`, if the function is declared. In all formats with tags, a value whose
  closing tag is missing before the tag of another declared parameter, or before the end of the call.
- `kimi_k2`, `deepseek_v3`: calls without the markers of the section. `kimi_k2`: an id that is only `NAME:0` or `NAME`.
- Formats with JSON: keys in any order; `arguments` as a string that holds an object (Granite 4);
  `{"type": "function", "function": {…}}` (Llama 3). Control characters and unknown escapes in strings leave as valid
  JSON.
- Lists: an object that is no call is content, and the other calls of the list are calls.
- Untyped values: Python's `{'a': True}` where an object or a list is declared. The schema is followed through `$ref`,
  `anyOf`, `oneOf`, `allOf`, `enum`, `const`, `nullable` and lists of types.
- A block that turns out to be no call is content. If its text holds the opening marker once more, the text is read
  again from there.

Not read: `kimi_k3` beside a strict tool with `tool_choice: auto` (its answer has markers of its own, which that grammar
does not write). Nemotron 3 and Step 3.5 write `qwen3_coder`; Granite 4 writes `hermes`. gpt-oss (`harmony`,
`openai`, `gpt-oss`): its calls are messages, which come with its [thinking format](reasoning.md); `none` leaves their
arguments in the content.
"""


def page(found: Mapping[tuple[str, str], Mapping[str, str]], versions: Mapping[str, str]) -> str:
    """The whole page. found: (peer, parser) → case → what it made of it."""
    rows = "".join(row(name, one) for name, one in TOOL_FORMATS.items())
    named = " and ".join(f"{package} {version}" for package, version in versions.items())
    head = f"""
## Where the peers' parsers read otherwise

`make test-peers` gives the same outputs, written as the models' templates show, to the parsers of
{named} (whole answers; all that a parser imports besides other parsers is a stand-in).
Every parser that is not listed reads all outputs as ours does.

| parser | outputs | why |
|---|---|---|
"""
    told = "".join(
        f"| {peer} `{parser}` | {', '.join(cases)} | {REASONS.get((peer, parser), '?')} |\n"
        for (peer, parser), cases in found.items()
    )
    return HEAD + rows + TOLERATED + head + told


def row(name: str, one: ToolFormat) -> str:
    """A format in the table."""
    call = written(name, [CALL]).replace("\n", " ").replace("|", "\\|")
    vllm, sglang = (", ".join(f"`{other}`" for other in names) for names in (one.vllm, one.sglang))
    if name in TREES:
        forced = "nested"
    else:
        separate = name in TAGGED or name not in STREAMED
        forced = "separate" if separate else "all"
    return (
        f"| `{name}` | {one.models} | `{call}` | {vllm} | {sglang} | {'yes' if name in STREAMED else ''} | {forced} |\n"
    )
