"""Where templates and special tokens of a folder are found. The oracle is transformers' AutoTokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from api.harness import make_tokenizer
from tailrace.errors import ModelLoadError
from tailrace.text.templates.sources import template_sources
from tailrace.text.tokenizer import Tokenizer

FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
USER = [{"role": "user", "content": "a"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def put(folder: Path, config: dict[str, Any] | None = None, **files: Any) -> None:
    """A folder with a tokenizer, what its tokenizer_config.json holds beside, and further files (`__` is a slash)."""
    make_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    held = {key: value for key, value in json.loads(path.read_text()).items() if key != "chat_template"}
    path.write_text(json.dumps(held | (config or {})))
    for name, content in files.items():
        target = folder / name.replace("__", "/").replace("_jinja", ".jinja").replace("_json", ".json")
        target.parent.mkdir(exist_ok=True)
        target.write_text(content if isinstance(content, str) else json.dumps(content))


NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
PLACES: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "config": ({"chat_template": "plain"}, {}),
    "config, several": ({"chat_template": NAMED}, {}),
    "file": (None, {"chat_template_jinja": "plain"}),
    "file before config": ({"chat_template": "other"}, {"chat_template_jinja": "plain"}),
    "config before a processor's file": (
        {"chat_template": "plain"},
        {"chat_template_json": {"chat_template": "other"}},
    ),
    "config before a processor's settings": (
        {"chat_template": "plain"},
        {"processor_config_json": {"chat_template": "other"}},
    ),
    "file before a processor's": (
        None,
        {"chat_template_jinja": "plain", "chat_template_json": {"chat_template": "other"}},
    ),
    "folder": (None, {"chat_template_jinja": "plain", "additional_chat_templates__tool_use_jinja": "tools"}),
    "folder before config": (
        {"chat_template": "other"},
        {"chat_template_jinja": "plain", "additional_chat_templates__tool_use_jinja": "tools"},
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_templates_are_found_where_transformers_finds_them(tmp_path, name):
    config, files = PLACES[name]
    put(tmp_path, config, **files)
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for tools in (None, TOOLS):
        wanted = theirs.apply_chat_template(USER, tools=tools, tokenize=False)
        assert ours.render_chat(USER, tools=tools) == wanted
        assert wanted in ("plain", "tools")


@pytest.mark.parametrize("file", ["chat_template_json", "processor_config_json"])
def test_template_of_a_processor_counts_where_the_tokenizer_has_none(tmp_path, file):
    put(tmp_path, **{file: {"chat_template": "plain"}})
    assert Tokenizer.load(tmp_path).render_chat(USER) == "plain"


def test_of_a_processors_templates_its_settings_go_first(tmp_path):
    """As transformers' processors have it."""
    held = {"chat_template": "plain"}
    put(tmp_path, processor_config_json=held, chat_template_json={"chat_template": "other"})
    assert Tokenizer.load(tmp_path).render_chat(USER) == "plain"


@pytest.mark.parametrize("given", [3, [3], [{"name": "x"}], {"x": 3}, [{"name": 3, "template": "x"}]])
def test_what_is_no_template_is_said(tmp_path, given):
    with pytest.raises(ModelLoadError, match=r"tokenizer_config.json: chat_template should be a text, or a list"):
        template_sources(tmp_path, {"chat_template": given})


@pytest.mark.parametrize("content", ["[", "[1]", "3"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json", "special_tokens_map.json"])
def test_a_broken_file_is_named(tmp_path, file, content):
    put(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(ModelLoadError, match=f"{file} (is not JSON|should hold a JSON object)"):
        Tokenizer.load(tmp_path)


START, END = "<|im_start|>", "<|im_end|>"
TOKENS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "in the config": ({"bos_token": START}, {}),
    "as objects": ({"bos_token": {"__type": "AddedToken", "content": START, **FLAGS}}, {}),
    "in the map": ({}, {"special_tokens_map_json": {"bos_token": {"content": START, **FLAGS}, "pad_token": END}}),
    "the map goes before": ({"bos_token": END}, {"special_tokens_map_json": {"bos_token": START}}),
    "a list of tokens goes before": (
        {"bos_token": END, "added_tokens_decoder": {"256": {"content": START, "special": True, **FLAGS}}},
        {"special_tokens_map_json": {"bos_token": START}},
    ),
    "of the model": ({"image_token": START, "mask_token": END}, {}),
    "of the model, in a list": ({"extra_special_tokens": {"boi": START}}, {}),
    "added, special": ({"added_tokens_decoder": {"258": {"content": "<x>", "special": True, **FLAGS}}}, {}),
    "added, plain": ({"added_tokens_decoder": {"258": {"content": "<x>", "special": False, **FLAGS}}}, {}),
    "added, several": (
        {
            "added_tokens_decoder": {
                str(i): {"content": f"<{i}>", "special": i % 2 == 0, **FLAGS} for i in (260, 258, 259)
            }
        },
        {},
    ),
    "added, older": ({}, {"added_tokens_json": {"<x>": 258, "<y>": 259}}),
}
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "image_token", "boi")
TEXT = "a<x>b<y><258><259><260><|im_start|>"


@pytest.mark.parametrize("name", TOKENS)
def test_special_and_added_tokens_are_those_of_transformers(tmp_path, name):
    config, files = TOKENS[name]
    put(tmp_path, config | {"chat_template": "".join(f"{n}={{{{ {n} }}}} " for n in NAMES)}, **files)
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.render_chat(USER) == theirs.apply_chat_template(USER, tokenize=False)
    ids = theirs(TEXT)["input_ids"]
    assert ours.encode(TEXT) == ids
    for skip in (False, True):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert all(ours.text_of(id) for id in ids)


def test_a_token_whose_id_the_tokenizer_would_not_give_is_said(tmp_path):
    put(tmp_path, {"added_tokens_decoder": {"300": {"content": "<x>", "special": True, **FLAGS}}})
    with pytest.raises(ModelLoadError, match=r"'<x>' should have the id 300, but tokenizer.json leaves it 258"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("file", ["tokenizer.model", "spiece.model", "tekken.json", "tiktoken.model"])
def test_a_tokenizer_that_needs_another_library_says_what_to_do(tmp_path, file):
    (tmp_path / file).write_bytes(b"\0nonsense")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelLoadError, match=rf"it has only {file} \(.*\); make a tokenizer.json of it"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("place", ["folder", "config"])
def test_more_templates_than_a_model_has_use_for_are_one_sentence(place: str, tmp_path: Path):
    """Each may take seconds to load."""
    texts = {f"t{number}": "plain" for number in range(17)}
    config = {"chat_template": texts} if place == "config" else {}
    if place == "folder":
        put(tmp_path, None, **{f"additional_chat_templates__{name}_jinja": text for name, text in texts.items()})
    with pytest.raises(ModelLoadError, match="17 chat templates are too many, 16 is the most"):
        template_sources(tmp_path, config)
