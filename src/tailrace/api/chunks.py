"""What the generators of chunks share: the fields of every chunk, the usage, and how a delta becomes one or two
chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.api.beam_search import BeamRequest
from tailrace.api.generation import Generation
from tailrace.api.prompt_progress import show_progress
from tailrace.api.schema.common import GenerateRequest, Timings, Usage
from tailrace.api.service import Service
from tailrace.api.token_answer import TokenAnswer
from tailrace.text.output import Delta

C = TypeVar("C")

Work = Generation | BeamRequest | TokenAnswer  # a request that is being generated, or was


class ChunkHead(TypedDict):
    """The fields that all chunks of an answer share."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def make_chunk_head(service: Service, id: str) -> ChunkHead:
    """The shared fields of an answer that begins now."""
    return {
        "id": id,
        "created": int(time.time()),
        "model": service.model_name,
        "system_fingerprint": service.fingerprint,
    }


def dump_params(request: GenerateRequest, generation: Work) -> dict[str, Any] | UnsetType:
    """The parameters really used, with defaults and presets, if the request asks for them. The seed only if one was
    given."""
    return msgspec.to_builtins(generation.params, str_keys=True) if request.return_sampling_params else UNSET


@dataclass(frozen=True, slots=True)
class UsageReporter:
    """The `usage` field of chunks: absent, null (usage comes at the end), or the counts so far."""

    request: GenerateRequest
    generation: Work

    def so_far(self) -> Usage | UnsetType | None:
        """The field of a chunk before the end."""
        if self.request.reports_usage_always:
            return self.whole()
        return None if self.request.reports_usage else UNSET

    def at_end(self) -> Usage | UnsetType:
        """The field of the last chunk."""
        return self.whole() if self.request.reports_usage else UNSET

    @property
    def has_last_chunk(self) -> bool:
        """A chunk without choices ends the answer."""
        return self.request.reports_usage or self.timings is not UNSET

    @property
    def timings(self) -> Timings | UnsetType:
        """How long the answer took, if the request asks for it."""
        return self.generation.timings if getattr(self.request, "timings_per_token", None) else UNSET

    def whole(self) -> Usage:
        """The counts. With max_tokens 0 the engine samples one token all the same; it does not count."""
        usage = self.generation.usage
        if self.request.max_tokens != 0:
            return usage
        return msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)


def split_delta(delta: Delta, with_ids: bool) -> Iterator[Delta]:
    """The delta as one or two pieces, none if it shows nothing. Text and end are separate: some clients read no text
    from the chunk with the finish reason."""
    reported = delta.logprobs or delta.explanations or delta.survivors
    has_content = bool(delta.text or reported or (with_ids and delta.token_ids))
    if delta.finish_reason is None:
        if has_content:
            yield delta
        return
    if has_content:
        yield msgspec.structs.replace(delta, finish_reason=None, stop_reason=None)
    yield Delta("", (), None, finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)


def add_progress(
    service: Service, ask: Any, generation: Work, chunks: AsyncGenerator[C, None], kind: Callable[..., C]
) -> AsyncGenerator[C, None]:
    """The chunks of an answer; before the first one, if asked for, chunks of this kind with the prompt's progress."""
    if not ask.return_progress or not isinstance(generation, Generation):
        return chunks
    head = make_chunk_head(service, generation.id)
    return show_progress(chunks, generation.progress, lambda report: kind(**head, choices=[], prompt_progress=report))
