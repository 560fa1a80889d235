"""The common part of the commands that run a model themselves: they find the model, load its tokenizer, start an
engine, and read its answers."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tailrace.base.logs import LEVEL_VARIABLE
from tailrace.cli.memory_fit import fit_into_memory
from tailrace.config import WITH_WEIGHTS, Config, ModelConfig, SpeculationConfig
from tailrace.errors import BY_CODE, ConfigError, EngineError, ModelLoadError
from tailrace.models import LocalModel, resolve
from tailrace.models.hub import fetch_head
from tailrace.text.chosen_template import load_tokenizer
from tailrace.text.output import Delta, TextStream
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tokenizer_check import check_tokenizer
from tailrace.wire.messages import Failed, Finished, PromptLogprobs, Replayed, SequenceEvent, Tokens
from tailrace.wire.sync_client import SyncClient

log = logging.getLogger(__name__)

SCRIPTED = "scripted:"  # a model without weights, for tests and egress benchmarks; it borrows the default's tokenizer


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """Settings whose model is on this machine, and its tokenizer.

    asked: the model's settings as they were given. Without a model they mean the default one, whose folder `config`
    names.
    """

    config: Config
    folder: Path
    name: str
    tokenizer: Tokenizer
    asked: ModelConfig


def prepare(config: Config, progress: bool = True) -> PreparedModel:
    """Resolve the model (fetch, convert) and load its tokenizer.

    Raises:
        ModelLoadError: the model can't be loaded. ConfigError: the settings name several models.
    """
    if config.models:
        raise ConfigError(f"one model is run here, and the settings name others: {', '.join(config.models)}")
    model = asked = config.model
    if scripted(config):
        found = resolve(ModelConfig(cache_dir=model.cache_dir, dtype=model.dtype), progress)
        found = LocalModel(found.folder, model.name or str(model.model))
        model = msgspec.structs.replace(model, name=found.name)
    else:
        found = resolve(model, progress)
        if model.model is not None:  # not the default model
            check_tokenizer(found.folder, model.trust_remote_code)
        model = msgspec.structs.replace(model, model=str(found.folder), name=found.name)
    tokenizer = load_tokenizer(found.folder, model)
    config = msgspec.structs.replace(config, model=model, speculation=with_weights(config, tokenizer, progress))
    return PreparedModel(config, found.folder, found.name, tokenizer, asked)


def prepare_all(config: Config) -> list[PreparedModel]:
    """Prepare each model to be served. Several models are first checked against the memory, before any is loaded.

    Raises:
        ModelLoadError: a model can't be loaded. ConfigError: they don't fit.
    """
    found = [prepare(one) for one in config.each()]
    names = [name for one in found for name in (one.name, *one.config.model.other_names, *one.config.model.adapters)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"each model, alias and adapter needs a name of its own, and several have {', '.join(sorted(twice))}"
        )
    if len(found) == 1:
        return found
    engines = fit_into_memory(
        [(one.name, one.config.engine, None if scripted(one.config) else one.folder) for one in found]
    )
    return [
        replace(one, config=msgspec.structs.replace(one.config, cache=engine.cache))
        for one, engine in zip(found, engines, strict=True)
    ]


def scripted(config: Config) -> bool:
    """Return whether the model is a script, without weights."""
    return (config.model.model or "").startswith(SCRIPTED)


def with_weights(config: Config, tokenizer: Tokenizer, progress: bool) -> SpeculationConfig:
    """Return the settings of speculation, with the drafter's weights on this machine.

    Raises:
        ModelLoadError: they can't be fetched or loaded. ConfigError: a draft model has another vocabulary than the
            model, or the settings have something that the drafter has no use for.
    """
    speculation, model = config.speculation, config.model
    refuse_formats(speculation)
    speculation.check_lookup()
    if speculation.model is None or speculation.drafter not in WITH_WEIGHTS:
        return speculation
    if speculation.drafter == "draft_model":
        from tailrace.drafting.model import check_vocabulary

        try:
            folder = resolve(draft_settings(speculation, model), progress).folder
        except (ModelLoadError, ConfigError) as error:
            raise type(error)(f"the draft model (--draft-model): {error}") from error
        check_tokenizer(folder, model.trust_remote_code)
        check_vocabulary(*(t.tokens for t in (tokenizer, Tokenizer.load(folder, model.trust_remote_code, limits=None))))
    else:
        folder = Path(speculation.model).expanduser()
        if not folder.is_dir():
            folder = fetch_head(speculation.model, progress=progress)
    return msgspec.structs.replace(speculation, model=str(folder))


def refuse_formats(speculation: SpeculationConfig) -> None:
    """Raise ConfigError for a format of a draft model's weights where there is no draft model."""
    plain = SpeculationConfig()
    for name in ("weights", "quantize"):
        value = getattr(speculation, name)
        if value != getattr(plain, name) and (speculation.drafter != "draft_model" or speculation.model is None):
            raise ConfigError(
                f"speculation.{name} {value} (--draft-{name}) is for --drafter draft_model with --draft-model"
            )


def draft_settings(speculation: SpeculationConfig, model: ModelConfig) -> ModelConfig:
    """Return the settings by which a draft model is found and converted."""
    return ModelConfig(
        model=speculation.model,
        cache_dir=model.cache_dir,
        dtype=model.dtype,
        device=model.device,
        weights=speculation.weights,
        quantize=speculation.quantize,
    )


@contextmanager
def engine(prepared: PreparedModel):
    """Provide a SyncClient with its own engine process, which ends with the block. No adapters are loaded, since these
    commands have no way to choose one.

    Raises:
        TailraceError: the engine does not start.
    """
    os.environ.setdefault(LEVEL_VARIABLE, "warning")  # a terminal is for the answers
    settings = prepared.config.engine
    if settings.model.lora or settings.model.lora_folder:
        log.warning("model.lora: adapters are for tailrace serve; none is loaded here")
        settings = msgspec.structs.replace(
            settings, model=msgspec.structs.replace(settings.model, lora="", lora_folder=None)
        )
    client = SyncClient(settings, prepared.config.server.start_timeout_s)
    try:
        client.start()
        yield client
    finally:
        client.close()


def delta_of(text: TextStream, event: SequenceEvent) -> Delta | None:
    """Return the text that an event of the engine adds; None for events without text (logprobs of the prompt).

    Raises:
        TailraceError: the engine reports that the sequence failed.
    """
    match event:
        case Tokens():
            return text.feed(event.token_ids, event.logprobs, event.explanations, event.survivors)
        case Finished():
            return text.flush(event.reason, event.stop_token_id)
        case Failed():
            raise BY_CODE.get(event.code, EngineError)(event.message)
        case PromptLogprobs() | Replayed():
            return None
