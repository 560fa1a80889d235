"""The matchers' laws, by brute force over a small vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache

import jsonschema
import numpy
import pytest
import torch

from grammar.vocabularies import EOS, PADDED, SPECIAL, small, spelled
from tailrace.errors import DeadEndError
from tailrace.grammar.base import BitmaskJob, Compiled, Matcher
from tailrace.grammar.llguidance import LIMITS, GrammarCompiler, LLGuidanceMatcher
from tailrace.grammar.matcher import GrammarMatcher
from tailrace.request.options import Grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "n": {"type": "integer", "minimum": -5, "maximum": 120},
        "kind": {"enum": ["abc", "ab", None, 1.5]},
        "more": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2},
    },
    "required": ["name", "n"],
    "additionalProperties": False,
    "$defs": {"leaf": {"type": "string", "pattern": "^[a-c]{2,3}$"}},
}
TEXTS = ["ab", "abc", 'a"b\\', "é\n/😀", "true"]
GBNF = 'root ::= x "c" | "(" root ")"\nx ::= [a-c\\u0031]+'
TAG = {"structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f="]}


def balanced(text: str) -> bool:
    return text.count("(") == text.count(")")


def fits_schema(text: str) -> bool:
    return not list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(json.loads(text)))


def fits_tag(text: str) -> bool:
    inner = re.findall(r"<f=(.*?)</f>", text, re.DOTALL)
    return text.count("<f=") == len(inner) and all(t.startswith("a>") and fits_schema(t[2:]) for t in inner)


# name: grammar, whether a text is a word of it
WORDS: dict[str, tuple[Grammar, Callable[[str], bool]]] = {
    "object": (Grammar(kind="json_object", whitespace=1), lambda t: isinstance(json.loads(t), dict)),
    "schema": (Grammar(kind="json_schema", source=json.dumps(SCHEMA), whitespace=2), fits_schema),
    "tight": (Grammar(kind="json_schema", source=json.dumps(SCHEMA), whitespace=0), fits_schema),
    "regex": (
        Grammar(kind="regex", source=r"(a|bc)+[0-9]{2,3}x?.é"),
        lambda t: bool(re.fullmatch(r"(a|bc)+[0-9]{2,3}x?.é", t)),
    ),
    "choice": (Grammar(kind="choice", source=json.dumps(TEXTS)), TEXTS.__contains__),
    "ebnf": (Grammar(kind="ebnf", source=GBNF), lambda t: bool(re.fullmatch(r"\(*[abc1]+c\)*", t)) and balanced(t)),
    "lark": (
        Grammar(kind="lark", source='start: WORD ("," WORD)*\nWORD: /[ab]+/'),
        lambda t: bool(re.fullmatch(r"[ab]+(,[ab]+)*", t)),
    ),
    "tag": (Grammar(kind="structural_tag", source=json.dumps(TAG), whitespace=1), fits_tag),
}
cases = pytest.mark.parametrize("name", WORDS)


@lru_cache
def compiled(name: str) -> Compiled:
    """As in production: compiled by one process, loaded by another."""
    return GrammarCompiler(small()).load(GrammarCompiler(small()).compile(WORDS[name][0]))


def start(name: str) -> GrammarMatcher:
    matcher = compiled(name).matcher()
    assert isinstance(matcher, GrammarMatcher)
    assert isinstance(matcher, Matcher)
    return matcher


def mask_of(matcher: Matcher) -> torch.Tensor:
    """Into a buffer that held something else."""
    mask = torch.full((-(-PADDED // 32),), 0x5A5A5A5A, dtype=torch.int32)
    matcher.fill(mask)
    return mask


def ids_of(mask: torch.Tensor) -> list[int]:
    return numpy.unpackbits(mask.numpy().view(numpy.uint8), bitorder="little").nonzero()[0].tolist()


def text_of(path: list[int]) -> str:
    return b"".join(spelled()[i] for i in path).decode()


def walks(name: str, count: int, steps: int):
    """Random walks: at each step the matcher, its mask and the tokens so far."""
    for seed in range(count):
        rng, matcher, path = numpy.random.default_rng(seed), start(name), []
        for _ in range(steps):
            mask = mask_of(matcher)
            yield matcher, mask, path
            token = int(rng.choice(ids_of(mask)))
            assert matcher.accept(token)
            path.append(token)
            if token in EOS:
                break


@cases
def test_a_token_is_in_the_mask_exactly_if_it_is_accepted(name: str):
    for matcher, mask, path in walks(name, 4, 12):
        taken = []
        for token in range(-1, PADDED + 32):
            if matcher.accept(token):
                taken.append(token)
                matcher.rollback(1)
        assert ids_of(mask) == taken, path
        assert not set(taken) & (SPECIAL - {*EOS})
        assert max(taken) < len(spelled())


@cases
def test_going_back_restores_masks_bit_for_bit(name: str):
    matcher, masks = start(name), []
    rng = numpy.random.default_rng(5)
    for _ in range(30):
        masks.append(mask_of(matcher))
        assert matcher.accept(int(rng.choice(ids_of(masks[-1]))))
    place = len(masks)  # tokens accepted
    for length in (1, 0, 4, 7, 2, place - 14):
        matcher.rollback(length)
        place -= length
        if length:
            assert torch.equal(mask_of(matcher), masks[place])
    assert place == 0
    with pytest.raises(ValueError, match=r"count must be in \[0, 0\]"):
        matcher.rollback(1)


@cases
def test_the_end_stays_and_can_be_taken_back(name: str):
    for matcher, mask, _ in walks(name, 12, 40):
        if EOS[0] not in ids_of(mask):
            assert not matcher.accept(EOS[1])
            continue
        assert all(matcher.accept(token) for token in (EOS[1], EOS[0], EOS[1]))
        assert matcher.finished
        assert ids_of(mask_of(matcher)) == list(EOS)
        assert not matcher.accept(ord("a"))
        assert matcher.forced(32, 9.0) == []
        matcher.rollback(3)
        assert torch.equal(mask_of(matcher), mask)
        assert matcher.finished == (ids_of(mask) == list(EOS))


@cases
def test_every_word_that_ends_is_one_of_the_language(name: str):
    ended = 0
    for seed in range(60):
        rng, matcher, path = numpy.random.default_rng(seed), start(name), []
        for _ in range(60):
            allowed = ids_of(mask_of(matcher))
            # what ends is drawn more often, or free text would never
            token = EOS[0] if EOS[0] in allowed and rng.random() < 0.3 else int(rng.choice(allowed))
            assert matcher.accept(token)
            if token in EOS:
                ended += 1
                text = text_of(path)
                assert text is None or WORDS[name][1](text)
                break
            path.append(token)
    assert ended > 5 or name in ("object", "schema", "tight")


@pytest.mark.few(3)
@cases
def test_forks_are_independent_and_prefix_changes_nothing(name: str):
    for matcher, mask, _ in walks(name, 3, 10):
        twin = matcher.fork()
        ids = ids_of(mask)
        for token in ids[:: max(1, len(ids) // 5)]:
            other = twin.fork()
            assert other.accept(token)
            then = ids_of(mask_of(other))[0]
            refused = next(t for t in range(PADDED + 1) if t not in ids_of(mask_of(other)))
            assert matcher.prefix([token, then]) == 2
            assert matcher.prefix([token, refused, then]) == 1
            assert matcher.prefix([PADDED, token]) == matcher.prefix([]) == 0
        assert torch.equal(mask_of(matcher), mask)
        assert torch.equal(mask_of(twin), mask)


@cases
def test_forced_tokens_are_all_that_can_come(name: str):
    some = 0
    for matcher, mask, _ in walks(name, 6, 12):
        tokens = matcher.forced(32, 9.0)
        some += bool(tokens)
        assert torch.equal(mask_of(matcher), mask)
        text = b"".join(spelled()[i] for i in tokens)
        if tokens:
            firsts = [spelled()[i] for i in ids_of(mask)]
            assert all(first.startswith(text) or text.startswith(first) for first in firsts if first)
            assert matcher.prefix(tokens) == len(tokens)
    assert some or name not in ("schema", "tight", "choice")


def test_a_forced_token_that_could_merge_with_what_follows_is_left_out():
    def forced(source: str) -> list[bytes]:
        library = GrammarCompiler(small())
        matcher = library.load(library.compile(Grammar(kind="regex", source=source))).matcher()
        return [spelled()[token] for token in matcher.forced(32, 9.0)]

    assert forced("xab[cd]") == [b"x"]  # "abc" is a token
    assert forced("xabcd") == [b"x", b"abc", b"d"]  # nothing follows
    assert forced("[xy]ab") == []


def test_whitespace_is_bounded():
    name = "schema"  # two characters
    for text, fits in (
        ('{  "name"', True),
        ('{   "name"', False),
        ('{ \n"name"\t\t:  "', True),
        ('{"name"   :', False),
    ):
        matcher = start(name)
        assert (matcher.prefix(text.encode()) == len(text)) == fits
    assert start("tight").prefix(b'{"name":"a","n":1}') == 18
    assert start("tight").prefix(b'{"name": "a"') == 8


def test_a_vocabulary_that_cannot_spell_it_fails_that_row():
    from tailrace.grammar.vocabulary import Vocabulary

    poor = Vocabulary.of(None, [b"a", b"b", b""], frozenset({2}), [2], 3)
    library = GrammarCompiler(poor)
    try:
        matcher = library.load(library.compile(Grammar(kind="regex", source="a[c]"))).matcher()
    except ValueError:
        return  # refused when it was compiled
    assert matcher.accept(0)
    with pytest.raises(DeadEndError):
        matcher.fill(torch.zeros(1, dtype=torch.int32))


def bits(matcher: GrammarMatcher, drafts: list[int]) -> numpy.ndarray:
    """The masks of a step with drafts, filled as a batch."""
    job = BitmaskJob(matcher, drafts, torch.zeros((1 + len(drafts), small().words), dtype=torch.int32))
    [error] = LLGuidanceMatcher.fill_together([job], 1)
    assert error is None
    return job.masks.numpy()


def test_a_lexer_that_is_full_ends_no_sequence(monkeypatch: pytest.MonkeyPatch):
    """All sequences of a grammar share a lexer, whose states are limited in number."""
    grammar = Grammar(kind="regex", source="a[a-c]{0,300}x|b[a-c]{0,300}y|c[a-c]{0,300}z")
    roomy = GrammarCompiler(small()).load(GrammarCompiler(small()).compile(grammar))
    monkeypatch.setitem(LIMITS, "max_lexer_states", 450)
    compiled = GrammarCompiler(small()).load(GrammarCompiler(small()).compile(grammar))
    start = compiled.start()
    pairs = [(compiled.matcher(), roomy.matcher()) for _ in "abc"]
    for i in range(250):
        for (one, other), first in zip(pairs, "abc", strict=True):
            token = ord("abc"[i % 3] if i else first)
            assert one.accept(token)
            assert other.accept(token)
            assert (one.get_allowed() == other.get_allowed()).all()
            assert (bits(one, [ord("b"), ord("c")]) == bits(other, [ord("b"), ord("c")])).all()
    assert compiled.start() is not start
    for (one, _), last in zip(pairs, "xyz", strict=True):
        one.rollback(2)
        assert one.accept(ord(last))
        assert one.complete
    assert compiled.matcher().accept(ord("b"))
