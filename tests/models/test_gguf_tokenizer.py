"""The tokenizer of a GGUF file: a field with another kind of value is one sentence that names the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType
from tokenizers import Tokenizer

from gguf_judge.models import VOCAB, WORDS, make_model
from models.gguf_writer import rewrite, write_model
from tailrace.errors import ModelLoadError
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_tokenizer import convert_tokenizer

V = GGUFValueType
GGML = "tokenizer.ggml."
GONE = None


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(make_model("llama"), tmp_path_factory.mktemp("whole") / "tiny.gguf")


def convert_with(source: Path, tmp_path: Path, fields: dict[str, Any]) -> Path:
    path = rewrite(source, tmp_path / "tiny.gguf", fields)
    (tmp_path / "made").mkdir()
    convert_tokenizer(Fields(path), tmp_path / "made")
    return tmp_path / "made"


TEXTS, NUMBERS = (V.ARRAY, V.STRING), (V.ARRAY, V.INT32)
FAULTS: dict[str, tuple[Any, str]] = {
    "model": (GONE, "is missing"),
    "model=rwkv": (("rwkv", V.STRING), "'rwkv', and these are read: gemma4, gpt2, llama$"),
    "model=t5": (("t5", V.STRING), "'t5', and these are read: gemma4, gpt2, llama$"),
    "tokens": (GONE, "must be a list of texts, and is missing"),
    "tokens=numbers": (([1, 2], *NUMBERS), "must be a list of texts"),
    "tokens=more": (([*WORDS, "more"], *TEXTS), f"has {VOCAB + 1} tokens, and the embedding has {VOCAB} rows"),
    "merges": (GONE, "is missing"),
    "merges=numbers": (([1], *NUMBERS), "must be pairs of tokens"),
    "merges=one": ((["a"], *TEXTS), "must be pairs of tokens"),
    "merges=three": ((["a b c"], *TEXTS), "must be pairs of tokens"),
    "merges=unknown": ((["zz yy"], *TEXTS), "make none: .*`zz` out of vocabulary"),
    "token_type=few": (([1], *NUMBERS), "must be a kind for each token"),
    "token_type=other": (([99] * VOCAB, *NUMBERS), "must be a kind for each token"),
    "scores=few": (([1.0], V.ARRAY, V.FLOAT32), "must be a number for each token"),
    "scores=nan": (([float("nan")] * VOCAB, V.ARRAY, V.FLOAT32), "must be a number for each token"),
    "pre=weird": (("weird", V.STRING), "'weird', which is not known: text would be encoded wrongly"),
    "pre": ((3, V.UINT32), "must be a text, and is 3"),
    "add_bos_token": (("x", V.STRING), "must be true or false"),
    **{
        f"{name}_token_id={value}": ((value, kind), rf"must be a token's id in \[0, {VOCAB - 1}\], and is {value!r}")
        for name in ("bos", "eos", "eot", "eom", "padding", "unknown")
        for value, kind in ((VOCAB, V.UINT32), (-1, V.INT32), ("x", V.STRING), (True, V.BOOL))
    },
}


@pytest.mark.few(12)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_field_is_named(fault: str, file: Path, tmp_path: Path):
    given, reason = FAULTS[fault]
    key = f"{GGML}{fault.partition('=')[0]}"
    with pytest.raises(
        ModelLoadError, match=rf"^the tokenizer of tiny\.gguf can't be read: the field.* {key}.*{reason}"
    ):
        convert_with(file, tmp_path, {key: given})


@pytest.mark.parametrize(
    ("key", "given", "reason"),
    [
        ("", ("{% bad", V.STRING), "can't be read: line 1: "),
        ("", ("{% for m in messages %}{{ m }}", V.STRING), "can't be read: line 1: "),
        ("", (5, V.UINT32), "must be a text, and is 5"),
        (".tool_use", ("{{ a", V.STRING), "can't be read: line 1: "),
    ],
)
def test_a_faulty_chat_template_is_named(key: str, given: Any, reason: str, file: Path, tmp_path: Path):
    with pytest.raises(ModelLoadError, match=rf"the field tokenizer\.chat_template{key} {reason}"):
        convert_with(file, tmp_path, {f"tokenizer.chat_template{key}": given})


def test_chat_templates_with_names_are_kept(file: Path, tmp_path: Path):
    """transformers' reader keeps the default one alone."""
    given = {"": "{{ messages }}", ".tool_use": "{{ tools }}", ".rag": "{{ documents }}"}
    fields = {f"tokenizer.chat_template{key}": (text, V.STRING) for key, text in given.items()}
    folder = convert_with(file, tmp_path, fields)
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
    found = {path.stem: path.read_text() for path in (folder / "additional_chat_templates").iterdir()}
    assert found == {"tool_use": "{{ tools }}", "rag": "{{ documents }}"}


def test_what_a_file_leaves_out_is_not_needed(file: Path, tmp_path: Path):
    keys = ("token_type", "pre", "bos_token_id", "eos_token_id")
    folder = convert_with(file, tmp_path, {f"{GGML}{key}": GONE for key in keys})
    assert json.loads((folder / "tokenizer_config.json").read_text()).get("bos_token") is None
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("ab").tokens == ["a", "b"]


BEGIN = WORDS[-3]


@pytest.mark.parametrize(
    ("pre", "stated", "begins"),
    [
        *((pre, None, True) for pre in ("llama-bpe", "tekken", "lfm2", "falcon3")),
        *((pre, None, False) for pre in ("qwen2", "smollm", "gpt-4o", "glm4")),
        ("llama-bpe", False, False),
        ("qwen2", True, True),
    ],
)
def test_a_text_begins_as_the_file_says(pre: str, stated: bool | None, begins: bool, file: Path, tmp_path: Path):
    """Files of Llama 3 and Mistral do not state it: llama.cpp knows it by the pre-tokenizer's name."""
    more = {} if stated is None else {f"{GGML}add_bos_token": (stated, V.BOOL)}
    folder = convert_with(file, tmp_path, {f"{GGML}pre": (pre, V.STRING), **more})
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("ab").tokens
    assert tokens == [BEGIN] * begins + ["a", "b"]


@pytest.mark.parametrize(("pre", "tokens"), [("llama-bpe", ["ĠĠ"]), ("glm4", ["ĠĠ"]), ("qwen2", ["Ġ", "Ġ"])])
def test_a_word_that_merges_do_not_make_is_a_token_by_some_names(
    pre: str, tokens: list[str], file: Path, tmp_path: Path
):
    given = {f"{GGML}merges": (["a b"], *TEXTS), f"{GGML}pre": (pre, V.STRING)}
    words = [*WORDS[:-4], "ĠĠ", *WORDS[-3:]]
    words[words.index("z")] = "ab"
    folder = convert_with(
        file, tmp_path, given | {f"{GGML}tokens": (words, *TEXTS), f"{GGML}add_bos_token": (False, V.BOOL)}
    )
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("  ").tokens == tokens


@pytest.mark.parametrize(
    ("changes", "begins"),
    [({}, True), ({"bos_token_id": GONE}, True), ({"bos_token_id": GONE, "add_bos_token": (False, V.BOOL)}, False)],
)
def test_texts_of_sentencepiece_begin_with_token_1(changes: dict[str, Any], begins: bool, file: Path, tmp_path: Path):
    """llama.cpp takes token 1 where a file names none."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(VOCAB - 4)), "▁a"]
    given = {
        "model": ("llama", V.STRING),
        "tokens": (tokens, *TEXTS),
        "token_type": ([2, 3, 3] + [6] * (VOCAB - 4) + [1], *NUMBERS),
        "scores": ([0.0] * VOCAB, V.ARRAY, V.FLOAT32),
        "merges": GONE,
        "bos_token_id": (1, V.UINT32),
        "eos_token_id": (2, V.UINT32),
    }
    folder = convert_with(file, tmp_path, {f"{GGML}{key}": value for key, value in (given | changes).items()})
    assert ("<s>" in Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a").tokens) == begins


def test_tokens_that_a_file_suppresses_are_named(file: Path, tmp_path: Path, capfd):
    convert_with(file, tmp_path, {f"{GGML}suppress_tokens": ([1, 2], *NUMBERS)})
    assert "warning: the field tokenizer.ggml.suppress_tokens is not used" in capfd.readouterr().err
