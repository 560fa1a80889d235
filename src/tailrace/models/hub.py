"""A Hugging Face hub id → the folder of its snapshot in Hugging Face's own cache, which other programs share.

A complete snapshot in the cache is used without asking the network. `name@revision` names a revision.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tqdm.auto import tqdm

from tailrace.errors import ModelLoadError, take_first_line
from tailrace.models.local import check_folder

HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+(@[\w./-]+)?$")
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
WITHOUT_NETWORK = "download it elsewhere and name the folder, or leave --model out for the default model"


class QuietBar(tqdm):
    """A progress bar that shows nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[arg-type]


def fetch_snapshot(hub_id: str, *, remote_code: bool, progress: bool) -> Path:
    """Return the snapshot's folder, downloaded if it is not in the cache. Only safetensors weights are fetched.

    Args:
        remote_code: fetch the repository's Python files too.

    Raises:
        ModelLoadError: no such model, no access to it, no network, or the repository lacks something that is needed.
    """
    return _fetch_snapshot(hub_id, [*PATTERNS, "*.py"] if remote_code else PATTERNS, progress, check_folder)


def fetch_head(hub_id: str, *, progress: bool) -> Path:
    """Do as `fetch_snapshot`, for weights that are no whole model, such as a drafter's: without a tokenizer, and
    perhaps as a pickle of tensors.

    Raises:
        ModelLoadError: as for `fetch_snapshot`.
    """
    return _fetch_snapshot(hub_id, [*PATTERNS, "*.bin"], progress, _check_head)


def _check_head(folder: Path) -> Path:
    if not (folder / "config.json").is_file() or not any(folder.glob("*model*")):
        raise ModelLoadError(f"{folder} has no config.json and weights")
    return folder


def _fetch_snapshot(hub_id: str, patterns: list[str], progress: bool, check: Callable[[Path], Path]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    name, _, revision = hub_id.partition("@")
    snapshot = partial(snapshot_download, name, revision=revision or None, allow_patterns=patterns)
    try:
        return check(Path(snapshot(local_files_only=True)))
    except (LocalEntryNotFoundError, ModelLoadError):
        pass  # not in the cache, or incomplete
    try:
        folder = snapshot(tqdm_class=None if progress else QuietBar)
    except GatedRepoError as error:
        raise ModelLoadError(f"{name} needs its licence accepted and a token: run `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(f"there is no model {name} on the hub (or it is private: run `hf auth login`)") from error
    except (OSError, ValueError, RuntimeError) as error:  # any error of the HTTP stack is one of these
        reason = take_first_line(error)
        raise ModelLoadError(f"the hub can't be reached for {name}: {reason}; {WITHOUT_NETWORK}") from error
    return check(Path(folder))
