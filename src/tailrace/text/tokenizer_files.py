"""A folder's files → a tokenizer of the tokenizers library. Imports torch only if the folder has no tokenizer.json and
transformers must make one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.base.extras import require_extra
from tailrace.base.json_files import read_optional_object
from tailrace.base.panics import raise_panics_as
from tailrace.base.stand_ins import read_file, refuse_stand_in
from tailrace.errors import MissingExtraError, ModelLoadError, describe_error
from tailrace.text.special_tokens import CONFIG, MAP, add_tokens

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
MAX_BYTES = 1 << 30  # of it; the largest vocabularies have 40 MB
# files of tokenizers that only other libraries can read, and these libraries
FOREIGN = {
    "tokenizer.model": "a SentencePiece model",
    "spiece.model": "a SentencePiece model",
    "sentencepiece.bpe.model": "a SentencePiece model",
    "tekken.json": "a vocabulary of mistral-common",
    "tiktoken.model": "a vocabulary of tiktoken",
}
OPENED = ("vocab", "merges", "entity_vocab")  # arguments of transformers' classes: each opens a text as a file's name


def read_backend(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> tokenizers.Tokenizer:
    """Read the folder's tokenizer, with the tokens that the folder adds. config: of tokenizer_config.json.

    Raises:
        MissingExtraError: a library is not installed. Others: see `tokenizer_errors`.
    """
    with require_extra("text"):
        import tokenizers

    refuse_stand_in(folder / FILE)
    if (folder / FILE).is_file():
        backend = tokenizers.Tokenizer.from_buffer(read_file(folder / FILE, MAX_BYTES))
        backend.no_truncation()
        backend.no_padding()
        add_tokens(backend, folder, config)
        return backend
    refuse_paths(folder, config)
    with require_extra("serve"):
        from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code).backend_tokenizer


def refuse_paths(folder: Path, config: dict[str, Any]) -> None:
    """Raise ModelLoadError if the folder's settings name a file for transformers to read. It would read any file of the
    machine, and anybody could read that file in the vocabulary. config: of tokenizer_config.json."""
    for name in OPENED:
        if isinstance(config.get(name), str):
            raise ModelLoadError(f"{CONFIG}: {name} must be a vocabulary, not the name of a file")
    if config.get("init_inputs"):  # arguments without names
        raise ModelLoadError(f"{CONFIG}: init_inputs is not supported")
    listed = config.get("fast_tokenizer_files") or []
    if not isinstance(listed, list) or any(not isinstance(file, str) or Path(file).name != file for file in listed):
        raise ModelLoadError(f"{CONFIG}: fast_tokenizer_files must be names of files in the folder")
    for name in read_optional_object(folder / MAP):  # transformers takes every entry for an argument
        if not name.endswith(("_token", "_tokens")):
            raise ModelLoadError(f"{MAP}: {name} is no special token")


@contextmanager
def tokenizer_errors(folder: Path) -> Iterator[None]:
    """Raise ModelLoadError, naming the folder, for whatever the libraries raise at its files, panics included."""
    try:
        with raise_panics_as(ModelLoadError):
            yield
    except MissingExtraError:
        raise
    except ModelLoadError as error:
        raise ModelLoadError(str(error) if str(folder) in str(error) else f"{folder}: {error}") from error
    except Exception as error:
        reason = suggest_conversion(folder) or describe_error(error)
        raise ModelLoadError(f"{folder}: no usable tokenizer: {reason}") from error


def suggest_conversion(folder: Path) -> str | None:
    """Return advice for a folder whose only tokenizer needs another library; None for other folders."""
    for name, kind in FOREIGN.items():
        if (folder / name).is_file():
            return (
                f"it has only {name} ({kind}); make a tokenizer.json of it where that kind's own package is installed: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder), of transformers"
            )
    return None
