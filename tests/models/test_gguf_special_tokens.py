"""The tokens of a GGUF file that are no text: ends of texts and turns, and tokens that are matched as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType
from transformers import GenerationConfig

from gguf_judge.models import WORDS, make_model
from models.gguf_writer import write_model
from models.test_gguf_tokenizer import GGML, GONE, convert_with, rewrite
from tailrace.models.convert import add_ends
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_special_tokens import find_ends
from tailrace.text.tokenizer import Tokenizer

V = GGUFValueType
FIRST = len(WORDS) - 3  # of the three control tokens; the first is the stated end
PLAIN = WORDS.index("z")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(make_model("llama"), tmp_path_factory.mktemp("whole") / "tiny.gguf")


def with_tokens(control: list[str], plain: tuple[str, int] = ("z", 1), **more: Any) -> dict[str, Any]:
    """Fields with other control tokens, and one other token of some kind."""
    words, kinds = [*WORDS[:FIRST], *control], [1] * FIRST + [3] * 3
    words[PLAIN], kinds[PLAIN] = plain
    ids = {f"{GGML}{name}_token_id": (id, V.UINT32) for name, id in more.items() if name != "template"}
    if "template" in more:
        ids["tokenizer.chat_template"] = (more["template"], V.STRING)
    return {f"{GGML}tokens": (words, V.ARRAY, V.STRING), f"{GGML}token_type": (kinds, V.ARRAY, V.INT32), **ids}


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        (with_tokens(["<eos>", "<start_of_turn>", "<end_of_turn>"]), [FIRST, FIRST + 2]),  # Gemma 3
        (with_tokens(["<|im_end|>", "<|im_start|>", "<|endoftext|>"]), [FIRST, FIRST + 2]),  # Qwen
        (with_tokens(["<|im_end|>", "<|im_start|>", "<|endoftext|>"], unknown=FIRST + 2), [FIRST]),  # SmolLM 2
        (with_tokens(["<|return|>", "<|call|>", "<|end|>"]), [FIRST, FIRST + 1]),  # gpt-oss
        (with_tokens(["<|endoftext|>", "<|end|>", "<|user|>"]), [FIRST, FIRST + 1]),  # Phi 3
        (with_tokens(["<|endoftext|>", "<|user|>", "<|observation|>"], eot=FIRST + 1), [FIRST, FIRST + 1, FIRST + 2]),
        (with_tokens(["<eos>", "a", "b"], ("</s>", 4)), [FIRST]),  # Gemma's tag of HTML
        (with_tokens(["<eos>", "a", "b"], ("<|im_end|>", 1)), [FIRST]),
        (with_tokens(["<eos>", "a", "b"], ("<|im_end|>", 1), template="{{ m }}<|im_end|>"), [PLAIN, FIRST]),
        (with_tokens(["a", "<|eot_id|>", "b"]) | {f"{GGML}eos_token_id": GONE}, [FIRST + 1]),
        ({f"{GGML}token_type": GONE}, [FIRST]),
    ],
)
def test_ends_are_those_stated_and_those_known_by_their_text(
    fields: dict[str, Any], ends: list[int], file: Path, tmp_path: Path
):
    assert find_ends(Fields(rewrite(file, tmp_path / "tiny.gguf", fields))) == ends


@pytest.mark.parametrize(
    ("stated", "ends", "written"),
    [(7, [7], 7), (7, [7, 9], [7, 9]), (None, [9], [9]), ([1, 106], [1, 50], [1, 50, 106]), (None, [], None)],
)
def test_ends_are_written_beside_those_of_the_model(stated: Any, ends: list[int], written: Any):
    config = GenerationConfig(eos_token_id=stated)
    add_ends(config, ends)
    assert config.eos_token_id == written


DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>"]


@pytest.mark.parametrize("begins", [False, True])
def test_tokens_of_other_letters_than_bytes_stay_whole(begins: bool, file: Path, tmp_path: Path):
    """transformers cuts DeepSeek's into pieces, and gives the first and the last one ids behind the embedding."""
    fields = with_tokens(DEEPSEEK, ("日本", 4), eos=FIRST + 1) | {
        f"{GGML}bos_token_id": (FIRST, V.UINT32),
        f"{GGML}add_bos_token": (begins, V.BOOL),
    }
    tokenizer = Tokenizer.load(convert_with(file, tmp_path, fields))
    assert tokenizer.vocab_size == len(WORDS)
    ids = [FIRST + 2, WORDS.index("a"), PLAIN, FIRST + 1]
    assert tokenizer.encode("<｜User｜>a日本<｜end▁of▁sentence｜>") == [FIRST] * begins + ids
    assert tokenizer.bytes_of(PLAIN) == "日本".encode()


def test_a_whole_token_with_spaces_is_matched_in_text(file: Path, tmp_path: Path):
    fields = with_tokens(WORDS[-3:], ("  \t", 4)) | {f"{GGML}add_bos_token": (False, V.BOOL)}
    tokenizer = Tokenizer.load(convert_with(file, tmp_path, fields))
    ids = tokenizer.encode("a  \tb")
    assert ids == [WORDS.index("a"), PLAIN, WORDS.index("b")]
    assert b"".join(tokenizer.bytes_of(id) for id in ids) == b"a  \tb"
