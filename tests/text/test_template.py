"""A conversation that the model continues: the prompt ends where the last message's text does, as in transformers."""

from __future__ import annotations

import json

import pytest
from transformers import PreTrainedTokenizerFast

from api.harness import make_tokenizer
from tailrace.errors import RequestError
from tailrace.text.tokenizer import Tokenizer

TEMPLATES = {
    "as it is": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "trimmed": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}",
    "without thoughts": (
        "{% for m in messages %}<|im_start|>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}"
    ),
    "with a turn behind": (
        "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    ),
}
LAST = ["Hello world", "Hello  ", "  Hello", "", "a<think>b</think>c", "é😀", "<|im_end|>", "x\n"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("last", LAST)
def test_the_prompt_ends_with_the_last_message(tmp_path, name, last):
    make_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATES[name]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for first in ("a", last):
        messages = [{"role": "user", "content": first}, {"role": "assistant", "content": last}]
        try:
            wanted = theirs.apply_chat_template(messages, continue_final_message=True, tokenize=False)
        except ValueError:
            with pytest.raises(RequestError, match="does not write all of the last"):
                ours.render_chat(messages, add_generation_prompt=False, unfinished=True)
            continue
        assert ours.render_chat(messages, add_generation_prompt=False, unfinished=True) == wanted
        assert messages[-1]["content"] == last


def test_a_template_that_leaves_the_last_message_out_is_said(tmp_path):
    make_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {
        "chat_template": "{{ messages[0].content }}"
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError, match="does not write all of the last message"):
        Tokenizer.load(tmp_path).render_chat(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], unfinished=True
        )
