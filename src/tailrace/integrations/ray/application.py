"""The application that `serve run tailrace.integrations.ray:app` builds: an ingress in front of replicas."""

from __future__ import annotations

import math
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from tailrace.integrations.ray.ingress import Ingress
from tailrace.integrations.ray.replica import Replica
from tailrace.integrations.ray.router import PrefixRouter
from tailrace.integrations.ray.settings import Settings, read_ray_settings

LAST_WORDS_S = 5  # beyond the drain
HEALTH_EVERY_S = 2.0
INGRESS_CPUS = 0.1  # what Ray reserves; an ingress is limited by the network
INGRESS_REQUESTS = 100_000  # at once; requests that wait for a replica wait there


def build_application(args: dict[str, Any]) -> Application:
    """Return the application with these settings (settings.read).

    Raises:
        ConfigError: naming the field.
    """
    settings = read_ray_settings(args)
    drain_s = math.ceil(settings.tailrace.server.drain_timeout_s) + LAST_WORDS_S
    replicas = serve.deployment(Replica).options(**replica_options(settings), graceful_shutdown_timeout_s=drain_s)
    ingress = serve.deployment(Ingress).options(
        num_replicas=settings.ray.ingresses,
        max_ongoing_requests=INGRESS_REQUESTS,
        ray_actor_options={"num_cpus": INGRESS_CPUS},
        graceful_shutdown_timeout_s=drain_s,
    )
    return ingress.bind(replicas.bind(settings.tailrace), settings)


def replica_options(settings: Settings) -> dict[str, Any]:
    """Return Ray's options for the replicas."""
    ray = settings.ray
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=ray.min_replicas,
            max_replicas=ray.max_replicas,
            target_ongoing_requests=ray.target_ongoing_requests,
            upscale_delay_s=ray.upscale_delay_s,
            downscale_delay_s=ray.downscale_delay_s,
        ),
        "max_ongoing_requests": ray.max_ongoing_requests,
        "health_check_period_s": HEALTH_EVERY_S,
        "ray_actor_options": {"num_cpus": ray.num_cpus, "num_gpus": ray.num_gpus},
        "request_router_config": RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs={"slack": ray.slack, "free_requests": ray.free_requests},
        ),
    }
