"""What a request may name: none of its fields is run as code, and no file of the server is read for it.

The tables are the test: a new field that could hold code, or name a file, is a row.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PICKLE = "gASVHgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAN0b3WUhZRSlC4="
CODE: list[tuple[dict[str, Any], str]] = [  # fields of a chat, and the one that its error names
    ({"processors": {"os:system": {"command": "x"}}}, "processors"),
    ({"logits_processors": ["os.system"]}, "logits_processors"),
    ({"logits_processors": [{"qualname": "os.system", "args": ["x"]}]}, "logits_processors"),
    ({"custom_logit_processor": PICKLE}, "custom_logit_processor"),
    ({"chat_template": "{{ cycler.__init__.__globals__.os }}"}, "chat_template"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
    ({"functions": [{"name": "f"}]}, "functions"),
]


@pytest.mark.parametrize(("fields", "param"), CODE)
async def test_fields_that_could_hold_code_are_refused(front, fields, param):
    answer = await front.chat(**fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


SECRET = "a line of a file of the server"
DOCUMENT = {"type": "document", "source": {"type": "url", "url": "file://FILE"}}
PART = "/v1/chat/completions"
FILES: list[tuple[str, dict[str, Any]]] = [  # a path, and a body; FILE is the file's path
    (PART, {"messages": [{"role": "user", "content": [{"type": kind, kind: {"url": "file://FILE"}}]}]})
    for kind in ("image_url", "video_url", "audio_url")
]
FILES += [
    (PART, {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "FILE"}}]}]}),
    (PART, {"messages": [{"role": "user", "content": [{"type": "input_file", "file_url": "file://FILE"}]}]}),
    (PART, {"messages": [{"role": "user", "content": "hi"}], "chat_template": "FILE"}),
    (PART, {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"file": "FILE"}}),
    (PART, {"messages": [{"role": "user", "content": "hi"}], "documents": ["FILE"]}),
    (PART, {"messages": [{"role": "user", "content": "hi"}], "cache_salt": "FILE", "preset": "FILE"}),
    (PART, {"messages": [{"role": "user", "content": "hi"}], "model": "FILE"}),
    ("/v1/completions", {"prompt": "file://FILE="}),
    ("/v1/completions", {"prompt": "hi", "suffix": "FILE"}),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "../../FILE"}]}),
    ("/v1/responses", {"input": "hi", "previous_response_id": "../../FILE"}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "FILE"}]}]}),
    ("/v1/responses", {"input": "hi", "prompt": {"id": "FILE"}}),
    (
        "/v1/messages",
        {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
    ),
    ("/generate", {"text": "hi", "lora_path": "FILE", "image_data": "FILE"}),
]


@pytest.mark.parametrize(("path", "body"), FILES)
async def test_a_file_that_a_request_names_is_not_read(front, tokenizer, tmp_path: Path, path: str, body: Any):
    """Neither the answer nor the prompt that the engine gets has the file's text."""
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    prompts: list[str] = []
    send = front.client.send

    def keep_prompt(message: Any) -> None:
        prompts.append(tokenizer.backend.decode(getattr(message, "prompt", [])))
        send(message)

    front.client.send = keep_prompt
    answer = await front.http.post(path, json=json.loads(json.dumps(body).replace("FILE", str(file))))
    assert answer.status_code in (200, 400, 404)
    assert SECRET not in answer.text
    assert not any(SECRET in prompt for prompt in prompts)
