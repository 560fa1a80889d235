"""From what --model says to a local Hugging Face folder: a folder as it is, a hub id fetched, a GGUF file converted once,
nothing = the default model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.models import default, gguf

WEIGHTS = ("*.safetensors", "*.bin")
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.model", "tokenizer*", "*.py", "*.txt"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """folder: config, weights and tokenizer. name: what clients call it."""

    folder: Path
    name: str


def resolve(config: ModelConfig, progress: bool = True) -> LocalModel:
    """Find the model, fetching and converting what is not there yet. `progress` shows bars on stderr.

    Raises:
        ModelLoadError: it can't be had; the message says what was looked for.
    """
    if config.model is None:
        file = default.fetch(Path(config.cache_dir), progress)
        return LocalModel(gguf.convert(file, config, progress), config.name or default.NAME)
    path = Path(config.model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(f"{path} is neither a folder nor a .gguf file")
        return LocalModel(gguf.convert(path, config, progress), config.name or path.stem)
    if path.is_dir():
        return LocalModel(check(path), config.name or path.resolve().name)
    if config.model.count("/") == 1 and not config.model.startswith((".", "/", "~")):
        return LocalModel(check(fetch(config.model, progress)), config.name or config.model)
    raise ModelLoadError(f"{config.model}: no such folder, GGUF file or hub id")


def check(folder: Path) -> Path:
    """The folder itself, if it has what a model needs."""
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{folder} has no config.json")
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHTS):
        raise ModelLoadError(f"{folder} has no weights ({' or '.join(WEIGHTS)})")
    return folder


def fetch(hub_id: str, progress: bool) -> Path:
    """The hub's snapshot, from the local cache if it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not progress:
        disable_progress_bars()
    try:
        return Path(snapshot_download(hub_id, allow_patterns=PATTERNS, local_files_only=True))
    except Exception:  # not there yet, in whatever way the library says it
        pass
    try:
        return Path(snapshot_download(hub_id, allow_patterns=PATTERNS))
    except Exception as error:
        raise ModelLoadError(f"{hub_id} is not in the local cache and can't be fetched: {error}") from error
