"""Our chat templates against transformers' own `apply_chat_template`, over the templates that packages carry: writes
docs/templates.md, and fails where the two differ and no reason is given.

A client's conversation has more than one form for transformers: arguments as text or as an object, content as a string
or in parts. Ours must equal transformers' text for one of these forms, and no form may hold more of the conversation.

More than 300 lines, because the forms of the input, the comparison and the page are one program.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import logging
import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from peers.conversations import CONVERSATIONS, Conversation, Message
from peers.fetch import Source, corpus
from tailrace.errors import TailraceError
from tailrace.text.reasoning_probe import EFFORTS, SWITCHES
from tailrace.text.templates.call_texts import render_with_texts
from tailrace.text.templates.chat_template import ChatTemplate
from tailrace.text.templates.forms import CallOpening, TurnForms
from tailrace.text.templates.messages import fit_messages

PAGE = Path(__file__).resolve().parents[2] / "docs" / "templates.md"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# how arguments must not come out: a quoted JSON text within JSON, and Python's form of a dict
BROKEN = re.compile(r"""'city': 'Z|\\+"city\\+": \\*"Z""")


THINKING = (*SWITCHES, "thinking_budget", *EFFORTS)
MARK = "<!-- written by `make test-peers` -->"
HEADINGS = (
    "| template | tools | arguments | parallel | content | developer | thinking | moved | equal | differs |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


class Outcome(NamedTuple):
    """Of one conversation. form: of the input for transformers that gives our text; "" for none. theirs: what it gives
    for the input as it is. missing: words that our text lacks, but for tools that are not written."""

    ours: str | None
    refusal: str
    theirs: str | None
    form: str
    lost: str
    missing: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.ours is None:
            return "both refuse" if self.theirs is None else "only we refuse"
        return self.form or "differs"


# where the two differ, or another form holds more: what is so, and why
REASONS: dict[Callable[[Outcome], bool], str] = {
    lambda outcome: (
        outcome.verdict == "both refuse" and "string" in outcome.refusal
    ): "the template refuses an empty answer",
    lambda outcome: (
        "text in thoughts" in outcome.lost and outcome.verdict not in ("differs", "only we refuse")
    ): "the template writes the text or the calls, as in transformers the text",
    lambda outcome: "\\u" in (outcome.ours or ""): "the template escapes what is not ASCII",
}
THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def oracle() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens do not matter."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0})), **SPECIAL
    )


def forms(conversation: Conversation, ours: ChatTemplate) -> Iterator[tuple[str, list[Message]]]:
    """The forms in which transformers may be given a conversation, the nearest first, with what they change. The last
    has the turns that we found out to be written."""
    yield "=", clean_input(conversation.messages)
    shapes: list[tuple[str, Callable[[Message], Message]]] = [("", lambda m: m)]
    for role in ("", "system ", "user ", "assistant ", "tool "):
        for name, shape in (("text", joined), ("one part", one_part), ("parts", parts)):
            label = f"{role}content as {name}"
            shapes.append((label, partial(only_for, role=role.strip(), shape=shape)))
    steps: list[list[tuple[str, Callable[[list[Message]], list[Message]]]]] = [
        [("", list), ("developer as system", as_system), ("one system message", one_system)],
        [
            ("", list),
            ("names of results", with_names),
            ("thoughts by each name", with_thoughts),
            ("text in thoughts", in_thoughts),
        ],
        [(label, partial(each, change=shape)) for label, shape in shapes],
        [("", list), ("arguments as objects", objects), ("arguments as strings", strings)],
        [("", list), *((f"{how} content", partial(emptied, how=how)) for how in ("empty", "null", "no"))],
    ]
    for chosen in itertools.product(*steps):
        messages = conversation.messages
        for _, change in chosen:
            messages = change(messages)
        if label := ", ".join(label for label, _ in chosen if label):
            yield label, messages
    yield turns_of(ours), fit_messages(conversation.messages, ours.forms)


def turns_of(ours: ChatTemplate) -> str:
    """Which turns are moved, in words."""
    found, usual = ours.forms.turns._asdict(), TurnForms()
    moved = (item for item in found.items() if item[1] != getattr(usual, item[0]))
    return "turns: " + " ".join(
        "text-before-calls" if isinstance(item[1], CallOpening) else TURNS[item] for item in moved
    )


# a form of turns that is not the usual one → the word for it in the page
TURNS: dict[tuple[str, Any], str] = {
    ("all_systems", False): "one-system",
    ("systems", "first"): "late-system",
    ("systems", "nowhere"): "no-system",
    ("lone_system", False): "lone-system",
    ("users", False): "users",
    ("assistants", False): "answers",
    ("calls", "metadata"): "calls-as-metadata",
    ("calls", "text"): "calls-as-text",
    ("parallel", False): "parallel-calls",
    ("calls_without_tools", False): "calls-as-text-without-tools",
    ("open_calls", False): "open-calls-as-text",
    ("turns_before_results", False): "turns-before-results",
    ("empty_answers", False): "empty-answers",
    ("text_and_calls", "turn"): "text-and-calls",
    ("text_and_calls", "answered"): "text-and-answered-calls",
    ("results", "observation"): "results-as-observation",
    ("results", "function"): "results-as-function",
    ("results", "user"): "results-as-text",
    ("stray_results", False): "stray-results-refused",
    ("users_behind_results", False): "user-behind-result",
    ("thoughts", "part"): "thoughts-as-part",
    ("thoughts", "text"): "thoughts-as-text",
}


def each(messages: list[Message], change: Callable[[Message], Message]) -> list[Message]:
    """Every message changed."""
    return [change(message) for message in messages]


def only_for(message: Message, role: str, shape: Callable[[Message], Message]) -> Message:
    """A message changed if it has this role; "" is every role."""
    return shape(message) if role in ("", message["role"]) else message


def objects(messages: list[Message]) -> list[Message]:
    """Arguments as objects."""
    messages = copy.deepcopy(messages)
    for function in functions(messages):
        if isinstance(function["arguments"], str):
            function["arguments"] = parse_arguments(function["arguments"])
    return messages


def parse_arguments(text: str) -> Message:
    """Arguments as an object. Text that is cut stands in an object as docs/api/chat.md has it."""
    try:
        return json.loads(text)
    except ValueError:
        return {"INVALID_JSON": text}


def strings(messages: list[Message]) -> list[Message]:
    """Arguments as JSON texts."""
    messages = copy.deepcopy(messages)
    for function in functions(messages):
        if not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return messages


def functions(messages: list[Message]) -> Iterator[Message]:
    """The functions of all calls."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield call["function"]


def joined(message: Message) -> Message:
    """Content as one string."""
    content = message.get("content")
    return message | {"content": "\n".join(p["text"] for p in content)} if isinstance(content, list) else message


def one_part(message: Message) -> Message:
    """Content as a list of one part."""
    content = joined(message).get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def parts(message: Message) -> Message:
    """A string as a list of one part."""
    return one_part(message) if isinstance(message.get("content"), str) else message


def emptied(messages: list[Message], how: str) -> list[Message]:
    """Another content of messages with calls and no text; calls that are none are left out."""
    changed = []
    for message in messages:
        if message.get("tool_calls") and not message.get("content"):
            message = {key: value for key, value in message.items() if key != "content"}
            message |= {"empty": {"content": ""}, "null": {"content": None}, "no": {}}[how]
        elif "tool_calls" in message and not message["tool_calls"]:
            message = {key: value for key, value in message.items() if key != "tool_calls"}
        changed.append(message)
    return changed


def as_system(messages: list[Message]) -> list[Message]:
    """Developer messages as system messages."""
    return [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]


def one_system(messages: list[Message]) -> list[Message]:
    """The system messages at the start as one."""
    messages = as_system(messages)
    first = next((i for i, m in enumerate(messages) if m["role"] != "system"), 0)
    if first < 2:
        return messages
    text = "\n\n".join(joined(m)["content"] for m in messages[:first])
    return [messages[0] | {"content": text}, *messages[first:]]


def with_thoughts(messages: list[Message]) -> list[Message]:
    """Thoughts under each of their names."""
    thoughts = [next((m[name] for name in THOUGHTS if name in m), None) for m in messages]
    return [m if t is None else m | dict.fromkeys(THOUGHTS, t) for m, t in zip(messages, thoughts, strict=True)]


def in_thoughts(messages: list[Message]) -> list[Message]:
    """Thoughts under each of their names, with the text behind them where there are calls."""
    changed = with_thoughts(messages)
    for i, message in enumerate(changed):
        if message.get("tool_calls") and message.get("content") and "thinking" in message:
            whole = f"{message['thinking']}\n\n{joined(message)['content']}"
            changed[i] = message | dict.fromkeys(THOUGHTS, whole) | {"content": ""}
    return changed


def with_names(messages: list[Message]) -> list[Message]:
    """Results with the names of their functions."""
    names = {c["id"]: c["function"]["name"] for m in messages for c in m.get("tool_calls") or ()}
    return [m | {"name": names[m["tool_call_id"]]} if m["role"] == "tool" else m for m in messages]


def render_theirs(theirs: Any, source: str, conversation: Conversation, messages: list[Message]) -> str | None:
    """transformers' text; None where it fails. Null content goes past apply_chat_template, which leaves it out."""
    turn = {"continue_final_message": conversation.unfinished, "add_generation_prompt": not conversation.unfinished}
    options = {"tools": conversation.tools, "chat_template": source, **turn, **conversation.options}
    try:
        if any(value is None for message in messages for value in message.values()):
            return render_jinja_template([messages], **SPECIAL, **options)[0][0]
        return theirs.apply_chat_template(messages, tokenize=False, **options)
    except Exception:  # a template fails in any way
        return None


def whole(text: str | None, words: tuple[str, ...]) -> int:
    """How many of the words the text holds; none of them if arguments came out broken; -1 without a text."""
    if text is None:
        return -1
    return 0 if BROKEN.search(text) else sum(word in text for word in words)


def compare(ours: ChatTemplate, source: str, theirs: Any, conversation: Conversation) -> Outcome:
    """One conversation by both."""
    render = ours.unfinished if conversation.unfinished else ours.render
    fixed = {"tools": conversation.tools, "add_generation_prompt": not conversation.unfinished, "documents": None}
    text, refusal = None, ""
    try:
        text = render(conversation.messages, {**fixed, **conversation.options})
    except TailraceError as error:
        refusal = str(error)
    given = render_theirs(theirs, source, conversation, clean_input(conversation.messages))
    enough, found, lost = whole(text, conversation.words), "", ""
    seen: set[str] = set()
    for label, messages in forms(conversation, ours):
        if (text is None or found) and enough == len(conversation.words):
            break
        beside = ours.forms.turns.text_and_calls if label == turns_of(ours) else "beside"
        if (key := json.dumps([messages, beside], sort_keys=True)) not in seen:
            seen.add(key)
            run = partial(render_theirs, theirs, source, conversation)
            other = given if label == "=" else render_with_texts(messages, beside, run)
            found = label if not found and text is not None and other == text else found
            if whole(other, conversation.words) > enough:
                lost, enough = label, whole(other, conversation.words)
    seen_tools = not conversation.tools or ours.tools.covers(conversation.messages)
    words = conversation.words if seen_tools and text is not None else ()
    return Outcome(text, refusal, given, found, lost, tuple(word for word in words if word not in (text or "")))


def clean_input(messages: list[Message]) -> list[Message]:
    """As apply_chat_template takes them: without keys whose value is null."""
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


class Row(NamedTuple):
    """Of one template: its line in the page, and what is wrong with it."""

    package: str
    name: str
    cells: tuple[str, ...]
    faults: list[str]


def row(entry: tuple[Source, str, str]) -> Row:
    """A template against transformers, in all conversations."""
    logging.disable(logging.WARNING)
    source, name, text = entry
    ours, theirs = ChatTemplate(text, SPECIAL), oracle()
    outcomes = {label: compare(ours, text, theirs, conversation) for label, conversation in CONVERSATIONS.items()}
    faults, notes = [], []
    for label, outcome in outcomes.items():
        why = next((why for fits, why in REASONS.items() if fits(outcome)), "")
        if outcome.lost and not why:
            faults.append(f"{label}: {outcome.lost} holds more")
        if outcome.missing and not why:
            faults.append(f"{label}: without {', '.join(outcome.missing)}")
        if outcome.verdict in ("differs", "only we refuse") and not why:
            faults.append(f"{label}: {outcome.verdict} {outcome.refusal}")
        if why:
            notes.append(f"{label}: {why}")
    refused = [label for label, outcome in outcomes.items() if outcome.verdict == "both refuse"]
    changed = Counter(part for o in outcomes.values() if o.form not in ("", "=") for part in o.form.split(", "))
    told = [", ".join(part for part, _ in changed.most_common()), *notes]
    told += [f"both refuse {len(refused)}" + f": {', '.join(refused)}" * (len(refused) < 5)] if refused else []
    return Row(
        f"{source.package} {source.version}",
        name,
        (*cells_of(ours), equal_of(outcomes), "; ".join(filter(None, told))),
        faults,
    )


def equal_of(outcomes: dict[str, Outcome]) -> str:
    """How many are equal: as the input is, and in another form of it."""
    same = sum(outcome.form == "=" for outcome in outcomes.values())
    return f"{same} + {sum(outcome.form not in ('', '=') for outcome in outcomes.values())}"


def cells_of(ours: ChatTemplate) -> tuple[str, ...]:
    """What the template supports."""
    found, reads = ours.forms, ours.program.variables
    user = found.contents.get("user", ())
    thinking = [name for name in THINKING if name in reads]
    return (
        {"nested": "yes", "flat": "flat", "none": "no"}[found.tools],
        {(): "no", ("object",): "object", ("string",): "string"}.get(found.arguments, "either"),
        "yes" if found.arguments and found.turns.parallel else "no",
        "either" if "text" in user and "parts" in user else "parts" if "parts" in user else "text" if user else "no",
        "yes" if found.developer else "no",
        ", ".join(f"`{name}`" for name in thinking) or "no",
        turns_of(ours).removeprefix("turns: "),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regex: templates whose package/name it finds; writes no page")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    entries = [entry for entry in corpus() if re.search(args.only, f"{entry[0].package}/{entry[1]}")]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        rows = list(pool.imap(row, entries))
    for one in rows:
        for fault in one.faults:
            print(f"{one.package} {one.name}: {fault}")
    if not args.only:
        PAGE.write_text(page(rows), encoding="utf-8")
    bad = sum(bool(one.faults) for one in rows)
    print(f"{len(rows) - bad} passed, {bad} failed")
    sys.exit(bad > 0)


def page(rows: list[Row]) -> str:
    """The page, whole."""
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    lines = [
        MARK,
        "",
        f"transformers {transformers.__version__}, {len(rows)} templates, {len(CONVERSATIONS)} conversations each.",
    ]
    for package in dict.fromkeys(one.package for one in rows):
        mine = [one for one in rows if one.package == package]
        lines += ["", f"### {package}", "", *HEADINGS]
        lines += [f"| {one.name} | {' | '.join(one.cells)} |" for one in mine]
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
