"""Our chat templates against transformers' own `apply_chat_template`, over the templates that packages carry: writes
docs/templates.md, and fails where the two differ and no reason is given.

A client's conversation has more than one form for transformers: arguments as text or as an object, content as a string
or in parts. Ours must equal transformers' text for one of these forms, and no form may hold more of the conversation.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import transformers
from transformers import PreTrainedTokenizerFast

from peers.conversations import CONVERSATIONS, Conversation, Message
from peers.fetch import SOURCES, Source, corpus
from tailrace.errors import TailraceError
from tailrace.text.templates.chat_template import ChatTemplate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "templates.md"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# how arguments must not come out: a quoted JSON text within JSON, and Python's form of a dict
BROKEN = re.compile(r"""\\+"city|\{'city'""")


class Outcome(NamedTuple):
    """Of one conversation. form: of the input for transformers that gives our text; "" for none. theirs: what it gives
    for the input as it is."""

    ours: str | None
    refusal: str
    theirs: str | None
    form: str
    lost: str

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.ours is None:
            return "both refuse" if self.theirs is None else "only we refuse"
        return self.form or "differs"


def oracle() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens do not matter."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0})), **SPECIAL
    )


def forms(conversation: Conversation) -> Iterator[tuple[str, list[Message]]]:
    """The forms in which transformers may be given a conversation, the nearest first."""
    messages = conversation.messages
    changes = [("", lambda m: m), ("objects", objects), ("strings", strings)]
    shapes = [("", lambda m: m), ("text", joined), ("one part", one_part), ("parts", parts)]
    yield "=", messages
    for roles in ("", "developer as system", "one system message"):
        based = messages if not roles else as_system(messages, roles == "one system message")
        for named in ("", "names of results"):
            called = based if not named else with_names(based)
            for content, shape in shapes:
                for role in ("", "system", "user", "assistant", "tool") if content else ("",):
                    shaped = [shape(m) if role in ("", m["role"]) else m for m in called] if content else called
                    for arguments, change in changes:
                        for empty in ("", "empty content", "null content", "no content"):
                            words = (arguments, empty, content and f"{role} content as {content}".strip(), named, roles)
                            label = ", ".join(filter(None, words))
                            if label:
                                yield label, emptied(change(shaped), empty)


def objects(messages: list[Message]) -> list[Message]:
    """Arguments as objects."""
    messages = copy.deepcopy(messages)
    for function in functions(messages):
        if isinstance(function["arguments"], str):
            function["arguments"] = json.loads(function["arguments"])
    return messages


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
    """The content of messages with calls and no text."""
    if not how:
        return messages
    changed = []
    for message in messages:
        if message.get("tool_calls") and not message.get("content"):
            message = {key: value for key, value in message.items() if key != "content"}
            message |= {"empty content": {"content": ""}, "null content": {"content": None}, "no content": {}}[how]
        elif "tool_calls" in message and not message["tool_calls"]:
            message = {key: value for key, value in message.items() if key != "tool_calls"}
        changed.append(message)
    return changed


def as_system(messages: list[Message], join: bool) -> list[Message]:
    """Developer messages as system messages; join: those at the start as one."""
    messages = [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]
    first = next((i for i, m in enumerate(messages) if m["role"] != "system"), 0)
    if join and first > 1:
        text = "\n\n".join(joined(m)["content"] for m in messages[:first])
        messages = [messages[0] | {"content": text}, *messages[first:]]
    return messages


def with_names(messages: list[Message]) -> list[Message]:
    """Results with the names of their functions."""
    names = {c["id"]: c["function"]["name"] for m in messages for c in m.get("tool_calls") or ()}
    return [m | {"name": names[m["tool_call_id"]]} if m["role"] == "tool" else m for m in messages]


def render_theirs(theirs: Any, source: str, conversation: Conversation, messages: list[Message]) -> str | None:
    """transformers' text; None where it fails. Null content is put past transformers, which leaves such keys out."""
    from transformers.utils.chat_template_utils import render_jinja_template

    turn = {"continue_final_message": conversation.unfinished, "add_generation_prompt": not conversation.unfinished}
    options = {"tools": conversation.tools, "chat_template": source, **turn, **conversation.options}
    try:
        if any("content" in m and m["content"] is None and m["role"] == "assistant" for m in messages):
            kept = {name: value for name, value in options.items() if name != "tools"}
            return render_jinja_template([messages], tools=conversation.tools, **SPECIAL, **kept)[0][0]
        return theirs.apply_chat_template(messages, tokenize=False, **options)
    except Exception:
        return None


def whole(text: str | None, words: tuple[str, ...]) -> int:
    """How many of the words the text holds; none if arguments came out broken."""
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
    enough = whole(text, conversation.words)
    if given == text and enough == len(conversation.words):
        return Outcome(text, refusal, given, "=", "")
    found, lost, seen = "", "", set()
    for label, messages in forms(conversation):
        key = json.dumps(clean_input(messages) if label == "=" else messages, sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        other = given if label == "=" else render_theirs(theirs, source, conversation, messages)
        if other is not None and other == text:
            found = found or label
        if whole(other, conversation.words) > enough:
            lost, enough = label, whole(other, conversation.words)
        if found and enough == len(conversation.words):
            break
    return Outcome(text, refusal, given, found, lost)


def clean_input(messages: list[Message]) -> list[Message]:
    """As apply_chat_template takes them: without keys whose value is null."""
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    theirs = oracle()
    totals = Counter()
    for source, name, text in corpus():
        if args.only and not re.search(args.only, f"{source.package}/{name}"):
            continue
        try:
            ours = ChatTemplate(text, SPECIAL)
        except TailraceError as error:
            print(source.package, name, "LOAD", error)
            totals["load"] += 1
            continue
        notes = []
        for label, conversation in CONVERSATIONS.items():
            outcome = compare(ours, text, theirs, conversation)
            totals[outcome.verdict.split(",")[0] if outcome.verdict != "=" else "="] += 1
            if outcome.verdict not in ("=", "both refuse") or outcome.lost:
                notes.append(
                    f"   {label}: {outcome.verdict}"
                    + (f" LOST(by {outcome.lost})" if outcome.lost else "")
                    + (f" [{outcome.refusal[-110:]}]" if outcome.ours is None else "")
                )
                if args.verbose:
                    print("OURS", outcome.ours, "\nTHEIRS", outcome.theirs)
        print(
            f"{source.package} {name}: args={'/'.join(ours.forms.arguments)} empty={'/'.join(ours.forms.empty)} tools={ours.forms.tools} dev={ours.forms.developer} sys={ours.forms.all_systems} late={ours.forms.late_systems} names={ours.forms.result_names} par={ours.forms.parallel} { ({r: '/'.join(f) for r, f in ours.forms.contents.items()}) }"
        )
        print("\n".join(notes), flush=True)
    print(totals)


if __name__ == "__main__":
    main()
