"""The operator's settings: frozen sections. Each part of the program gets only its own section.

base/config_sources.py reads the settings once, at start. No other code reads flags, the environment or settings files.
"""

from __future__ import annotations

import msgspec

from tailrace.config.engine import (
    WITH_WEIGHTS,
    CacheConfig,
    EngineConfig,
    GrammarConfig,
    ModelConfig,
    Overlap,
    SchedulerConfig,
    SpeculationConfig,
    default_cache_dir,
)
from tailrace.config.section import MODEL_NAME, NAME_RULE, Section, split_commas
from tailrace.config.server import MAX_WEIGHT, ServerConfig, UserConfig

__all__ = [
    "ENGINE_SECTIONS",
    "MAX_WEIGHT",
    "MODELS",
    "MODEL_NAME",
    "NAME_RULE",
    "OTHER_USERS",
    "SECTIONS",
    "TABLES",
    "WITH_WEIGHTS",
    "CacheConfig",
    "Config",
    "EngineConfig",
    "GrammarConfig",
    "ModelConfig",
    "Overlap",
    "SchedulerConfig",
    "Section",
    "ServerConfig",
    "SpeculationConfig",
    "UserConfig",
    "default_cache_dir",
    "split_commas",
]


class Config(Section, frozen=True):
    """Every section.

    models: name → settings of its engine, if the server has several models, or one under another name. Missing settings
    come from the sections.
    """

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    grammar: GrammarConfig = GrammarConfig()
    server: ServerConfig = ServerConfig()
    models: dict[str, EngineConfig] = msgspec.field(default_factory=dict)

    def each(self) -> list[Config]:
        """Return the settings of each model, as if it were the only one."""
        alone = [{name: getattr(engine, name) for name in ENGINE_SECTIONS} for engine in self.models.values()]
        return [msgspec.structs.replace(self, models={}, **sections) for sections in alone] or [self]

    @property
    def engine(self) -> EngineConfig:
        """The sections of the engine process."""
        return EngineConfig(
            model=self.model,
            cache=self.cache,
            scheduler=self.scheduler,
            speculation=self.speculation,
            grammar=self.grammar,
        )


ENGINE_SECTIONS = ("model", "cache", "scheduler", "speculation", "grammar")
SECTIONS = (*ENGINE_SECTIONS, "server")
OTHER_USERS = "other"  # in metrics, the users without samples of their own
TABLES = ("server.users",)  # fields that only the settings file can set
MODELS = "models"
