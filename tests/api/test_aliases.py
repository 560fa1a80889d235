"""Fields under the names of other servers, and whole panels of user interfaces."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from api.harness import EOS, VOCAB, LocalClient, front_of, saying
from api.panels import CHAT_PANELS, COMPLETION_PANELS
from api.peer_fields import PEER_FIELDS
from api.submitted import asked, post, refusal
from field_examples import company, example
from tailrace.api.aliases import ALIASES, CONVERTED, RENAMED
from tailrace.api.native_request import FIELDS as NATIVE_FIELDS
from tailrace.api.routes import chat, completions, generate, messages, responses
from tailrace.api.schema.generate import RENAMED as OF_SGLANG
from tailrace.api.schema.peers import HARMLESS, NOT_OFFERED
from tailrace.params import FIELDS, SamplingParams
from tailrace.request.method_order import REFINEMENT_ORDER

READERS = {
    "chat": chat.READER,
    "completion": completions.READER,
    "response": responses.READER,
    "message": messages.READER,
    "native": generate.READER,
}


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(saying(b"ab")), tokenizer) as front:
        yield front


async def params(front, kind: str = "text", **fields: Any) -> SamplingParams:
    return (await asked(front, kind, **fields))[0]


# ---- no field of a peer is ignored without a word


@pytest.mark.parametrize(("server", "endpoint"), PEER_FIELDS)
def test_every_field_of_a_peer_is_served_renamed_refused_or_harmless(server, endpoint):
    """`thinking` is a field of messages; a chat has it through the chat template."""
    names = set(PEER_FIELDS[server, endpoint].split())
    if endpoint == "sampling_params":
        known = NATIVE_FIELDS | OF_SGLANG.keys() | ALIASES | HARMLESS | NOT_OFFERED.keys()
    else:
        reader = READERS[endpoint]
        known = reader._known | reader._refused.keys() | (ALIASES if reader._aliased else set())
    assert names - known <= {"thinking"}


def test_no_name_has_two_fates():
    assert not HARMLESS & NOT_OFFERED.keys()
    assert not ALIASES & (HARMLESS | NOT_OFFERED.keys())
    assert not ALIASES & FIELDS.keys()


VALUES: list[Any] = [None, False, True, "", "x", 0, 1, 7, [], ["x"], {}, {"x": 1}]


@pytest.mark.parametrize("name", sorted(NOT_OFFERED))
async def test_what_would_change_the_answer_is_refused_unless_it_asks_for_nothing(front, name):
    neutral = NOT_OFFERED[name]
    for value in neutral:
        assert (await post(front, "text", max_tokens=1, **{name: value})).status_code == 200, value
    wanted = next(value for value in VALUES if value not in neutral)
    error = await refusal(front, "text", **{name: wanted})
    assert error["param"] == name
    assert error["message"].startswith(f"{name}: not supported")


REPORTED = {
    "extra_key": "secret",
    "stream_reasoning": False,
    "watermarking": True,
    "reasoning_budget_message": "enough",
    "detokenize": False,
}


@pytest.mark.parametrize("kind", ["chat", "text", "responses"])
@pytest.mark.parametrize("name", REPORTED)
async def test_a_field_that_does_not_act_yet_is_refused(front, kind, name):
    assert (await refusal(front, kind, **{name: REPORTED[name]}))["param"] == name
    for value in NOT_OFFERED[name]:
        assert (await post(front, kind, **{name: value})).status_code == 200


# ---- names of the same meaning


@pytest.mark.parametrize(
    "alias", sorted(alias for alias, name in RENAMED.items() if name in FIELDS.keys() - {"grammar"})
)
async def test_another_name_is_the_field(front, alias):
    name = RENAMED[alias]
    value = msgspec.to_builtins(example(FIELDS[name]))
    beside = {of: msgspec.to_builtins(v) for of, v in company(name).items() if of != name}
    wanted = await params(front, **beside, **{name: value})
    assert await params(front, **beside, **{alias: value}) == wanted
    assert await params(front, **beside, **{alias: value, name: value}) == wanted
    assert await params(front, **beside, **{alias: value, name: None}) == wanted
    assert await params(front, **beside, **{alias: None, name: value}) == wanted
    other = (value + 1 if FIELDS[name].range.high > 1 else 0.75) if FIELDS[name].range else ["other"]
    if name == "mirostat":
        other = 1
    if FIELDS[name].type is bool:
        other = not value
    error = await refusal(front, "text", **beside, **{alias: value, name: other})
    assert error["param"] == alias
    assert "are two names of one field" in error["message"]


async def test_errors_name_what_the_request_has(front):
    error = await refusal(front, "text", repeat_last_n=64)
    assert (error["param"], "repeat_last_n has no effect without" in error["message"]) == ("repeat_last_n", True)
    error = await refusal(front, "text", typ_p=2)
    assert (error["param"], error["message"]) == ("typ_p", "typ_p must be a number in [0, 1], got 2.0")
    error = await refusal(front, "text", n_predict="8")
    assert (error["param"], error["message"][:9]) == ("n_predict", "n_predict")
    error = await refusal(front, "text", n_predict=10_000)
    assert (error["param"], "n_predict must be an integer in [1, " in error["message"]) == ("n_predict", True)
    error = await refusal(front, "text", samplers=["top_k", "greedy"])
    assert (error["param"], "samplers must hold names out of" in error["message"]) == ("samplers", True)
    for name in ("samplers", "sampler_order", "sampler_priority"):
        message = (await refusal(front, "text", **{name: ["top_k", "greedy", "no"]}))["message"]
        names = message.removeprefix(f"{name} must hold names out of ").removesuffix(', got "greedy"').split(", ")
        assert {"penalties", "dry", "top_k", "temperature", "xtc", "adaptive_p"} <= {*names}
        for each in names:
            assert (await asked(front, "text", **{name: [each]}))[0] is not None
    error = await refusal(front, "responses", n_predict=10_000)
    assert error["param"] == "n_predict"
    error = await refusal(front, "responses", n_probs=3)
    assert (error["param"], error["message"]) == ("n_probs", "n_probs: not supported here; leave it out")


@pytest.mark.parametrize("fields", [{"n_predict": 8, "num_predict": 9}, {"repeat_penalty": 1.1, "rep_pen": 1.2}])
async def test_two_other_names_that_differ_are_refused(front, fields):
    first, second = fields
    error = await refusal(front, "text", **fields)
    assert error["message"].startswith(f"{second} ({fields[second]}) and {first} ({fields[first]}) are two names")


async def test_a_limit_of_minus_one_is_none(front):
    for kind, names in (("text", ["n_predict", "max_tokens"]), ("chat", ["n_predict", "max_completion_tokens"])):
        none = (await params(front, kind)).max_tokens
        for name in names:
            assert (await params(front, kind, **{name: -1})).max_tokens == none
            assert (await refusal(front, kind, **{name: -2}))["param"] == name


async def test_names_work_in_every_endpoint(front):
    assert (await params(front, "responses", n_predict=3, repeat_penalty=1.5)).max_tokens == 3
    assert (await params(front, "chat", n_predict=3, repeat_penalty=1.5)).repetition_penalty == 1.5
    native = {"n_predict": 3, "repeat_penalty": 1.5, "samplers": ["top_k"], "return_sampling_params": True}
    del native["return_sampling_params"]
    answer = await front.http.post("/generate", json={"text": "x=", "sampling_params": native})
    assert answer.json()["meta_info"]["completion_tokens"] == 3
    both = {"text": "x=", "sampling_params": {"n_predict": 3, "max_new_tokens": 4}}
    answer = await front.http.post("/generate", json=both)
    assert (answer.status_code, "two names of one field" in answer.text) == (400, True)


# ---- names and forms that are translated


BUDGETS = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_budget", "reasoning_budget")
BUDGETS += ("max_reasoning_tokens",)
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("text", {"n_probs": 3}, {"logprobs": 3}),
    ("text", {"n_probs": 0}, {}),
    ("text", {"logprobs": False}, {}),
    ("chat", {"n_probs": 3}, {"logprobs": True, "top_logprobs": 3}),
    ("text", {"logit_bias": [[97, 2.5], ["98", -1]]}, {"logit_bias": {"97": 2.5, "98": -1}}),
    ("text", {"logit_bias": [[97, 1.0], [97, 1.5]]}, {"logit_bias": {"97": 2.5}}),
    ("text", {"logit_bias": [["no", 1.0]]}, {"logit_bias": {"no": 1.0}}),
    ("text", {"logit_bias": []}, {}),
    ("text", {"logit_bias": [[97, False]]}, {"sequence_bias": [[[97], -10000.0]]}),
    ("text", {"logit_bias": {"97": False, "no": False}}, {"sequence_bias": [[[97], -10000.0], ["no", -10000.0]]}),
    (
        "text",
        {"logit_bias": [[97, False]], "sequence_bias": [["no", 1]]},
        {"sequence_bias": [["no", 1], [[97], -10000.0]]},
    ),
    (
        "text",
        {"dry_multiplier": 0.8, "dry_sequence_breakers": '["a"]'},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": ["a"]},
    ),
    (
        "text",
        {"dry_multiplier": 0.8, "dry_sequence_breakers": '"a", "b"'},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": ["a", "b"]},
    ),
    ("text", {"dry_multiplier": 0.8, "dry_sequence_breakers": ""}, {"dry_multiplier": 0.8}),
    (
        "text",
        {"dynamic_temperature": True, "dynatemp_low": 0.5, "dynatemp_high": 1.5},
        {"temperature": 1.0, "dynatemp_range": 0.5},
    ),
    ("text", {"dynamic_temperature": False, "dynatemp_low": 0.5, "dynatemp_high": 1.5}, {}),
    ("text", {"do_sample": False}, {"temperature": 0}),
    ("text", {"do_sample": True}, {}),
    (
        "text",
        {"repetition_penalty": 1.2, "repetition_penalty_range": 64},
        {"repetition_penalty": 1.2, "penalty_last_n": 64},
    ),
    ("text", {"repetition_penalty": 1.2, "repetition_penalty_range": 0}, {"repetition_penalty": 1.2}),
    ("text", {"rep_pen": 1, "rep_pen_slope": 0.7}, {}),
    ("text", {"repetition_detection": {"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 3}}, {}),
    ("text", {"repetition_detection": {}}, {}),
    (
        "text",
        {"repetition_detection": {"max_pattern_size": 4, "min_pattern_size": 0, "min_count": 3}},
        {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}},
    ),
    ("text", {"render_special": True}, {"skip_special_tokens": False}),
    ("text", {"add_bos_token": False}, {"add_special_tokens": False}),
    ("chat", {"reasoning_format": "none"}, {"separate_reasoning": False}),
    ("chat", {"reasoning_format": "auto"}, {}),
    ("text", {"reasoning_format": "none"}, {}),
    *(("chat", {name: -1}, {}) for name in BUDGETS),
    ("text", {"think": False}, {}),
    ("text", {"enable_reasoning": False}, {}),
    ("text", {"sampler_order": ["typ_p", "temp"]}, {"sampler_order": ["typical_p", "temperature"]}),
    (
        "text",
        {"sampler_order": [6, 0, 1, 3, 4, 2, 5], "rep_pen": 1.1},
        {
            "sampler_order": ["top_k", "top_a", "tfs_z", "typical_p", "top_p", "temperature"],
            "repetition_penalty": 1.1,
        },
    ),
    ("text", {"sampler_priority": "dry\ntop_k\nquadratic_sampling"}, {"sampler_order": ["top_k", "smoothing"]}),
    ("text", {"samplers": "kt", "top_k": 3}, {"sampler_order": ["top_k", "temperature"], "top_k": 3}),
    ("text", {"samplers": "top_k;temperature", "top_k": 3}, {"sampler_order": ["top_k", "temperature"], "top_k": 3}),
    # what llama.cpp's list leaves out is off
    (
        "text",
        {"samplers": ["top_k"], "top_k": 3, "top_p": 0.5, "temperature": 0.3},
        {"sampler_order": ["top_k"], "top_k": 3},
    ),
    (
        "text",
        {"samplers": ["temperature"], "repeat_penalty": 1.5, "repeat_last_n": 64},
        {"sampler_order": ["temperature"]},
    ),
    (
        "text",
        {"samplers": ["penalties", "temperature"], "repeat_penalty": 1.5, "dry_multiplier": 1, "dry_base": 2},
        {"sampler_order": ["temperature"], "repetition_penalty": 1.5},
    ),
    ("text", {"samplers": ["temperature"], "mirostat": 2}, {"sampler_order": ["temperature"], "mirostat": 2}),
    ("text", {"samplers": []}, {}),
    (
        "text",
        {
            "samplers": [
                "penalties",
                "dry",
                "top_n_sigma",
                "top_k",
                "typ_p",
                "tfs_z",
                "typical_p",
                "top_p",
                "min_p",
                "xtc",
                "temperature",
            ]
        },
        {"sampler_order": ["top_n_sigma", "top_k", "typical_p", "tfs_z", "top_p", "min_p", "xtc", "temperature"]},
    ),
    ("text", {"samplers": "ktk", "top_k": 3}, {"sampler_order": ["top_k", "temperature"], "top_k": 3}),
    (
        "text",
        {"samplers": ["penalties", "top_k", "penalties"], "rep_pen": 2},
        {"sampler_order": ["top_k"], "repetition_penalty": 2},
    ),
    ("text", {"sampler_order": [6, 6]}, {}),
    ("text", {"sampler_order": ["top_p", "typ", "top_p", "typical"]}, {"sampler_order": ["top_p", "typical_p"]}),
    ("text", {"sampler_priority": "top_p\ntop-p\nmin_p"}, {"sampler_order": ["top_p", "min_p"]}),
]


@pytest.mark.parametrize(("kind", "theirs", "ours"), CASES)
async def test_forms_of_other_servers_are_ours(front, kind, theirs, ours):
    assert await params(front, kind, **theirs) == await params(front, kind, **ours)


async def test_temperature_last_puts_temperatures_behind_all_that_cuts(front):
    order = (await params(front, temperature_last=True)).sampler_order
    assert order == tuple(
        entry.name
        for entry in REFINEMENT_ORDER
        if entry.name not in ("temperature", "dynatemp", "smoothing", "adaptive_p", "synthid")
    )
    order = (
        await params(front, temperature_last=True, sampler_priority=["temperature", "min_p", "top_k"])
    ).sampler_order
    assert order[:2] == ("min_p", "top_k")
    assert "temperature" not in order
    assert (await params(front, temperature_last=False)).sampler_order == ()


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("text", {"samplers": ["top_k", "penalties"], "repeat_penalty": 1.5}, "samplers"),
    ("text", {"samplers": ["dry", "penalties"], "repeat_penalty": 1.5, "dry_multiplier": 1}, "samplers"),
    ("text", {"samplers": 5}, "samplers"),
    ("text", {"samplers": [7]}, "samplers"),
    ("text", {"samplers": "kt", "sampler_order": ["temperature"]}, "samplers"),
    ("text", {"samplers": "kz"}, "samplers"),
    ("text", {"sampler_order": [0, 6], "rep_pen": 1.2}, "sampler_order"),
    ("text", {"sampler_order": [9]}, "sampler_order"),
    ("text", {"sampler_priority": ["top_k", "dry"], "dry_multiplier": 1}, "sampler_priority"),
    ("text", {"n_probs": -1}, "n_probs"),
    ("text", {"n_probs": True}, "n_probs"),
    ("text", {"n_probs": 3, "logprobs": 2}, "n_probs"),
    ("text", {"logit_bias": [[97]]}, "logit_bias"),
    ("text", {"logit_bias": [[97, True]]}, "logit_bias"),
    ("text", {"logit_bias": {"97": True, "98": False}}, "logit_bias"),
    ("text", {"logit_bias": [[VOCAB, False]]}, "logit_bias"),
    ("text", {"logit_bias": [[97, 101]]}, "logit_bias"),
    ("text", {"dry_sequence_breakers": "[1]", "dry_multiplier": 1}, "dry_sequence_breakers"),
    ("text", {"dry_sequence_breakers": '["a"', "dry_multiplier": 1}, "dry_sequence_breakers"),
    ("text", {"dynamic_temperature": True}, "dynamic_temperature"),
    ("text", {"dynamic_temperature": True, "dynatemp_low": 2, "dynatemp_high": 1}, "dynamic_temperature"),
    ("text", {"do_sample": False, "temperature": 0.5}, "do_sample"),
    ("text", {"rep_pen": 1.1, "rep_pen_slope": 0.7}, "rep_pen_slope"),
    ("chat", {"add_bos_token": False}, "add_bos_token"),
    ("chat", {"reasoning_format": "deepseek-legacy"}, "reasoning_format"),
    *((kind, {name: 5}, name) for name in BUDGETS for kind in ("text", "chat")),  # no format of thoughts is known
    ("chat", {"thinking_budget": 5, "thinking_token_budget": 6}, "thinking_budget"),
    ("chat", {"think": False, "enable_thinking": True}, "think"),
    ("chat", {"think": "huge"}, "think"),
    ("chat", {"enable_reasoning": 3}, "enable_reasoning"),
    ("text", {"think": True}, "think"),
    ("responses", {"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning_effort"),
    ("responses", {"verbosity": "low", "text": {"verbosity": "high"}}, "verbosity"),
    ("responses", {"verbosity": "loud"}, "verbosity"),
    ("responses", {"chat_template": "x"}, "chat_template"),
    ("text", {"min_keep": 5}, "min_keep"),
    ("text", {"repetition_detection": {"min_count": 3}}, "repetition_detection.max_pattern_size"),
    ("text", {"repetition_detection": {"max_pattern_size": 4, "min_count": 0}}, "repetition_detection.min_count"),
    ("text", {"system": "Be brief."}, "system"),
]


@pytest.mark.parametrize(("kind", "fields", "param"), BAD)
async def test_what_cant_be_translated_is_refused(front, kind, fields, param):
    answer = await post(front, kind, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].split("[")[0] == param


async def test_a_ban_by_bias_is_never_broken(tokenizer):
    async with front_of(LocalClient(saying(b"ab", then=98)), tokenizer) as front:
        answer = await front.complete(max_tokens=20, logit_bias=[[97, False], [98, False], [EOS, False]])
        assert not set(answer.json()["choices"][0]["text"]) & {"a", "b"}


def test_every_conversion_has_a_case():
    given = {name for _, fields, _ in CASES for name in fields} | {name for _, fields, _ in BAD for name in fields}
    assert CONVERTED.keys() - given == {"temperature_last"}


# ---- panels


@pytest.mark.parametrize("panel", COMPLETION_PANELS)
async def test_a_panel_is_accepted_in_completions(front, panel):
    answer = await post(front, "text", **COMPLETION_PANELS[panel])
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("panel", CHAT_PANELS)
async def test_a_panel_is_accepted_in_chats(front, panel):
    answer = await post(front, "chat", **CHAT_PANELS[panel])
    assert answer.status_code == 200, answer.text


async def test_a_panel_means_what_it_says(front):
    got = await params(front, **COMPLETION_PANELS["koboldcpp lite"])
    assert (got.repetition_penalty, got.penalty_last_n, got.top_k, got.seed) == (1.07, 360, 100, None)
    assert got.sampler_order[:2] == ("top_k", "top_a")
    got = await params(front, **COMPLETION_PANELS["SillyTavern to llama.cpp"])
    assert (got.repetition_penalty, got.penalty_last_n, got.penalised) == (1.2, 0, False)  # its window is empty
    assert (got.max_tokens, got.stop, got.seed) == (8, ("\nUser:",), None)
    got = await params(front, "chat", **CHAT_PANELS["llama-server's page"])
    assert (got.temperature, got.top_k, got.top_p, got.min_p, got.penalty_last_n) == (0.8, 40, 0.95, 0.05, -1)


TRUNCATING = {"top_p": 1, "top_k": 0, "min_p": 0}


@pytest.mark.parametrize("name", ["SillyTavern to llama.cpp", "text-generation-webui to llama.cpp"])
async def test_a_panel_with_mirostat_is_answered_once_what_mirostat_replaces_is_off(front, name):
    panel = COMPLETION_PANELS[name]
    on = {"mirostat": 2, "mirostat_tau": 4} | ({"mirostat_mode": 2} if "mirostat_mode" in panel else {})
    error = await refusal(front, "text", **panel | on)
    assert error["param"] == "top_k"
    assert error["message"] == (
        "top_k and top_p: each has no effect with mirostat, which replaces it; leave them out (or 0 and 1)"
    )
    got = await params(front, **panel | on | TRUNCATING)
    assert (got.mirostat, got.mirostat_tau, got.top_k, got.top_p) == (2, 4, 0, 1)


async def test_llama_servers_page_with_mirostat(front):
    """Its samplers and their defaults, with the field for further parameters set to mirostat."""
    error = await refusal(front, "chat", **CHAT_PANELS["llama-server's page"], mirostat=1)
    assert error["message"].startswith("top_k, top_p and min_p: each has no effect with mirostat, which replaces it;")
    assert (await params(front, "chat", **CHAT_PANELS["llama-server's page"] | TRUNCATING, mirostat=1)).mirostat == 1


@pytest.mark.parametrize(
    "off", [{"rep_pen": 1}, {"rep_pen": 1.0, "rep_pen_range": 0}, {"rep_pen": 0.9}, {"rep_pen_range": 0}]
)
async def test_koboldcpps_slope_needs_a_penalty(front, off):
    """0.7 is its panel's own slope."""
    panel = COMPLETION_PANELS["koboldcpp lite"] | {"rep_pen_slope": 0.7}
    error = await refusal(front, "text", **panel)
    assert (error["param"], error["message"]) == (
        "rep_pen_slope",
        "rep_pen_slope: not supported beside a repetition penalty; set it to 1 or leave it out",
    )
    await params(front, **panel | off)


async def test_a_panels_cutoffs_in_other_units_are_explained(front):
    panel = COMPLETION_PANELS["SillyTavern to text-generation-webui"]
    error = await refusal(front, "text", **panel | {"epsilon_cutoff": 3})
    assert error["message"].endswith("got 3.0: a probability, not text-generation-webui's units of 0.0001")


async def test_what_if_takes_the_names_too(front):
    fields = {"prompt": "x=", "output_token_ids": [97], "seed": 3}
    answer = await front.http.post("/v1/explain", json=fields | {"what_if": {"typ_p": 0.5, "samplers": ["typ_p"]}})
    assert answer.status_code == 200, answer.text
    answer = await front.http.post("/v1/explain", json=fields | {"repeat_penalty": 1.5, "what_if": {"n_probs": 3}})
    assert answer.status_code == 400


@pytest.mark.parametrize("samplers", [[1], [True], [None], [["top_k"]], ["top_k", "greedy"], "kq", "top_k;greedy", 3])
@pytest.mark.parametrize("beside", [{}, {"sampler_order": None}])
async def test_a_wrong_list_of_samplers_is_named(front, samplers, beside):
    error = await refusal(front, "text", samplers=samplers, **beside)
    assert (error["param"], error["message"].startswith("samplers must ")) == ("samplers", True), error


@pytest.mark.parametrize(("seed", "other"), [(1234, -1), (-1, 1234), (1234, 1234)])
async def test_a_seed_of_none_is_no_second_seed(front, seed, other):
    assert (await params(front, seed=seed, sampler_seed=other)).seed == 1234
    assert (await params(front, seed=-1, sampler_seed=-1)).seed is None


@pytest.mark.parametrize("kind", ["chat", "text", "responses"])
async def test_the_largest_seed_of_llama_cpp_is_a_seed(front, kind):
    assert (await params(front, kind, seed=4294967295)).seed == 4294967295
    assert (await params(front, kind, seed=-1)).seed is None


MENTIONING = [
    ({"n_cmpl": 3, "best_of": 2}, "best_of must be at least n_cmpl (3)"),
    ({"n_probs": 2, "echo": True, "best_of": 2}, "best_of can't be had with echo and n_probs together"),
    ({"mirostat_mode": 2, "typ_p": 0.5, "top_k": 3}, "has no effect with mirostat_mode"),
    ({"num_predict": 8, "truncation_length": 9, "prompt": "a" * 9}, "num_predict is 8"),
    ({"grammar_string": 'root ::= "a"', "guided_regex": "a"}, "grammar_string"),
]


@pytest.mark.parametrize(("fields", "words"), MENTIONING)
async def test_errors_mention_other_fields_as_the_request_has_them(front, fields, words):
    """Errors carry what they mention; the same words elsewhere in a message stay (see RequestError.rename_fields)."""
    error = await refusal(front, "text", **fields)
    assert words in error["message"]
