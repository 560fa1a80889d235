"""Ray Serve's request router by the prompt's prefix. One in each process that sends requests to the replicas."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from tailrace.integrations.ray.rendezvous import preferred


class PrefixRouter(RequestRouter):
    """The replica that the request's `key` prefers and that has not too much to do. Without a key: of two at random,
    the one that has less to do.

    What a replica has to do is what it last said, and at least what this process has sent there and has no end of:
    Ray forgets what a replica said after ten seconds, and a stream may take longer.
    """

    def initialize_state(self, slack: float, free_requests: int, **others: Any) -> None:
        self._slack, self._free = slack, free_requests
        self._open: defaultdict[ReplicaID, set[str]] = defaultdict(set)  # requests of this process

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
        loads = {name: self._load(replica.replica_id) for name, replica in by_name.items()}
        return [[by_name[name]] for name in preferred(key, loads, self._slack, self._free)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        self._open[replica_id].add(pending_request.metadata.internal_request_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._open[replica_id].discard(internal_request_id)
        if not self._open[replica_id]:
            del self._open[replica_id]

    def _load(self, replica_id: ReplicaID) -> int:
        own = len(self._open[replica_id]) if replica_id in self._open else 0
        return max(own, self.replica_queue_len_cache.get(replica_id) or 0)
