"""Reads the settings. A flag overrides the environment (TAILRACE_<SECTION>_<FIELD>), which overrides the file (TOML,
one table per section), which overrides the default."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tailrace.base.nearest import suggest_name
from tailrace.base.settings_errors import convert_sections, name_variable
from tailrace.config import (
    ENGINE_SECTIONS,
    MODEL_NAME,
    MODELS,
    NAME_RULE,
    OTHER_USERS,
    SECTIONS,
    TABLES,
    CacheConfig,
    Config,
    EngineConfig,
    GrammarConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)
from tailrace.errors import ConfigError, take_first_line


def load_config(
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    env: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Config:
    """Return the settings from flags ({section: {field: value}}; None is skipped), environment and file, in that
    precedence.

    Settings of one model ({"models": {name: {section: {field: value}}}} in flags and file) override the common ones. A
    common model.model applies to the models that set none.

    Raises:
        ConfigError: an unknown table or field, a wrong type, a file that can't be read, or a model that would not be
            served; the message names the field.
    """
    merged: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, MODELS)}
    if file is not None:
        try:
            tables = tomllib.loads(Path(file).read_bytes().decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: {take_first_line(error)}") from error
        for name, table in tables.items():
            check_table(file, name, table)
            (merge_models if name == MODELS else dict.update)(merged[name], table)
    env = os.environ if env is None else env
    for name in SECTIONS:
        for field in list_fields(name):
            value = env.get(name_variable(name, field))
            if value is not None:
                merged[name][field] = value
    for name, given in (flags or {}).items():
        if name == MODELS:
            merge_models(merged[MODELS], given)
            continue
        merged[name].update({field: value for field, value in given.items() if value is not None})
    check_taken(merged)
    check_keys(merged["server"].get("api_keys"))
    check_users(merged["server"].get("users"))
    models = {name: model_sections(name, own, merged) for name, own in merged.pop(MODELS).items()}
    common = convert_sections(merged, Config)
    own = {name: convert_sections(each, EngineConfig, (MODELS, name)) for name, each in models.items()}
    return msgspec.structs.replace(common, models=own)


def check_table(file: str | Path, name: str, table: object) -> None:
    """Raise ConfigError unless a file's table is one that there is, with fields that there are."""
    known = (*SECTIONS, MODELS)
    if name not in known:
        raise ConfigError(f"{file}: unknown table [{name}]{suggest_name(name, known)}; there are {', '.join(known)}")
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {name} must be a table, [{name}], got {table!r:.80}")
    fields = tuple(table) if name == MODELS else getattr(Config(), name).__struct_fields__
    for field in table:
        if field not in fields:
            hint = suggest_name(field, fields)
            raise ConfigError(f"{file}: there is no setting {field!r:.80} in [{name}]{hint}")


def merge_models(models: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Add the settings of single models: {name: {section: {field: value}}}."""
    for name, own in given.items():
        if not isinstance(own, Mapping) or not all(isinstance(table, Mapping) for table in own.values()):
            raise ConfigError(f"models.{name} must hold tables, one per section: {', '.join(ENGINE_SECTIONS)}")
        for section, table in own.items():
            models.setdefault(name, {}).setdefault(section, {}).update(table)
        models.setdefault(name, {})


def check_taken(merged: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError for a model without a name that no model by name uses: it would not be served."""
    unnamed, named = merged["model"].get("model"), merged[MODELS]
    if unnamed is not None and named and all("model" in own.get("model", {}) for own in named.values()):
        raise ConfigError(
            f"model.model {unnamed!r:.200} (--model) has no name, and the models with names ({', '.join(named)}; "
            f"--model NAME=MODEL, [models.NAME.model]) have their own: give it one (--model NAME={unnamed:.200}) to "
            "serve it beside them, or leave it out"
        )


def check_keys(keys: Any) -> None:
    """Raise ConfigError if keys were given and one of them is empty, which would leave the server open, or has a
    character that not all clients can send in a header."""
    if isinstance(keys, str) and not all(key.strip() for key in keys.split(",")):
        raise ConfigError(
            "server.api_keys (--api-keys, TAILRACE_SERVER_API_KEYS) has an empty key: name keys, separated by commas, "
            "or leave the setting out to let anybody call"
        )
    if isinstance(keys, str) and not (keys.isascii() and keys.isprintable()):
        raise ConfigError(
            "server.api_keys (--api-keys, TAILRACE_SERVER_API_KEYS) must be printable ASCII characters: a header holds "
            "the key"
        )


def check_users(users: Any) -> None:
    """Raise ConfigError for a user's name that can't be a label, and for a key that is empty, that two users have, or
    that not all clients can send."""
    seen: dict[str, str] = {}
    for name, user in users.items() if isinstance(users, Mapping) else ():
        key = user.get("api_key") if isinstance(user, Mapping) else None
        if not MODEL_NAME.fullmatch(name) or name == OTHER_USERS:
            raise ConfigError(f"server.users: a name must be {NAME_RULE}, and not {OTHER_USERS}, got {name!r:.200}")
        if not isinstance(key, str):
            continue  # the error about its type comes later
        if not (key and key.isascii() and key.isprintable() and key == key.strip()):
            raise ConfigError(
                f"server.users.{name}.api_key must be printable ASCII characters without blanks around: a header holds "
                "the key"
            )
        if key in seen:
            raise ConfigError(f"server.users.{name}.api_key is the key of {seen[key]}")
        seen[key] = name


def model_sections(name: str, own: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of one model: its own fields over the common ones, with its name."""
    if not MODEL_NAME.fullmatch(name):
        raise ConfigError(f"a model's name must be {NAME_RULE}, got {name!r:.200}")
    if "name" in own.get("model", {}) or common["model"].get("name") is not None:
        raise ConfigError(
            f"the model {name!r} has its name already; it takes no other (--served-model-name, model.name)"
        )
    sections = {section: {**common[section], **own.get(section, {})} for section in ENGINE_SECTIONS}
    sections["model"]["name"] = name
    return {**own, **sections}


def list_fields(section: str) -> tuple[str, ...]:
    """Return the names of a section's fields that a flag or a variable can set."""
    fields = {
        "model": ModelConfig,
        "cache": CacheConfig,
        "scheduler": SchedulerConfig,
        "speculation": SpeculationConfig,
        "grammar": GrammarConfig,
        "server": ServerConfig,
    }[section].__struct_fields__
    return tuple(field for field in fields if f"{section}.{field}" not in TABLES)
