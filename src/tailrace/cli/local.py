"""From settings to what the commands need: the model's folder, its tokenizer, and the engine's settings with the folder in."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tailrace.config import Config, EngineConfig
from tailrace.models import defaults, resolve
from tailrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Local:
    """A model that is here."""

    name: str
    engine: EngineConfig
    tokenizer: Tokenizer
    defaults: dict[str, float | int]


def prepare(config: Config) -> Local:
    """Fetch and convert what is not there yet, load the tokenizer.

    Raises:
        ModelLoadError: it can't be had.
    """
    if (config.model.model or "").startswith("scripted:"):  # logits from a script, the default model's tokenizer
        found = resolve(msgspec.structs.replace(config.model, model=None))
        engine, name = config.engine, config.model.name or config.model.model or ""
    else:
        found = resolve(config.model)
        name = found.name
        model = msgspec.structs.replace(config.model, model=str(found.folder), name=name)
        engine = msgspec.structs.replace(config.engine, model=model)
    tokenizer = Tokenizer.load(found.folder, config.model.trust_remote_code)
    return Local(name, engine, tokenizer, defaults(found.folder))
