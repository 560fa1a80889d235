"""A client's Lark grammar within a grammar of calls: what it takes, and what is refused."""

from __future__ import annotations

import json
import random
from functools import cache

import llguidance
import pytest
from llguidance import LLMatcher, TokenizerWrapper

from tailrace.text.tool_parsers.json_patterns import RewriteError, rewrite_pattern
from tailrace.text.tool_parsers.lark_source import COMMON, LarkError, LarkGrammar

EOS = 256
PATCH = r"""
// a patch of files, in the manner of coding agents
start: head part+ foot
head: "*** Begin" LF
part: add | remove | change
add: "*** Add: " path LF (PLUS line)+
remove: "*** Remove: " path LF
change: "*** Change: " path LF ["*** To: " path LF] edit* -> changed
edit: ("@@" | "@@ " path) LF | ("+" | "-" | " ") line
PLUS: "+"
line: /(.*)/ LF
path: /(.+)/
foot: "*** End" LF?
%import common.LF
"""
NESTED = r"""
start: value
value: "(" [value ("," value)*] ")" | WORD | NUMBER
WORD: /[a-z]+/
%import common.NUMBER
%ignore /[ ]+/
"""
MIXED = r"""
start: pair ("\n" pair)*
pair: KEY "=" ("yes"i | "no\\"i | "a".."f" | ESCAPED_STRING | /\S+\t?/)
KEY: /[\w"]{2,3}/ | "\"q\""
%import common (ESCAPED_STRING, LF)
"""


class Bytes:
    eos_token_id, bos_token_id, tokens, special_token_ids = (
        EOS,
        None,
        [bytes([i]) for i in range(256)] + [b"<e>"],
        [EOS],
    )

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@cache
def tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(TokenizerWrapper(Bytes()))


def takes(source: str, text: str) -> bool:
    """The library itself takes the text."""
    matcher = LLMatcher(tokenizer(), LLMatcher.grammar_from_lark(source))
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def embed(source: str, in_json: bool) -> str:
    """A grammar of the text alone."""
    (start, body), *more = LarkGrammar(source).write_rules("own", in_json)
    quote = r'"\""' if in_json else ""
    if in_json and start.isupper():
        more.append(("END", f"{start} {quote}"))
        return "\n".join([f"start: {quote} END", f"{start}: {body}", *(f"{name}: {one}" for name, one in more)])
    return "\n".join([f"start: {quote} {start} {quote}", f"{start}: {body}", *(f"{name}: {one}" for name, one in more)])


def walk(source: str, seed: int, hints: tuple[str, ...]) -> str:
    """A random text of the grammar. hints: what it also tries to say."""
    rng, ids = random.Random(seed), list[int]()
    matcher = LLMatcher(tokenizer(), LLMatcher.grammar_from_lark(source))
    while not matcher.is_stopped() and len(ids) < 3000:
        mask = matcher.compute_logit_bias()
        assert not matcher.is_error(), matcher.get_error()
        if mask[EOS] and (len(ids) > 60 or rng.random() < 0.1):
            return bytes(ids).decode()
        hint = list(rng.choice(hints).encode())
        step = hint if rng.random() < 0.2 and matcher.validate_tokens(hint) == len(hint) else []
        step = step or rng.choices([i for i in range(EOS) if mask[i]])
        assert matcher.consume_tokens(step)
        ids += step
    assert matcher.is_stopped(), "no end"
    return bytes(ids).decode()


SOURCES = {"patch": PATCH, "nested": NESTED, "mixed": MIXED}
HINTS = {
    "patch": ("\n", r"\n", r"\\", r"\"", '"', "*** End", '\\n*** End"', "\n*** End"),
    "nested": (")", '"'),
    "mixed": (r"\n", "\n", '"', r"\"", r"\\", r"\t"),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("in_json", [True, False])
def test_texts_of_the_grammar_are_the_clients(name: str, in_json: bool):
    if name == "nested" and not in_json:
        pytest.skip("recursive rules need JSON")
    source, special = embed(SOURCES[name], in_json), 0
    for seed in range(60):
        text = walk(source, seed, HINTS[name])
        special += "\\" in text
        meant = json.loads(text) if in_json else text
        if name == "nested":  # Lark ignores spaces at both ends, too; the library does not.
            meant = meant.strip(" ")
        assert takes(SOURCES[name], meant), text
    assert special > 5 or name == "nested", "escapes occur"


TEXTS = {
    "patch": [
        '*** Begin\n*** Add: a b\n+x "y" \\z\n+\n*** End',
        "*** Begin\n*** Change: a\n*** To: é\n@@\n@@ f()\n-1\n+\t😀\n*** Remove: b\n*** End\n",
        "*** Begin\n*** End",
        "*** Begin\n*** Add: a\n*** End",
        "*** Begin\r\n*** Remove: a\n*** End",
    ],
    "nested": ["(a, (b,1.5),())", "a", "( a", "(A)", "( a , b )"],
    "mixed": ["ab=YES", "ab=nO\\", '"q"=c', 'a"_="x\\"y"', "ab=g\t\nab=d", "a=yes", "ab=\n"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in TEXTS.items() for text in texts])
def test_the_same_texts_are_taken(name: str, text: str):
    expected = takes(SOURCES[name], text)
    if name != "nested":
        assert takes(embed(SOURCES[name], False), text) == expected
    assert takes(embed(SOURCES[name], True), json.dumps(text, ensure_ascii=False)) == expected


def test_both_kinds_of_texts_are_tried():
    for name, texts in TEXTS.items():
        assert len({takes(SOURCES[name], text) for text in texts}) == 2


@pytest.mark.parametrize("name", COMMON)
def test_common_terminals_are_the_librarys(name: str):
    mine, theirs = f"start: X\nX: /{COMMON[name].replace('/', chr(92) + '/')}/", f"start: {name}\n%import common.{name}"
    for seed in range(20):
        assert takes(theirs, walk(mine, seed, ("*/", '"', "1", "e", ".", "\n")))
        if name != "ESCAPED_STRING":  # the library's may hold a line break, which Lark's own may not
            assert takes(mine, walk(theirs, seed, ("*/", '"', "1", "e", ".", "\n")))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x", "no rule"),
        ("begin: /x/", "no rule start"),
        ("start: other", "not defined"),
        ('start: "a"\nstart: "b"', "twice"),
        ('start: Ab\nAb: "a"', "small letters"),
        ("start: A\nA: b\nb: /x/", "refers to the rule"),
        ("start: <think>", "not supported"),
        ("start: %json {}", "not supported"),
        ("start: A\n%import common.NOTHING", "not known"),
        ("start: A\n%import python.STRING", "not supported"),
        ("start: /a(?=b)/", "look-around"),
        ("start: /^a/", "anchor"),
        (r"start: /a\b/", "escape"),
        ("start: /(a/", "not closed"),
        ("start: /[a/", "not closed"),
        ("start: /a/x", "flags"),
        (r'start: "\q"', "escape"),
        (r'start: "\u0001"', "control character"),
        ('start: "ab".."c"', "range"),
        ('start: "(" start? ")" | /[^()]+/', "recursive"),
        ("start: " + "x" * 100_000, "more than"),
        ('start: "(" start ")" | /^a/', "an anchor"),
        ('start: "a" start | "\\q"', "an escape that is not known"),
    ],
)
def test_what_cannot_be_enforced_is_refused(source: str, says: str):
    with pytest.raises(LarkError, match=says):
        list(LarkGrammar(source).write_rules("own", in_json=True))


def test_recursive_rules_need_json():
    with pytest.raises(LarkError, match="value is recursive"):
        list(LarkGrammar(NESTED).write_rules("own", in_json=False))


@pytest.mark.parametrize(
    ("pattern", "flags"),
    [
        (r"[^a]", ""),
        (r".", ""),
        (r".", "s"),
        (r"(?s:.)", ""),
        (r"\s", ""),
        (r"\S", ""),
        (r"\W|\d", ""),
        (r"[\n-\r]", ""),
        (r"[!-~&&[^a-z]]", ""),
        (r"[^\s\"]", ""),
        (r"\p{P}", ""),
        (r"\PL", ""),
        (r"N|\\|[\x22]", "i"),
        (r"[]\]]", ""),
    ],
)
def test_a_rewritten_pattern_matches_the_same_characters(pattern: str, flags: str):
    source, whole = f"start: /{pattern}/{flags}", f"start: /{rewrite_pattern(pattern, flags)}/"
    for code in (*range(128), 0xE9, 0x2028, 0x1F600):
        char = chr(code)
        written = json.dumps(char, ensure_ascii=False)[1:-1]
        writable = not written.startswith("\\u")
        assert takes(whole, written) == (writable and takes(source, char)), (char, written)
    assert not takes(whole, r"\N")


def test_classes_of_other_kinds_are_refused():
    for pattern in ("[a--b]", "[[:alpha:]]", "[b-a]", r"\p{Greek}", "a)", r"(?m:a)", r"\x{110000}"):
        with pytest.raises(RewriteError):
            rewrite_pattern(pattern, "")
