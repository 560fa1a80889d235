"""Ray Serve's request router by the prompt's prefix. One in each process that sends requests to the replicas."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from tailrace.integrations.ray.rendezvous import preferred


class PrefixRouter(RequestRouter):
    """The replica that the request's `key` prefers and that has not too much to do. Without a key: of two at random,
    the one that has less to do."""

    def initialize_state(self, slack: float, free_requests: int, **others: Any) -> None:
        self._slack, self._free = slack, free_requests

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas: Ray takes the first one that has room."""
        key = None
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # where all are full: else Ray asks without a pause
            key = pending_request.kwargs.get("key")
        if key is None:
            return [random.sample(candidate_replicas, min(2, len(candidate_replicas))), candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        # how many requests this process has sent there, and what the replica last said; unknown counts as none
        loads = {name: self.replica_queue_len_cache.get(r.replica_id) or 0 for name, r in by_name.items()}
        return [[by_name[name]] for name in preferred(key, loads, self._slack, self._free)]
