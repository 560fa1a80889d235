"""The chat template that the operator chose, and the variables that all its conversations get. Loads a tokenizer with
both. Knows nothing of requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailrace.base.json_files import read_text
from tailrace.base.nearest import suggest_name
from tailrace.config import ModelConfig
from tailrace.errors import ConfigError, ModelLoadError, format_json
from tailrace.text.templates.program import limits_of
from tailrace.text.tokenizer import Tokenizer

# arguments that this server gives to the template, and those that would let a caller choose the template
RESERVED = frozenset(
    {
        "messages",
        "conversation",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "unfinished",
        "chat_template",
        "tokenize",
        "return_tensors",
        "return_dict",
        "padding",
        "truncation",
    }
)
FILE = "model.chat_template (--chat-template)"
VARIABLES = "model.chat_template_kwargs (--chat-template-kwargs)"


def load_tokenizer(folder: str | Path, model: ModelConfig) -> Tokenizer:
    """Load a folder's tokenizer with the operator's chat template and its variables.

    Raises:
        ConfigError: the file can't be read, or the variables are no JSON object, or the template does not read one.
        ModelLoadError: see Tokenizer.load.
    """
    variables = read_variables(model.chat_template_kwargs)
    source = None if model.chat_template is None else read_template(model.chat_template)
    tokenizer = Tokenizer.load(folder, model.trust_remote_code, limits_of(model), source, variables)
    for name in variables:
        if not tokenizer.template_reads(name):
            known = sorted(tokenizer.template_variables - RESERVED)
            raise ConfigError(
                f"{VARIABLES}: the model's chat template does not read {format_json(name)}"
                f"{suggest_name(name[:64], known)}; it reads {', '.join(known) or 'none'}"
            )
    return tokenizer


def read_template(path: str) -> str:
    """Return the text of the operator's file.

    Raises:
        ConfigError: it can't be read, or it is empty.
    """
    try:
        text = read_text(Path(path).expanduser())
    except ModelLoadError as error:
        raise ConfigError(f"{FILE}: {error}") from error
    if not text.strip():
        raise ConfigError(f"{FILE}: {path} is empty")
    return text


def read_variables(text: str) -> dict[str, Any]:
    """Return the operator's variables of chat templates. text: a JSON object, or "".

    Raises:
        ConfigError: naming the setting and the variable.

    >>> read_variables('{"enable_thinking": false}')
    {'enable_thinking': False}
    """
    if not text:
        return {}
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ConfigError(f"{VARIABLES} must be a JSON object, got {format_json(text, 200)}")
    for name in given:
        if name in RESERVED:
            raise ConfigError(f"{VARIABLES} must not hold {format_json(name)}")
    return given
