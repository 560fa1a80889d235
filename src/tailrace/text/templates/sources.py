"""Where a model's folder keeps its chat templates. A model may have several, by name: `default`, `tool_use`, `rag`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tailrace.base.json_files import read_optional_object, read_text
from tailrace.errors import ModelLoadError

DEFAULT, WITH_TOOLS, WITH_DOCUMENTS = "default", "tool_use", "rag"
MAX_TEMPLATES = 16
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
    if os.path.lexists(folder / FILE):
        found[DEFAULT] = read_text(folder / FILE)
    paths = sorted((folder / FOLDER).glob("*.jinja"))
    refuse_many(len(paths), f"{folder / FOLDER}")
    for path in paths:
        found[path.stem] = read_text(path)
    if found:
        return found
    for name in ("tokenizer_config.json", *PROCESSORS):
        held = config if name == "tokenizer_config.json" else read_optional_object(folder / name)
        if given := held.get("chat_template"):
            return _name_templates(given, f"{folder / name}: chat_template")
    return {}


def refuse_many(count: int, where: str) -> None:
    """Raise ModelLoadError if there are more templates than a model has use for. Each may take some time to load."""
    if count > MAX_TEMPLATES:
        raise ModelLoadError(f"{where}: {count} chat templates are too many, {MAX_TEMPLATES} is the most")


def _name_templates(given: Any, where: str) -> dict[str, str]:
    """Return one template, or several, by name. Several come as {name: template} or [{"name": …, "template": …}]."""
    if isinstance(given, str):
        return {DEFAULT: given}
    if isinstance(given, list) and all(isinstance(entry, dict) for entry in given):
        given = {entry.get("name"): entry.get("template") for entry in given}
    refuse_many(len(given) if isinstance(given, dict) else 0, where)
    if isinstance(given, dict) and all(isinstance(text, str) for pair in given.items() for text in pair):
        return given
    raise ModelLoadError(f"{where} should be a text, or a list of templates with name and template")
