"""The operator's chat template and its variables: over the model's own, and below what a request says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.harness import LocalClient, front_of, make_tokenizer, saying
from tailrace.cli.local import prepare
from tailrace.config import Config, ModelConfig
from tailrace.errors import ConfigError
from tailrace.text.chosen_template import load_tokenizer

OWN = "own {% for m in messages %}{{ m.content }}{% endfor %}"
CHOSEN = (
    "chosen {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
    "|{{ enable_thinking }}|{{ reasoning_effort }}|{{ colour }}|"
)
USER = {"role": "user", "content": "a"}
VARIABLES = '{"enable_thinking": true, "colour": "red"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer(tmp_path, OWN)
    (tmp_path / "chosen.jinja").write_text(CHOSEN)
    return tmp_path


def settings_of(folder: Path, variables: str = VARIABLES) -> ModelConfig:
    return ModelConfig(chat_template=str(folder / "chosen.jinja"), chat_template_kwargs=variables)


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, "|True||red|"),
        ({"chat_template_kwargs": {"colour": "blue"}}, "|True||blue|"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "|False||red|"),
        ({"enable_thinking": False}, "|False||red|"),
        ({"reasoning_effort": "none"}, "|False||red|"),
        ({"reasoning_effort": "low"}, "|True|low|red|"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "||low|red|"),  # it says what it wants of thinking
    ],
)
async def test_a_requests_variables_go_before_the_operators(folder, fields, seen):
    async with front_of(LocalClient(saying(b"x")), load_tokenizer(folder, settings_of(folder))) as front:
        answer = await front.http.post("/tokenize", json={"messages": [USER], **fields})
        assert (answer.status_code, answer.headers.get("warning")) == (200, None)
        tokens = answer.json()["tokens"]
        prompt = (await front.http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
        assert (prompt[:7], prompt[-len(seen) :]) == ("chosen ", seen)


def test_commands_use_both(folder):
    tokenizer = load_tokenizer(folder, settings_of(folder))
    assert tokenizer.decode(tokenizer.encode_chat([USER])).endswith("|True||red|")


def test_the_file_stands_for_all_templates_of_the_model(folder):
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    tokenizer = load_tokenizer(folder, settings_of(folder))
    tool = {"type": "function", "function": {"name": "f"}}
    assert tokenizer.render_chat([USER], tools=[tool]).startswith("chosen ")


async def test_a_model_without_a_template_chats_by_an_explicit_one_alone(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    places = {
        "/v1/chat/completions": {"messages": [USER], "max_tokens": 4},
        "/v1/messages": {"model": "scripted", "messages": [USER], "max_tokens": 4},
        "/v1/responses": {"input": "a", "max_output_tokens": 4},
        "/tokenize": {"messages": [USER]},
    }
    async with front_of(LocalClient(saying(b"x")), load_tokenizer(folder, ModelConfig())) as front:
        for path, body in places.items():
            answer = await front.http.post(path, json=body)
            assert answer.status_code == 400, path
            assert "--chat-template FILE" in answer.text
            assert answer.json()["error"].get("param", "messages") == ("input" if "input" in body else "messages")
    async with front_of(LocalClient(saying(b"x")), load_tokenizer(folder, settings_of(folder))) as front:
        for path, body in places.items():
            assert (await front.http.post(path, json=body)).status_code == 200, path


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ("[1]", "must be a JSON object"),
        ("{", "must be a JSON object"),
        ("[" * 100_000, "must be a JSON object"),
        ('{"messages": []}', 'must not hold "messages"'),
        ('{"enable_thinkng": true}', r"does not read .*did you mean enable_thinking\?"),
    ],
)
def test_wrong_variables_are_refused_at_the_start(folder, variables, said):
    with pytest.raises(ConfigError, match=said) as caught:
        load_tokenizer(folder, settings_of(folder, variables))
    assert str(caught.value).startswith("model.chat_template_kwargs (--chat-template-kwargs)")


def test_a_wrong_file_is_refused_at_the_start(folder):
    (folder / "empty").write_text("\n")
    for name, said in (("gone", "can't be read"), ("empty", "is empty")):
        with pytest.raises(ConfigError, match=f"--chat-template.*{said}"):
            load_tokenizer(folder, ModelConfig(chat_template=str(folder / name)))


def test_the_start_of_a_server_reads_both(folder, monkeypatch):
    monkeypatch.setattr("tailrace.cli.local.check_tokenizer", lambda folder: None)
    monkeypatch.setattr("tailrace.cli.local.resolve", lambda model, progress: Found(folder))
    prepared = prepare(Config(model=settings_of(folder)))
    assert prepared.tokenizer.template_source == CHOSEN
    assert prepared.tokenizer.default_variables == {"enable_thinking": True, "colour": "red"}


class Found:
    name = "m"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
