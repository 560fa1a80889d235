"""Where a model's folder keeps its chat templates. A model may have several, by name: `default`, `tool_use`, `rag`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailrace.base.stand_ins import refuse_stand_in
from tailrace.errors import ModelLoadError

DEFAULT, WITH_TOOLS, WITH_DOCUMENTS = "default", "tool_use", "rag"
FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
PROCESSORS = ("processor_config.json", "chat_template.json")  # files of a multimodal model; its tokenizer reads neither


def template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return a folder's templates by name; {} for a folder without templates. config: the contents of
    tokenizer_config.json.

    As in transformers, separate files have priority over tokenizer_config.json. A processor's template counts only if
    the tokenizer brings no template.

    Raises:
        ModelLoadError: a template is no text, or can't be read.
    """
    found: dict[str, str] = {}
    if (folder / FILE).is_file():
        found[DEFAULT] = read_text(folder / FILE)
    for path in sorted((folder / FOLDER).glob("*.jinja")):
        found[path.stem] = read_text(path)
    if found:
        return found
    for name in ("tokenizer_config.json", *PROCESSORS):
        held = config if name == "tokenizer_config.json" else read_object(folder / name)
        if given := held.get("chat_template"):
            return _name_templates(given, f"{folder / name}: chat_template")
    return {}


def _name_templates(given: Any, where: str) -> dict[str, str]:
    """Return one template, or several, by name. Several come as {name: template} or [{"name": …, "template": …}]."""
    if isinstance(given, str):
        return {DEFAULT: given}
    if isinstance(given, list) and all(isinstance(entry, dict) for entry in given):
        given = {entry.get("name"): entry.get("template") for entry in given}
    if isinstance(given, dict) and all(isinstance(text, str) for pair in given.items() for text in pair):
        return given
    raise ModelLoadError(f"{where} should be a text, or a list of templates with name and template")


def read_text(path: Path) -> str:
    """Return a file's text with its line ends unchanged.

    Raises:
        ModelLoadError: it can't be read, or is not UTF-8.
    """
    refuse_stand_in(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; {} if the file does not exist.

    Raises:
        ModelLoadError: it can't be read, or holds something else.
    """
    if not path.is_file():
        return {}
    text = read_text(path)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} should hold a JSON object, but holds a {type(value).__name__}")
    return value
