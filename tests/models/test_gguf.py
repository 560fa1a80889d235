"""GGUF files: recognised, converted once in a child process, cached; text is split as the file says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models import describe, resolve
from tailrace.models.child import check_transformers
from tailrace.models.convert import convert_weights
from tailrace.models.gguf import check_gguf, converted_folder
from tailrace.models.gguf_fields import Fields
from tailrace.models.gguf_layout import check_layout
from tailrace.models.store import TEMPORARY, is_whole

RESOLVE = """
import sys
from tailrace.config import ModelConfig
from tailrace.models import resolve
print("folder", resolve(ModelConfig(model=sys.argv[1], cache_dir=sys.argv[2])).folder, flush=True)
sys.exit("torch" in sys.modules)
"""
VOCAB, WIDTH = 257, 64


def tiny_gguf(path: Path, pre: str = "smollm", left_out: Collection[str] = (), **split: Any) -> Path:
    """A whole little Llama: byte vocabulary, one layer, an end-of-turn token beside the end-of-text one. left_out:
    tensors that it lacks. split: of the writer, which then writes several files."""
    writer = GGUFWriter(path, "llama", **split)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    alphabet = sorted(ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*alphabet, "ĠĠ"])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(5)
    random = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        if name not in left_out:
            writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))

    tensor("token_embd.weight", VOCAB, WIDTH)
    tensor("output_norm.weight", WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensor(f"blk.0.{name}.weight", WIDTH, WIDTH)
    tensor("blk.0.attn_norm.weight", WIDTH)
    tensor("blk.0.ffn_norm.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def start(file: Path, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RESOLVE, str(file), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.Q8.gguf")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("notes.txt", b"hello", "is a file but not a GGUF file"),
        ("cut.gguf", b"GG", "is a file but not a GGUF file"),
        (
            "big-00001-of-00003.gguf",
            b"GGUF",
            r"part 1 of 3 of a model, and big-00002-of-00003\.gguf and 1 more not found beside it: put",
        ),
        (
            "big-00002-of-00002.gguf",
            b"GGUF",
            r"part 2 of 2 of a model, and big-00001-of-00002\.gguf not found beside it: put",
        ),
        ("big-00003-of-00002.gguf", b"GGUF", r"its name says that it is part 3 of 2"),
        ("big-00001-of-00001.gguf", b"GGUF", r"big-00001-of-00001\.gguf can't be converted: the file ends at byte 4"),
        ("big-00001-of-00003.gguf", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ("model.gguf", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer.*run git lfs pull"),
        ("model.gguf", b"", "is empty; download it again"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: bytes, said: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=said):
        resolve(ModelConfig(model=str(tmp_path / name), cache_dir=str(tmp_path / "cache")))


def test_an_older_transformers_is_refused(monkeypatch: pytest.MonkeyPatch):
    check_transformers()
    older = ModuleType("transformers")
    older.__version__ = "5.19.0"
    monkeypatch.setitem(sys.modules, "transformers", older)
    with pytest.raises(ImportError, match=r"transformers >= 5\.20, and 5\.19\.0 is installed"):
        check_transformers()


def test_the_key_follows_content_time_and_precision(tmp_path: Path):
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF" + b"x" * 100)
    check_gguf(file)

    def key(dtype: str = "bfloat16", weights: str = "dequantized") -> Path:
        return converted_folder(file, tmp_path, (dtype, weights), "a")

    first = key()
    assert key() == first != key("float32")
    assert len({first, key(weights="quantized"), key("float32"), key("float32", "quantized")}) == 4
    stat = file.stat()
    file.write_bytes(b"GGUF" + b"y" * 100)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert key() != first
    moved = tmp_path / "elsewhere.gguf"
    shutil.copy2(file, moved)
    assert converted_folder(moved, tmp_path, ("bfloat16", "dequantized"), "a") == key()


@pytest.mark.long
def test_killed_half_way_then_made_by_two_at_once(tiny: Path, tmp_path: Path):
    """One test, as conversions take seconds: killed half-way, repeated by two processes at once, found again."""
    cache = tmp_path / "cache"
    killed = start(tiny, cache)
    deadline = time.monotonic() + 300
    while not list((cache / "models").glob(f"*{TEMPORARY}*/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=300)
    finished = [p for p in (cache / "models").iterdir() if p.is_dir() and TEMPORARY not in p.name]
    assert not finished
    assert list((cache / "models").glob(f"*{TEMPORARY}*"))

    both = [start(tiny, cache) for _ in range(2)]
    results = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    folders = {out.split()[1] for out, _ in results}
    assert len(folders) == 1
    folder = Path(folders.pop())
    assert is_whole(folder)
    assert sum("dequantizing" in err for _, err in results) == 1, "it was converted twice"
    assert not list((cache / "models").glob(f"*{TEMPORARY}*"))

    info = describe(folder, "tiny")
    assert (info.vocab_size, info.max_model_len, info.eos_token_ids) == (VOCAB, 128, [1, 5])
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    found = resolve(ModelConfig(model=str(tiny), cache_dir=str(cache)), progress=False)
    assert (found.folder, found.name) == (folder, "tiny.Q8")
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("  12").tokens
    assert tokens == ["ĠĠ", "1", "2"]


def test_a_broken_file_says_what_is_wrong(tiny: Path, tmp_path: Path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny.read_bytes()[:2000])
    said = (
        r"broken\.gguf can't be converted: the field tokenizer\.ggml\.tokens says that there are 257 entries, and the"
    )
    with pytest.raises(ModelLoadError, match=said):
        resolve(ModelConfig(model=str(broken), cache_dir=str(tmp_path)), progress=False)
    assert not [p for p in (tmp_path / "models").iterdir() if p.is_dir()]


@pytest.mark.parametrize("weights", ["dequantized", "quantized"])
def test_missing_tensors_are_found_before_anything_is_written(tmp_path: Path, weights: str):
    path = tiny_gguf(tmp_path / "less.gguf", left_out=("blk.0.ffn_up.weight", "blk.0.attn_q.weight"))
    said = r"layers\.0\.mlp\.up_proj\.weight and 1 more missing"
    (tmp_path / "made").mkdir()
    with pytest.raises(ModelLoadError, match=said):
        convert_weights(Fields(path), tmp_path / "made", "float32", weights == "quantized")
    assert not list((tmp_path / "made").iterdir())


def changed(raw: bytes, after: bytes, skip: int, put: bytes) -> bytes:
    """The file with `put` written `skip` bytes behind the first `after`."""
    at = raw.index(after) + len(after) + skip
    return raw[:at] + put + raw[at + len(put) :]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw[:10], "the file ends at byte 10, within its header"),
        (lambda raw: raw[:-100], r"tensor blk\.0\.ffn_norm\.weight at byte \d+: it is cut short"),
        (lambda raw: changed(raw, b"GGUF", 0, b"\1"), "version 1 of GGUF is not read, only 2 and 3"),
        (lambda raw: changed(raw, b"GGUF", 0, b"\0\0\0\3"), "the file is for big-endian machines"),
        (lambda raw: changed(raw, b"GGUF", 4, bytes(8)), "the file has no tensors: it holds a vocabulary or settings"),
        (lambda raw: changed(raw, b"GGUF", 4, b"\xff" * 8), r"its header says that there are \d{20} tensors, and the"),
        (lambda raw: changed(raw, b"GGUF", 12, b"\xff" * 8), r"its header says that there are \d{20} fields"),
        (lambda raw: changed(raw, b"GGUF", 20, b"\xff" * 8), r"the name of a field says that there are \d{20} char"),
        (
            lambda raw: changed(raw, b"llama.context_length", 0, b"\x63"),
            "llama.context_length is of the unknown type 99",
        ),
        (
            lambda raw: changed(raw, b"tokenizer.ggml.tokens", 8, b"\xff" * 8),
            r"tokenizer\.ggml\.tokens says that there",
        ),
        (lambda raw: changed(raw, b"llama.block_count", 4, b"\xff\xff\xff\x7f"), "block_count says 2147483647, and"),
        (lambda raw: changed(raw, b"token_embd.weight", 4, bytes(8)), "token_embd.weight has a dimension of 0"),
        (lambda raw: changed(raw, b"token_embd.weight", 0, b"\xff"), "tensor token_embd.weight has 255 dimensions"),
        (lambda raw: changed(raw, b"token_embd.weight", 20, b"\xff"), "token_embd.weight is of the unknown type"),
        (lambda raw: changed(raw, b"token_embd.weight", 20, b"\x0c"), "rows of 64, which are no whole blocks of 256"),
        (lambda raw: changed(raw, b"token_embd.weight", 24, b"\xff" * 8), r"tensor token_embd\.weight at byte \d{20}"),
        (lambda raw: raw.replace(b"ggml.eos_token", b"ggml.bos_token"), r"the field .*\.bos_token_id occurs twice"),
        (
            lambda raw: raw.replace(b"blk.0.attn_k", b"blk.0.attn_q"),
            r"the tensor blk\.0\.attn_q\.weight occurs twice",
        ),
        (lambda raw: changed(raw, b"blk.0.attn_k.weight", 24, b"\0\0\0\0"), r"attn_k\.weight begins at byte 0 of the"),
    ],
)
def test_a_damaged_file_is_a_sentence(tiny: Path, tmp_path: Path, change: Callable[[bytes], bytes], said: str):
    raw = tiny.read_bytes()
    check_layout(tiny)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(change(raw))
    with pytest.raises(ModelLoadError, match=said):
        check_layout(broken)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("uint32", 48, "uint32, got 48"),
        ("uint64", 32, "uint32, got 32 of type 10"),
        ("string", "32", "uint32, got None of type 8"),
        ("float32", 32.0, r"uint32, got 32\.0 of type 6"),
        ("bool", True, "uint32, got True of type 7"),
    ],
)
def test_an_alignment_is_a_power_of_two(tmp_path: Path, kind: str, value: Any, said: str):
    """The package gguf raises its own errors for other types."""
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    getattr(writer, f"add_{kind}")("general.alignment", value)
    writer.add_tensor("a", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=f"general.alignment must be a power of two of GGUF's type {said}"):
        check_layout(tmp_path / "a.gguf")


def test_no_damage_is_another_error(tiny: Path, tmp_path: Path):
    """Wherever a file is cut or overwritten, it is whole or a sentence says what is wrong."""
    raw, broken = tiny.read_bytes(), tmp_path / "broken.gguf"
    random = np.random.default_rng(0)
    refused = 0
    for trial in range(300):
        at = int(random.integers(4, 12_000))
        damaged = raw[:at] if trial % 3 == 0 else raw[:at] + random.bytes(1 + trial % 12) + raw[at + 1 + trial % 12 :]
        broken.write_bytes(damaged)
        try:
            check_layout(broken)
        except ModelLoadError:
            refused += 1
    assert 100 < refused < 300


@pytest.mark.model
def test_the_default_model_encodes_as_the_original(model_folder: Path):
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    assert tokenizer.encode("12345").tokens == ["1", "2", "3", "4", "5"]
    assert tokenizer.encode("  12\n\n 34").tokens == ["ĠĠ", "1", "2", "ĊĊĠ", "3", "4"]
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1
    assert describe(model_folder, "m").eos_token_ids == [2]
