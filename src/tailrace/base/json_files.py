"""Reads the JSON files and templates of a folder that is not trusted: a model's, a drafter's or an adapter's. This
module does not know what the files mean."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tailrace.base.stand_ins import read_file, refuse_stand_in
from tailrace.errors import ModelLoadError, take_first_line

MAX_MIB = 64  # the index of 100,000 tensors has 10 MiB


def read_text(path: Path) -> str:
    """Return the text of a file with its line ends unchanged.

    Raises:
        ModelLoadError: the file is missing, can't be read, is too large, or is not UTF-8.
    """
    refuse_stand_in(path)
    try:
        return read_file(path, MAX_MIB << 20).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} can't be read: {take_first_line(error)}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ModelLoadError: the file is missing, can't be read, is too large or nests too deeply, or holds no object.
    """
    text = read_text(path)
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ModelLoadError(f"{path} can't be read: its JSON nests too deeply") from error
    except json.JSONDecodeError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} can't be read: {take_first_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} should hold a JSON object, but holds a {type(value).__name__}")
    return value


def read_optional_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if there is nothing of this name.

    Raises:
        ModelLoadError: see `read_object`.
    """
    return read_object(path) if os.path.lexists(path) else {}
