"""Ray Serve's request router by the prompt's prefix. Each process that sends requests to the replicas has one."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from tailrace.integrations.ray.rendezvous import order_replicas


class PrefixRouter(RequestRouter):
    """A router that chooses the replica preferred by the request's `key`, unless its load is too high. Without a key it
    chooses the less loaded of two random replicas.

    A replica's load is its last report, but at least the number of requests that this process has open there. Ray
    forgets a report after ten seconds, but a stream may take longer.
    """

    def initialize_state(self, slack: float, free_requests: int, **others: Any) -> None:
        self._slack, self._free = slack, free_requests
        self._open: defaultdict[ReplicaID, set[str]] = defaultdict(set)  # requests of this process

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return ranks of replicas. Ray takes the first replica that has room."""
        key = None
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # else Ray asks full replicas without a pause
            key = pending_request.kwargs.get("key")
        if key is None:
            return [random.sample(candidate_replicas, min(2, len(candidate_replicas))), candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: self._measure_load(replica.replica_id) for name, replica in by_name.items()}
        return [[by_name[name]] for name in order_replicas(key, loads, self._slack, self._free)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        self._open[replica_id].add(pending_request.metadata.internal_request_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._open[replica_id].discard(internal_request_id)
        if not self._open[replica_id]:
            del self._open[replica_id]

    def _measure_load(self, replica_id: ReplicaID) -> int:
        own = len(self._open[replica_id]) if replica_id in self._open else 0
        return max(own, self.replica_queue_len_cache.get(replica_id) or 0)
