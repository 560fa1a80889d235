"""The settings of the application: tailrace's own, by their sections, and the section `ray`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from tailrace.base.config_sources import load_config
from tailrace.config import Config
from tailrace.errors import ConfigError

Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class RaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of replicas, and how requests find theirs.

    - min_replicas, max_replicas: the autoscaler's limits; equal ones fix the number.
    - target_ongoing_requests: the autoscaler's target per replica.
    - upscale_delay_s, downscale_delay_s: how long more or fewer replicas must be needed.
    - max_ongoing_requests: per replica; further requests wait at the ingress.
    - ingresses: processes that find the replica of a prompt and pass answers on.
    - route_blocks: the number of the prompt's first blocks of the KV cache that decide on the replica. 0: the load
      alone decides, and the ingress needs no tokenizer.
    - slack, free_requests: see rendezvous.order_replicas.
    - num_cpus, num_gpus: what Ray reserves for a replica.
    """

    min_replicas: Count = 1
    max_replicas: Count = 1
    target_ongoing_requests: Annotated[float, msgspec.Meta(gt=0)] = 32.0
    upscale_delay_s: Amount = 30.0
    downscale_delay_s: Amount = 600.0
    max_ongoing_requests: Count = 256
    ingresses: Count = 1
    route_blocks: Annotated[int, msgspec.Meta(ge=0)] = 32
    slack: Annotated[float, msgspec.Meta(ge=1)] = 1.25
    free_requests: Annotated[int, msgspec.Meta(ge=0)] = 8
    num_cpus: Amount = 1.0
    num_gpus: Amount = 0.0


class Settings(msgspec.Struct, frozen=True):
    """tailrace's own settings, and Ray's."""

    tailrace: Config
    ray: RaySettings


def read_ray_settings(args: Mapping[str, Any]) -> Settings:
    """Read the settings from `serve run`'s arguments (`section.field=value`), or from a config file's `args`, which may
    also have tables. `config` names a TOML file of tailrace's own. The environment counts as for `tailrace serve`.

    Raises:
        ConfigError: naming the field.
    """
    tables: dict[str, dict[str, Any]] = {}
    given = dict(args)
    file = given.pop("config", None)
    for name, value in given.items():
        section, dot, field = name.partition(".")
        if bool(dot) == isinstance(value, Mapping):
            raise ConfigError(f"{name}: settings are given as section.field=value, such as model.model=NAME")
        tables.setdefault(section, {}).update({field: value} if dot else value)
    try:
        ray = msgspec.convert(tables.pop("ray", {}), RaySettings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"ray: {error}") from error
    if ray.min_replicas > ray.max_replicas:
        raise ConfigError(
            f"ray.min_replicas ({ray.min_replicas}) must be at most ray.max_replicas ({ray.max_replicas})"
        )
    known = set(Config.__struct_fields__)
    if unknown := sorted(tables.keys() - known):
        raise ConfigError(f"unknown section {unknown[0]!r}; there are {', '.join(sorted(known | {'ray'}))}")
    config = load_config(tables, file=file)
    if config.server.front_ends != 1:
        raise ConfigError(f"server.front_ends must be 1 under Ray, got {config.server.front_ends}; see ray.ingresses")
    return Settings(config, ray)
