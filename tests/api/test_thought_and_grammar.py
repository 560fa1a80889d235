"""A thought and a grammar in one answer, with markers of one token and of several: which tokens may come where, what
ends the thought, and what may end the output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from api.field_world import EOS, PIECES, SCENES, World, make_grammars, make_tokenizer, world_of
from api.harness import events
from tailrace.grammar.service import Grammars
from tailrace.text.tokenizer import Tokenizer

D, END = ord("d"), 258
RULED = [name for name, scene in SCENES.items() if scene.ruled]
THINKING = [name for name, scene in SCENES.items() if scene.ruled and scene.thinks]


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory) -> Iterator[dict[str, tuple[Tokenizer, Grammars]]]:
    tokenizers = {kind: make_tokenizer(tmp_path_factory.mktemp("vocabulary"), kind) for kind in PIECES}
    found = {kind: (tokenizer, make_grammars(tokenizer)) for kind, tokenizer in tokenizers.items()}
    yield found
    for _, grammars in found.values():
        grammars.close()


@pytest.fixture(params=PIECES)
def vocabulary(request, vocabularies) -> tuple[Tokenizer, Grammars]:
    return vocabularies[request.param]


@pytest.fixture
async def world(vocabulary) -> AsyncIterator[World]:
    async with world_of(*vocabulary) as world:
        yield world


# ---- forced tokens


@pytest.mark.few(8)
@pytest.mark.parametrize("scene", THINKING)
@pytest.mark.parametrize(
    "text",
    [
        "</think>Hello",  # the first token behind the thought breaks the grammar
        "hm</think>a<|im_end|>",  # the end comes too early
        "<|im_end|>",  # within the thought
        "hm<|im_end|>m</think>",
    ],
)
async def test_forced_tokens_that_break_the_grammar_behind_a_thought_are_refused(world, scene, text):
    for budget in (None, 0, 1, 50):
        [answer] = await world.ask(scene, forced_token_ids=world.ids(text), thinking_token_budget=budget)
        assert answer.status == 400
        assert answer.error == "forced_token_ids: the grammar does not allow these tokens"
    assert not world.front.client.engine.requests


@pytest.mark.few(20)
@pytest.mark.parametrize("scene", THINKING)
@pytest.mark.parametrize("thought", ["", "h", "xyz</", "xy</thin"])
@pytest.mark.parametrize("budget", [None, 0, 1, 2, 50])
async def test_a_budget_closes_the_thought_behind_forced_tokens(world, scene, thought, budget):
    forced = world.ids(thought)
    wants = f"{thought}hmhm" if budget is not None else f"{thought}hm"
    [answer] = await world.ask(scene, thought=wants, forced_token_ids=forced, thinking_token_budget=budget)
    assert answer.status == 200, answer.error
    assert answer.ids[: len(forced)] == forced
    assert 4 <= len(answer.letters) <= 8, answer
    assert (answer.finish, answer.stop) == ("stop", None)
    assert answer.thought.startswith(thought)
    if budget is not None:  # a marker that has begun may finish by itself
        assert len(world.ids(answer.thought)) <= max(len(forced), budget) + len("<tool_call>")


@pytest.mark.parametrize("scene", THINKING)
async def test_forced_tokens_may_fill_the_grammar_up(world, scene):
    where = SCENES[scene]
    forced = world.ids(f"x</think>{where.before}hhhh{where.after}")
    [answer] = await world.ask(scene, forced_token_ids=[*forced, EOS])
    assert (answer.thought, answer.letters, answer.finish) == ("x", "hhhh", "stop")


# ---- the thought's markers


@pytest.mark.few(8)
@pytest.mark.parametrize("scene", THINKING)
@pytest.mark.parametrize("budget", [0, 1, 2, 3, 4, 5, 6, 50])
async def test_a_budget_ends_a_thought_and_the_grammar_rules_from_there(world, scene, budget):
    for thought in ("hmhmhm", "hm</", "h<</think", "hm"):
        [answer] = await world.ask(scene, thought=thought, thinking_token_budget=budget)
        assert answer.status == 200, answer.error
        assert 4 <= len(answer.letters) <= 8, (thought, answer)
        if budget == 50:
            assert answer.thought == thought
        assert len(world.ids(answer.thought)) <= budget + len("<tool_call>")


@pytest.mark.few(3)
@pytest.mark.parametrize("tail", ['>{"', ">\n\n", ">a"])
@pytest.mark.parametrize("drafts", [False, True])
async def test_no_token_holds_the_end_of_a_thought_and_content(vocabularies, tail, drafts):
    tokenizer, grammars = vocabularies["several tokens"]
    marker = [tokenizer.backend.token_to_id(piece) for piece in ("</", "think", tail)]
    async with world_of(tokenizer, grammars, drafts) as world:
        [free] = await world.ask("thought", "bcde", thought=[*b"hm", *marker])
        assert (free.thought, free.content) == ("hm", f"{tail[1:]}bcde")
        for scene in THINKING:
            [answer] = await world.ask(scene, "bcde", thought=[*b"hm", *marker])
            assert (answer.thought, answer.letters, answer.finish) == ("hm", "bcde", "stop")
            [refused] = await world.ask(scene, forced_token_ids=[*b"hm", *marker])
            assert refused.error == "forced_token_ids: the grammar does not allow these tokens"


@pytest.mark.few(6)
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("regex", ["[a-h]{4,8}", "[<a-z]{4,8}", "<[a-h]{4,8}"])
async def test_a_model_may_open_a_thought_before_a_grammar(vocabulary, drafts, regex):
    """Though the marker's first token may be one that the grammar allows, too."""
    async with world_of(*vocabulary, drafts, "think") as world:
        letters = "<abcde" if "<" in regex else "abcde"
        wants = [*world.ids("<think>hm</think>"), *letters.encode()]
        for forced in ((), world.ids("<think>h"), world.ids("<think>hm</think>")):
            [answer] = await world.ask("thought, grammar", wants, thought=[], regex=regex, forced_token_ids=forced)
            assert (answer.status, answer.thought, answer.content) == (200, "hm", letters), (forced, answer)
        [straight] = await world.ask("thought, grammar", letters, thought=[], regex=regex)
        assert (straight.thought, straight.content) == ("", letters)
        [broken] = await world.ask("thought, grammar", regex=regex, forced_token_ids=world.ids("<thing"))
        assert broken.status == (200 if "z" in regex else 400)


async def test_another_spelling_of_the_marker_ends_a_thought(vocabulary):
    async with world_of(*vocabulary, parser="granite") as world:
        for opening in ("Here is", "Here's"):
            for closing in ("Here is", "Here's"):
                wants = world.ids(f"{opening} my thought process:hm{closing} my response:abcde")
                [answer] = await world.ask("thought, grammar", wants, thought=[])
                assert (answer.thought, answer.content) == ("hm", "abcde"), (opening, closing, answer)


# ---- an answer that skips its opened thought

JSON = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("abcde", {"regex": "[a-h]{4,8}"}),
        ('{"a": 1}', JSON),
        ('\n{"a": 1}', JSON),
        ('{"a": 1}\n\n', JSON),
        ("yes", {"choice": ["yes", "no"]}),
    ],
    ids=str,
)
async def test_an_answer_at_once_may_end_although_a_thought_is_open(vocabulary, drafts, said, fields):
    """No noise follows. What a stream has sent as a thought can't be taken back, so the text is both."""
    async with world_of(*vocabulary, drafts) as world:
        for more in ({}, {"n": 2, "seed": 3}, {"thinking_token_budget": 50}):
            for answer in await world.ask("thought", "", thought=[*said.encode()], **fields, **more):
                assert (answer.status, answer.content, answer.finish, answer.stop) == (200, said, "stop", None)
                assert bytes(id for id in answer.ids if id < 256) == said.encode()


@pytest.mark.parametrize("drafts", [False, True])
async def test_a_thought_that_begins_like_an_answer_goes_on(vocabulary, drafts):
    async with world_of(*vocabulary, drafts) as world:
        for begin in ("abcd", "abcdefgh", "abc"):
            [answer] = await world.ask("thought, grammar", "fgfgh", thought=f"{begin} hm")
            assert (answer.thought, answer.letters, answer.finish) == (f"{begin} hm", "fgfgh", "stop")
        [answer] = await world.ask("thought", '{"b": 2}', thought='{"a": 1} hm', **JSON)
        assert (answer.thought, answer.content) == ('{"a": 1} hm', '{"b": 2}')
        # the thought goes on where its text is no whole answer
        [answer] = await world.ask("thought, grammar", "", thought=[*b"abc", EOS, *world.ids("</think>abcd")])
        assert answer.ids[3] != EOS
        assert 4 <= len(answer.letters) <= 8
        # the answers of a grammar that allows the empty text are no sign
        [answer] = await world.ask("thought", "", thought=[*b"ab", EOS, *world.ids("</think>")], regex="[a-h]*")
        assert answer.thought.startswith("ab")
        assert len(answer.thought) > 2


async def test_what_ends_an_answer_at_once(world):
    said = {"letters": "", "thought": [*b"abcdeZ</think>abcdef"]}
    [answer] = await world.ask("thought, grammar", "", thought=[*b"abcd"], ignore_eos=True)
    assert answer.ids[:5] != [*b"abcd", EOS]
    [answer] = await world.ask("thought, grammar", "", thought=[*b"abcd"], min_tokens=5)
    assert answer.ids[:5] != [*b"abcd", EOS]
    [answer] = await world.ask("thought, grammar", stop_token_ids=[*b"e"], **said)  # text is text within a thought
    assert answer.ids[:5] == [*b"abcde"]
    assert answer.finish == "stop"
    assert len(answer.ids) > 6
    [answer] = await world.ask("thought, grammar", "", thought=[*b"abcd", END], stop_token_ids=[END])
    assert (answer.content, answer.finish, answer.stop) == ("abcd", "stop", END)


# ---- what ends the output


@pytest.mark.few(16)
@pytest.mark.parametrize("scene", RULED)
@pytest.mark.parametrize("more", [{}, {"min_tokens": 100}, {"ignore_eos": True}, {"n": 2}])
async def test_no_stop_id_cuts_what_a_grammar_asks_for(world, scene, more):
    """Every byte is a stop id, and so is a special token."""
    ids = [*range(256), END]
    for answer in await world.ask(scene, stop_token_ids=ids, **more):
        assert answer.status == 200, answer.error
        assert 4 <= len(answer.letters) <= 8
        assert answer.finish == "stop"


@pytest.mark.few(8)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("scene", RULED)
async def test_a_stream_with_stop_ids_says_what_the_whole_answer_says(world, scene, include):
    fields = {"stop_token_ids": [*b"ade", END], "include_stop_str_in_output": include, "return_token_ids": True}
    for letters in ("abcdefgd", "abcdeEf", "abcd", [*b"abcbb", END]):
        for text in (letters, *([] if isinstance(letters, str) else [letters[:2] + letters[-1:]])):
            [whole] = await world.ask(scene, text, **fields)
            world.wish(scene, text)
            answer = await world.front.chat(stream=True, max_tokens=120, content="ab", **SCENES[scene].body, **fields)
            choices = [chunk["choices"][0] for chunk in events(answer.text)[:-1]]
            assert [id for choice in choices for id in choice.get("token_ids") or ()] == whole.ids
            said = "".join(choice["delta"].get("content") or "" for choice in choices)
            assert said == whole.content
            assert (choices[-1]["finish_reason"], choices[-1].get("stop_reason")) == (whole.finish, whole.stop)


@pytest.mark.few(4)
@pytest.mark.parametrize("scene", RULED)
async def test_an_output_with_stop_ids_is_explained_afterwards_with_the_answers_text(world, scene):
    """A stop id that max_tokens makes the last token is text; one where the grammar may end is none."""
    fields = {"stop_token_ids": [*b"abcdefgh", END], "seed": 7, "temperature": 0.5, "explain": True}
    before = len(world.ids(SCENES[scene].before)) + (len(world.ids("hm</think>")) if "thought" in scene else 0)
    for limit in (before + 2, before + 4, before + 5, 120):
        for include in (False, True):
            more = fields | {"max_tokens": limit, "include_stop_str_in_output": include}
            [answer] = await world.ask(scene, **more)
            asked = {"messages": [{"role": "user", "content": "ab"}], "output_token_ids": answer.ids}
            found = await world.front.http.post("/v1/explain", json=asked | SCENES[scene].body | more)
            assert found.status_code == 200, found.text
            assert found.json()["consistent"], found.json()["verdict"]
            assert found.json()["explanations"] == answer.choice["explanations"]


async def test_a_stop_string_within_tokens_that_are_stop_ids(world):
    for fields in ({"stop": "cd"}, {"stop": "de"}, {"stop": "gh"}):
        [answer] = await world.ask("grammar", stop_token_ids=[ord("c"), D], regex="[a-h]{8}", **fields)
        assert (answer.content, answer.stop) == ("abcdefgh".partition(fields["stop"])[0], fields["stop"])


@pytest.mark.parametrize("scene", RULED)
@pytest.mark.parametrize(
    ("bias", "letters"),
    [
        ({EOS: 100}, "abcd"),  # as soon as the grammar may end
        ({EOS: -100}, None),  # as late as it must
        ({0: 100, ord("z"): 100, END: 100}, "abcdefgh"),  # what the grammar does not allow does not come
        (dict.fromkeys(b"abcdefgh", -100), None),  # what must come comes
    ],
)
async def test_biases_beside_a_grammar(world, scene, bias, letters):
    [answer] = await world.ask(
        scene, logit_bias={str(token): value for token, value in bias.items()}, thinking_token_budget=2
    )
    assert answer.status == 200, answer.error
    assert 4 <= len(answer.letters) <= 8
    if letters is not None and not ("tools" in scene or END in bias):
        assert answer.letters == letters
    if EOS in bias and bias[EOS] < 0 and "tools" not in scene:
        assert len(answer.letters) == 8


@pytest.mark.parametrize("scene", THINKING)
async def test_a_bias_on_the_markers_of_a_thought(world, scene):
    marker = world.ids("</think>")
    [kept] = await world.ask(scene, logit_bias={str(token): -100 for token in marker}, thinking_token_budget=5)
    assert 4 <= len(kept.letters) <= 8, kept
    if len(marker) == 1:
        [closed] = await world.ask(scene, thought="hm" * 9, logit_bias={str(marker[0]): 100})
        assert (closed.thought, 4 <= len(closed.letters) <= 8) == ("", True)


async def test_completions_with_echo_and_best_of(world):
    fields = {"regex": "[a-h]{4,8}", "stop_token_ids": [D], "echo": True, "max_tokens": 20, "n": 2, "best_of": 3}
    answer = await world.front.complete("<|im_start|>x=", temperature=1.0, **fields)
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        text = choice["text"].removeprefix("<|im_start|>").removeprefix("x=")
        assert 4 <= len(text) <= 8
        assert set(text) <= set("abcdefgh")


@pytest.mark.parametrize("scene", RULED)
async def test_bans_that_leave_the_grammar_no_way_end_with_a_reason(world, scene):
    for fields in ({"bad_words": list("abcdefgh")}, {"allowed_token_ids": [*world.ids("m</think>"), EOS]}):
        [answer] = await world.ask(scene, **fields)
        assert (answer.status, "no token is left" in answer.error) == (400, True)
        assert next(iter(fields)) in answer.error
    if scene not in THINKING:
        [answer] = await world.ask(scene, banned_strings=list("abcdefgh"))
        assert (answer.finish, answer.stop) == ("abort", "banned_strings")


@pytest.mark.parametrize("drafts", [False, True])
async def test_a_call_within_a_thought_is_ruled_however_its_marker_is_spelt(vocabulary, drafts):
    """The model writes another call than the one that is asked for, and does not end its thought."""
    async with world_of(*vocabulary, drafts) as world:
        wants = world.ids('hm<tool_call>\n{"name": "g", "arguments": {"b": 1}}\n</tool_call>')
        [answer] = await world.ask("thought, tools", [], thought=wants)
        assert (answer.thought, answer.content, answer.finish) == ("hm", "", "stop")
        assert answer.choice["message"]["tool_calls"][0]["function"]["name"] == "f"
        assert 4 <= len(answer.letters) <= 8
