"""What both generators of chunks need: what every chunk begins with, and how a delta becomes one or two pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.beam import BeamRequest
from tailrace.api.generate import Generation
from tailrace.api.schema.common import GenerateRequest, Usage
from tailrace.api.service import Service
from tailrace.text.output import Delta

Work = Generation | BeamRequest  # what has deltas, and is counted


class ChunkHead(TypedDict):
    """The fields that all chunks of an answer share."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def head(service: Service, id: str) -> ChunkHead:
    """Of an answer that begins now."""
    return {
        "id": id,
        "created": int(time.time()),
        "model": service.model_name,
        "system_fingerprint": service.fingerprint,
    }


def effective(request: GenerateRequest, generation: Work) -> dict[str, Any] | UnsetType:
    """What is really sampled with, defaults and presets included, if the request asks to be told. The seed only if one was given."""
    return msgspec.to_builtins(generation.params, str_keys=True) if request.return_sampling_params else UNSET


@dataclass(frozen=True, slots=True)
class UsageOf:
    """What the `usage` field of a chunk says: nothing, null (it comes at the end), or the counts so far."""

    request: GenerateRequest
    generation: Work

    def so_far(self) -> Usage | UnsetType | None:
        """For a chunk on the way."""
        if self.request.reports_usage_always:
            return self.whole()
        return None if self.request.reports_usage else UNSET

    def whole(self) -> Usage:
        """The counts. Where no token was asked for, the one that was drawn all the same does not count."""
        usage = self.generation.usage
        if self.request.max_tokens != 0:
            return usage
        return msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)


def pieces(delta: Delta, with_ids: bool) -> Iterator[Delta]:
    """The delta as it goes out: nothing if there is nothing to see; text and end apart, because some clients read no
    text from the chunk that has the finish reason."""
    has_content = bool(delta.text or delta.logprobs or (with_ids and delta.token_ids))
    if delta.finish_reason is None:
        if has_content:
            yield delta
        return
    if has_content:
        yield msgspec.structs.replace(delta, finish_reason=None, stop_reason=None)
    yield Delta("", (), None, finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
