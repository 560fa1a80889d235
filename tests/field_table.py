"""The table of docs/api/combinations.md: what each field of a request means beside a grammar, a forced call, a thought,
drafts, a beam search and n. tests/api/test_field_table.py tests each cell by a request; docs/write_combinations.py
writes the page.

Every field that a request may have over HTTP has a row here, or is among those that change no token (UNTESTED).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from field_examples import company
from tailrace.api.beam_fields import NOT_WITH_BEAMS
from tailrace.params import FIELDS

if TYPE_CHECKING:
    from api.field_world import Answer, Scene, World

D = ord("d")
EOS, END = 257, 258  # of api.field_world
COLUMNS = ("plain", "grammar", "tools", "thinking", "drafts", "beams", "n")
# the scenes of each column, see api.field_world.SCENES
SCENES_OF = {
    "plain": ("plain",),
    "grammar": ("grammar",),
    "tools": ("tools",),
    "thinking": ("thought", "thought, grammar", "thought, tools"),
    "drafts": ("plain", "grammar", "thought, grammar", "thought, tools"),
    "beams": ("plain",),
    "n": ("plain", "grammar", "thought, grammar"),
}


@dataclass(frozen=True)
class Case:
    """An answer, and what it is an answer to. bare: the answer to the request without the field."""

    world: World
    name: str
    scene: Scene
    bare: Answer
    answer: Answer


Fields = Mapping[str, Any]
# the fields that a beam search refuses, by their names over HTTP
REFUSED_BY_BEAMS = {
    *NOT_WITH_BEAMS,
    *(field.http_name or name for name, field in FIELDS.items() if field.http and not field.beams),
}


@dataclass(frozen=True)
class Row:
    """A field.

    Attributes:
        asked: the fields of the request, or a function of the case (without its answer).
        holds: what must be true of an answer.
        letters, thought: what the model wants to write; peak: how much it wants the letters.
        bare: fields of the request that the answer is compared with.
        refused: scene, or "beams" → how the message of the HTTP 400 begins.
        beams: fields of a beam search; None: as asked. note: for the page; what the field means with a grammar.
    """

    asked: Fields | Callable[[Case], Fields]
    holds: Callable[[Case], bool]
    letters: Any = "abcdefgh"
    thought: str = "hm"
    peak: float = 9.0
    bare: Fields = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    beams: Fields | None = None
    note: str = ""


def refusal(name: str, column: str, scene: str) -> str | None:
    """Return a pattern of the 400's message, if this cell is one."""
    row = ROWS[name]
    if column != "beams":
        return row.refused.get(scene)
    asked = row.beams or ({} if callable(row.asked) else row.asked)
    alone = any(field in REFUSED_BY_BEAMS for field in (name, *asked))
    return "can't be had with use_beam_search" if alone else row.refused.get("beams")


# ---- what holds


def ruled(letters: str) -> bool:
    """Whether the letters fit the grammar of the scenes."""
    return 4 <= len(letters) <= 8 and set(letters) <= set("abcdefgh")


def kept(case: Case) -> bool:
    """What must be true in every scene: a grammar's text fits the grammar, unless something cut it."""
    answer = case.answer
    return not case.scene.ruled or answer.finish == "length" or ruled(answer.letters)


def wrote(plain: str, with_grammar: str = "", *, stop: Any = None) -> Callable[[Case], bool]:
    """These letters come out, others where a grammar rules; the answer ends by `stop`."""

    def holds(case: Case) -> bool:
        wanted = with_grammar if case.scene.ruled and with_grammar else plain
        return case.answer.letters == wanted and case.answer.stop == stop

    return holds


def cut(letters: str, stop: Any) -> Callable[[Case], bool]:
    """The text is cut behind these letters, wherever it is."""
    return lambda case: case.answer.letters == letters and (case.answer.stop, case.answer.finish) == (stop, "stop")


def without(text: str) -> Callable[[Case], bool]:
    """The text does not come, though the model wants it, and the grammar holds."""
    return lambda case: text in case.bare.letters and text not in case.answer.letters and kept(case)


def same(case: Case) -> bool:
    """The tokens are those of the other request."""
    return case.answer.ids == case.bare.ids


def reported(case: Case) -> bool:
    """What is reported differs, the tokens do not."""
    return same(case) and case.answer.choice["logprobs"] != case.bare.choice["logprobs"]


def changed(case: Case) -> bool:
    """The probabilities that tokens are drawn from differ, and the grammar holds."""
    return case.answer.choice["logprobs"] != case.bare.choice["logprobs"] and kept(case)


def listed(what: str) -> Callable[[Case], bool]:
    """The choice has an entry of this name for every token."""
    return lambda case: len(case.answer.choice[what]) == len(case.answer.ids)


def in_answer(what: str) -> Callable[[Case], bool]:
    """The answer has this report, and the tokens are the same."""
    return lambda case: same(case) and case.answer.whole.get(what) is not None


# ---- fields of requests


def forced(case: Case) -> Fields:
    """The beginning of the text that the scene allows, with other letters, up to the third."""
    thought = "xy</think>" if case.scene.thinks else ""
    return {"forced_token_ids": case.world.ids(f"{thought}{case.scene.before}hg")}


def spelling(case: Case) -> Fields:
    """The tokens of all that the scene asks for, but "d"."""
    text = f"hm</think>{case.scene.before}abcefgh{case.scene.after}"
    return {"allowed_token_ids": sorted({EOS, *case.world.ids(text)})}


def longer(case: Case) -> Fields:
    """Two tokens more than the model wants."""
    return {"min_tokens": len(case.bare.ids) + 2}


STOPS = "ends the output where the grammar may end; elsewhere it is text, or is not drawn if it is no text"
SCORED = {"logprobs": True, "top_logprobs": 5}
SHOWN = {**SCORED, "logprobs_mode": "processed", "temperature": 1.0, "seed": 3}

ALONE = ("plain", "grammar", "tools", "thought", "thought, grammar", "thought, tools")

ROWS: dict[str, Row] = {
    # limits
    "max_tokens": Row(
        {"max_tokens": 3},
        lambda case: (case.answer.finish, len(case.answer.ids)) == ("length", 3),
        note="cuts; `close_in_time` closes the text before",
    ),
    "max_completion_tokens": Row(
        {"max_completion_tokens": 3, "max_tokens": None},
        lambda case: (case.answer.finish, len(case.answer.ids)) == ("length", 3),
        note="as `max_tokens`",
    ),
    "min_tokens": Row(
        longer,
        lambda case: kept(case) and (len(case.answer.ids) > len(case.bare.ids) + 2 or case.answer.call is not None),
        letters="abcd",
        note="EOS and stop ids do not end the output before; if the grammar allows only the end, the output ends",
    ),
    "ignore_eos": Row(
        {"ignore_eos": True, "max_tokens": 100},
        lambda case: (
            len(case.answer.letters) > 5 or (case.answer.call is not None and case.answer.finish == "stop")
            if case.scene.ruled
            else (case.answer.finish, len(case.answer.ids)) == ("length", 100)
        ),
        letters="abcde",
        note="EOS does not end the output while the grammar allows more text; then the output ends",
    ),
    # stops
    "stop": Row({"stop": "ef"}, cut("abcd", "ef"), note="cuts the text"),
    "stop_regex": Row({"stop_regex": "e[f-h]"}, cut("abcd", "e[f-h]"), note="cuts the text"),
    "stop_token_ids": Row(
        {"stop_token_ids": [D, END]},
        lambda case: (
            (case.answer.letters, case.answer.stop) == ("abc", D)
            if not case.scene.ruled
            else (case.answer.letters, case.answer.stop) == ("abcdefg", D)
            if case.answer.call is None
            else (case.answer.letters, case.answer.stop, case.answer.finish) == ("abcdefgd", None, "stop")
        ),
        letters="abcdefgd",
        note=STOPS,
    ),
    "include_stop_str_in_output": Row(
        {"stop": "ef", "include_stop_str_in_output": True}, cut("abcdef", "ef"), note="keeps the stop"
    ),
    "stop_scope": Row(
        {"stop": ["m", "ef"], "stop_scope": "content"},
        lambda case: (
            case.answer.letters == ("abcdefgh" if case.answer.call is not None else "abcd")
            and case.answer.thought == case.bare.thought
        ),
        note="no stop is looked for in thoughts and calls",
    ),
    "repetition_detection": Row(
        {"repetition_detection": {"max_pattern_size": 1, "min_count": 3}},
        cut("abbb", "repetition"),
        letters="abbbbbbb",
        note="cuts the text",
    ),
    "thinking_token_budget": Row(
        {"thinking_token_budget": 3},
        lambda case: case.answer.thought == ("hmh" if case.scene.thinks else "") and kept(case),
        thought="hmhmhmhm",
        note="closes the thought; the grammar begins behind it",
    ),
    "reasoning_budget_message": Row(
        {"thinking_token_budget": 3, "reasoning_budget_message": "xyz"},
        lambda case: case.answer.thought == ("hmhxyz" if case.scene.thinks else "") and kept(case),
        thought="hmhmhmhm",
        note="ends the thought that a budget closes",
    ),
    "reasoning_control": Row({"reasoning_control": True}, same, note="a request may end the thought"),
    # bans and biases
    "bad_words": Row({"bad_words": ["d"]}, without("d"), note="where nothing else may come, HTTP 400 `no_token_left`"),
    "banned_strings": Row(
        {"banned_strings": ["cd"]}, without("cd"), note='where nothing else may come, `finish_reason` "abort"'
    ),
    "banned_ignore_case": Row({"banned_strings": ["CD"], "banned_ignore_case": True}, without("cd")),
    "banned_regex": Row({"banned_regex": "c[de]"}, without("cd"), note="as `banned_strings`"),
    "allowed_token_ids": Row(spelling, without("d"), note="must have the tokens that the grammar needs"),
    "logit_bias": Row(
        {"logit_bias": {str(D): -100}}, without("d"), note="a token that the grammar does not allow is not drawn"
    ),
    "sequence_bias": Row({"sequence_bias": [[[ord("c"), D], -100]]}, without("cd"), note="as `logit_bias`"),
    # what is drawn
    "forced_token_ids": Row(
        forced,
        lambda case: (
            case.answer.letters.startswith("hg")
            and case.answer.thought == ("xy" if case.scene.thinks else "")
            and kept(case)
        ),
        note="may end a thought; HTTP 400 where the grammar does not allow them",
    ),
    "seed": Row({"temperature": 1.0, "seed": 7}, same, bare={"temperature": 1.0, "seed": 7}),
    "n": Row({"n": 2}, lambda case: len(case.answer.whole["choices"]) == 2 and same(case)),
    "guidance_scale": Row({"guidance_scale": 2.0}, without("d"), note="beside the masks of the grammar"),
    "negative_prompt": Row({"guidance_scale": 2.0, "negative_prompt": "NEGATIVE"}, without("d")),
    "cfg_scale": Row({"cfg_scale": 2.0, "negative_prompt": "NEGATIVE"}, without("d"), note="as `guidance_scale`"),
    "speculation": Row({"speculation": {"max_drafts": 2}}, same),
    "prediction": Row({"prediction": {"type": "content", "content": "abcxdefgh"}}, same),
    "preset": Row({"preset": "greedy", "temperature": None}, same),
    "exponential_decay_length_penalty": Row(
        {**SHOWN, "exponential_decay_length_penalty": [2, 1.5]},
        lambda case: same(case) if case.answer.call is not None else changed(case),
        bare=SHOWN,
        note="EOS grows where the grammar may end",
    ),
    "processors": Row(
        {"processors": {"field-table": {"token": D}}}, without("d"), note="must leave a token that the grammar allows"
    ),
    # what is reported
    "logprobs": Row(
        {"logprobs": True},
        lambda case: same(case) and len(case.answer.choice["logprobs"]["content"]) == len(case.answer.ids),
    ),
    "top_logprobs": Row(
        {"logprobs": True, "top_logprobs": 2},
        lambda case: (
            same(case) and all(len(one["top_logprobs"]) == 2 for one in case.answer.choice["logprobs"]["content"])
        ),
    ),
    "logprobs_mode": Row(
        {**SCORED, "logprobs_mode": "processed", "min_p": 0.1, "temperature": 1.0, "seed": 3},
        reported,
        bare={**SCORED, "min_p": 0.1, "temperature": 1.0, "seed": 3},
        beams={"logprobs_mode": "processed"},
        note='"processed" is what is drawn from, masks included',
    ),
    "logprob_token_ids": Row({"logprobs": True, "logprob_token_ids": [D, EOS]}, reported, bare={"logprobs": True}),
    "report_entropy": Row({"logprobs": True, "report_entropy": True}, reported, bare={"logprobs": True}),
    "return_sampling_mask": Row(
        {"return_sampling_mask": True, "min_p": 0.1, "temperature": 1.0, "seed": 3},
        listed("sampling_mask"),
        note="holds what the grammar, too, allows",
    ),
    "explain": Row({"explain": {"top": 2}}, listed("explanations")),
    "prompt_logprobs": Row({"prompt_logprobs": 1}, in_answer("prompt_logprobs")),
    "prompt_logprob_start": Row({"prompt_logprobs": 1, "prompt_logprob_start": 2}, in_answer("prompt_logprobs")),
    "prompt_logprob_token_ids": Row({"prompt_logprob_token_ids": [[1, 2]]}, in_answer("prompt_token_id_logprobs")),
    "prompt_logprobs_temperature": Row(
        {"prompt_logprobs": 1, "prompt_logprobs_temperature": 2.0}, in_answer("prompt_logprobs")
    ),
    "return_sampling_params": Row({"return_sampling_params": True}, in_answer("sampling_params")),
    # text
    "skip_special_tokens": Row(
        {"skip_special_tokens": False},
        lambda case: kept(case) and (case.scene.ruled or case.answer.letters == "abcd<|end|>e"),
        letters=[*b"abcd", END, *b"e"],
        note="a grammar allows no special token in its text",
    ),
    "separate_reasoning": Row(
        {"separate_reasoning": False},
        lambda case: same(case) and case.answer.thought == "",
        note="the thought stays in the content, before the text of the grammar",
    ),
    "include_reasoning": Row(
        {"include_reasoning": False},
        lambda case: same(case) and case.answer.thought == "",
        note="the thought is left out of the answer",
    ),
    # only of a beam search
    "best_of": Row({"best_of": 2}, same, refused=dict.fromkeys(ALONE, "best_of")),
    "length_penalty": Row({"length_penalty": 2.0}, same, refused=dict.fromkeys(ALONE, "length_penalty")),
    "early_stopping": Row({"early_stopping": True}, same, refused=dict.fromkeys(ALONE, "early_stopping")),
    "structured_outputs": Row(
        lambda case: {"structured_outputs": {"close_in_time": True}, "max_tokens": len(case.bare.ids) - 2},
        lambda case: ruled(case.answer.letters) and len(case.answer.ids) < len(case.bare.ids) - 1,
        refused={
            **dict.fromkeys(("plain", "thought"), "structured_outputs: options without a constraint have no effect"),
            "beams": "structured_outputs",
        },
        note="`close_in_time` ends the text within `max_tokens`",
    ),
}
# what fields are compared with, beside the fields that they need
BESIDE: dict[str, Fields] = {
    "normalize_logits": {"repetition_penalty": 1.5},
    "sampler_order": {"top_p": 0.7, "temperature": 2.0},
}
# values of requests that are others, or with which more changes
VALUES: dict[str, Any] = {
    "dry_sequence_breakers": ["b"],
    "mirostat_tau": 0.5,
    "min_k_tau": 100.0,
}
# what a grammar of calls can't do without: a place where the text must end, or n-grams that come twice in any call
N_GRAMS = dict.fromkeys(("tools", "thought, tools"), "no token is left")
REFUSED = {"no_repeat_ngram_size": N_GRAMS, "encoder_no_repeat_ngram_size": N_GRAMS}


def drawn(name: str) -> Row:
    """Return the row of a field that changes the probabilities: they must change."""
    asked = msgspec.to_builtins(company(name)) | BESIDE.get(name, {})
    asked |= {name: VALUES[name]} if name in VALUES else {}
    bare = {key: value for key, value in asked.items() if key != name}
    beams = {name: asked[name]} if name in BESIDE else asked
    more: dict[str, Any] = {"beams": beams, "refused": REFUSED.get(name, {})}
    more["peak"] = 9.0 if FIELDS[name].kind == "edit" else 5.0
    return Row(SHOWN | asked, changed, letters="abcabcab", bare=SHOWN | bare, **more)


ROWS |= {
    name: drawn(name)
    for name, field in FIELDS.items()
    if (field.kind in ("edit", "reshape", "truncation") or name == "sampler_order") and field.http and name not in ROWS
}
# the other fields of requests: what to write with, how it goes out, the columns themselves
UNTESTED = frozenset(
    (
        *("model", "messages", "prompt", "echo", "add_special_tokens", "add_generation_prompt", "documents"),
        *("continue_final_message", "reasoning_effort", "chat_template_kwargs", "request_id", "priority"),
        *("enable_thinking", "thinking", "reasoning", "verbosity", "return_tokens_as_token_ids"),
        *("stream", "stream_options", "stream_interval", "stream_interval_ms", "deadline_s", "return_token_ids"),
        *("truncation_length", "num_ctx", "cache_salt", "timings_per_token", "return_progress", "resumable"),
        *("tools", "tool_choice", "parallel_tool_calls", "use_beam_search", "guided_decoding_backend"),
        *("response_format", "structural_tag", "guided_json", "guided_json_object", "guided_regex", "guided_choice"),
        *("guided_grammar", "grammar", "json_schema", "regex", "ebnf"),
    )
)
