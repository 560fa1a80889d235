"""A folder's files → a tokenizer of the tokenizers library. Imports torch only if the folder has no tokenizer.json and
transformers must make one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.base.extras import require_extra
from tailrace.base.panics import raise_panics_as
from tailrace.base.stand_ins import refuse_stand_in
from tailrace.errors import MissingExtraError, ModelLoadError, describe_error
from tailrace.text.special_tokens import add_tokens

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
# files of tokenizers that only other libraries can read, and these libraries
FOREIGN = {
    "tokenizer.model": "a SentencePiece model",
    "spiece.model": "a SentencePiece model",
    "sentencepiece.bpe.model": "a SentencePiece model",
    "tekken.json": "a vocabulary of mistral-common",
    "tiktoken.model": "a vocabulary of tiktoken",
}


def read_backend(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> tokenizers.Tokenizer:
    """Read the folder's tokenizer, with the tokens that the folder adds. config: of tokenizer_config.json.

    Raises:
        MissingExtraError: a library is not installed. Others: see `tokenizer_errors`.
    """
    with require_extra("text"):
        import tokenizers

    refuse_stand_in(folder / FILE)
    if (folder / FILE).is_file():
        backend = tokenizers.Tokenizer.from_file(str(folder / FILE))
        backend.no_truncation()
        backend.no_padding()
        add_tokens(backend, folder, config)
        return backend
    with require_extra("serve"):
        from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code).backend_tokenizer


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
