"""`python -m gguf_judge.texts PYTHON`: a tiny file with each name of a pre-tokenizer and with odd fields of its
tokenizer, and the ids of texts in llama.cpp and in tailrace. PYTHON: as of `python -m gguf_judge`.

The vocabulary's merges cross words, lines and digits: a text that is split elsewhere has other ids.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gguf import GGUFValueType as V
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from gguf_judge.models import make_model
from models.gguf_writer import rewrite, write_model
from tailrace.errors import ModelLoadError
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_tokenizer import convert_tokenizer
from tailrace.models.pretokenizer import GPT2, MISSING

HERE = Path(__file__).parent
GGML = "tokenizer.ggml."
TEXTS = (
    "I'll say it's 12345 or 67 890,5 - don't",
    "I'LL SAY  it  twice\n\n  and\tindent\r\n\r\nmore\n",
    "camelCaseWords and HTTPServer, naïve café ÉCOLE",
    "x = foo(bar[3])  # ???!!! ... /usr/bin//env {}",
    "你好，世界！今天是2026年。ひらがなカタカナ 안녕하세요 세상",
    "Привет, МИР! สวัสดีชาวโลก مرحبا بالعالم १२३ 🙂🙂",
    "<|user|>hello <|end|> there",
    "",
)
SPECIAL = ["<|begin|>", "<|close|>", "<|user|>", "<|end|>"]
SIZE = 900
CASES = "llama.cpp's patterns of words leave out marks (Thai, Hindi) and letters beyond ASCII; the models' have them"
# files whose ids differ from llama.cpp's, and why tailrace's stay
KNOWN = {
    **dict.fromkeys(("gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie", "tekken", "kimi-k2"), CASES),
    **dict.fromkeys(("cohere2moe", "tiny_aya", "youtu"), CASES),
    "deepseek-llm": "llama.cpp keeps digits together, and the model's own tokenizer splits them",
    "llama-bpe, no first token": "llama.cpp begins a text with token 11, GPT-2's",
    **dict.fromkeys(
        ("llama-bpe, no kinds", "qwen2, no kinds"), "llama.cpp takes <|end|> as a control token by its text"
    ),
    **dict.fromkeys(
        ("llama-bpe, no pre-tokenizer", "qwen2, no pre-tokenizer"), "both warn; llama.cpp splits as no model does"
    ),
}
FLAGS: dict[str, dict[str, Any]] = {
    "a beginning": {"add_bos_token": (True, V.BOOL)},
    "no beginning": {"add_bos_token": (False, V.BOOL)},
    "an end": {"add_eos_token": (True, V.BOOL)},
    "no end": {"add_eos_token": (False, V.BOOL)},
    "both": {"add_bos_token": (True, V.BOOL), "add_eos_token": (True, V.BOOL)},
    "no first token": {"bos_token_id": None},
    "a padding token": {"padding_token_id": (1, V.UINT32)},
    "a space before": {"add_space_prefix": (True, V.BOOL)},
    "no kinds": {"token_type": None},
    "no pre-tokenizer": {"pre": None},
}


def make_vocabulary() -> dict[str, Any]:
    """Return the fields of a byte-level vocabulary."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = BpeTrainer(
        vocab_size=SIZE - len(SPECIAL), initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator([text + other for text in TEXTS for other in TEXTS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), *SPECIAL]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    first = len(tokens) - len(SPECIAL)
    return {
        f"{GGML}tokens": (tokens, V.ARRAY, V.STRING),
        f"{GGML}merges": (merges, V.ARRAY, V.STRING),
        f"{GGML}token_type": ([1] * first + [3] * len(SPECIAL), V.ARRAY, V.INT32),
        f"{GGML}bos_token_id": (first, V.UINT32),
        f"{GGML}eos_token_id": (first + 1, V.UINT32),
    }


def write_files(work: Path) -> dict[str, Path]:
    """Write a file for each name and for each odd field. Return the files by what they have."""
    plain = write_model(make_model("llama", {"vocab_size": SIZE + 8}), work / "plain.gguf")  # rows without a token
    names = sorted({*GGUF_PRE_TOKENIZER_SPLITS, *MISSING, *GPT2})
    changes = {name: {"pre": (name, V.STRING)} for name in names} | {
        f"{name}, {flag}": {"pre": (name, V.STRING)} | given
        for name in ("llama-bpe", "qwen2")
        for flag, given in FLAGS.items()
    }
    vocabulary = make_vocabulary()
    return {
        title: rewrite(
            plain, work / f"{number}.gguf", vocabulary | {f"{GGML}{key}": value for key, value in given.items()}
        )
        for number, (title, given) in enumerate(changes.items())
    }


def encode_here(file: Path) -> list[list[int]] | str:
    """Return the ids of the texts, or why the file is refused."""
    folder = file.with_suffix("")
    folder.mkdir()
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            convert_tokenizer(Fields(file), folder)
    except ModelLoadError as error:
        return str(error)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.encode(text) for text in TEXTS]


def main(python: str) -> int:
    """Exit code 1 if ids differ."""
    work, wrong = Path(tempfile.mkdtemp(prefix="gguf-texts-")), 0
    try:
        files, texts = write_files(work), work / "texts.json"
        texts.write_text(json.dumps(TEXTS))
        command = [python, str(HERE / "words.py"), str(texts), *map(str, files.values())]
        theirs = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for title, file in files.items():
            found, expected = encode_here(file), theirs[str(file)]
            if expected is None or isinstance(found, str):
                print(f"{title}: {found if isinstance(found, str) else 'llama.cpp refuses it'}", flush=True)
                continue
            others = [text for text, mine, other in zip(TEXTS, found, expected, strict=True) if mine != other]
            reason = f" (known: {KNOWN[title]})" if title in KNOWN else ""
            print(f"{title}:", "; ".join(map(repr, others)) or "same ids", reason, flush=True)
            wrong += bool(others) != bool(reason)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
