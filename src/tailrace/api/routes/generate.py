"""POST /generate, SGLang's native endpoint: /v1/completions under other names, with logprobs as triples.

Every event of a stream has all that has come so far, as SGLang's have; what is long is written once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from tailrace.api.body import BodyReader
from tailrace.api.generation import Generation
from tailrace.api.logprobs import Labels, clamp_logprob, iter_top_tokens
from tailrace.api.native_request import completion_of, native_names, prompts_of, scored_from
from tailrace.api.prepare import Prompts, TokenLimit, prepare_request, start_generation
from tailrace.api.received import Received, answers
from tailrace.api.routes.completions import (
    check_report_size,
    encode_prompts,
    make_completion_additions,
    only_echo,
    only_end,
)
from tailrace.api.sampling import num_logprobs
from tailrace.api.sampling_masks import mask_size, written_masks
from tailrace.api.schema.generate import (
    NATIVE_REFUSED,
    Generated,
    NativeEnd,
    NativeMeta,
    NativeRequest,
    TokenLogprob,
)
from tailrace.api.streaming import make_response
from tailrace.params import FIELDS
from tailrace.text.output import Delta
from tailrace.wire.messages import TokenLogprobs

READER = BodyReader(NativeRequest, NATIVE_REFUSED)
FREE_BYTES = 1 << 16  # an event of a stream has so many, whatever is new in it
OLD_BYTES = 64  # and so many that have been sent before for each that is new

_encode = msgspec.json.Encoder().encode


@answers(READER)
async def generate_outputs(received: Received[NativeRequest]) -> Response:
    """An output of each prompt, streamed or whole: a list of them where there are several."""
    ask, service = received.ask, received.service
    prompts: list[Any] = prompts_of(ask)
    with native_names(ask, received.names):
        completion = completion_of(ask, received.names)
        ids = await encode_prompts(received, completion, prompts)
        top = num_logprobs(ask.top_logprobs_num or 0, service.config.max_logprobs, "top_logprobs_num")
        first = scored_from(ask, ids)
        if first is not None:
            completion = msgspec.structs.replace(completion, prompt_logprobs=top, prompt_logprob_start=first)
        wanted = top if ask.return_logprob or ask.return_sampling_mask else None
        named = not {*FIELDS["max_tokens"].aliases}.isdisjoint(ask.sampling_params or ())
        most = 1 if only_echo(completion) else completion.max_tokens
        limit = TokenLimit(most, "max_tokens", ends_with_context=not named)
        prepared = await prepare_request(
            received, completion, Prompts(ids, "prompt"), limit, wanted, lambda: make_completion_additions(completion)
        )
        check_report_size(completion, prepared)
        origin = received.origin("generate", completion)
        generation = start_generation(service, origin.request_id, prepared, origin)
    several = prepared.params.n > 1 or prompts not in ([ask.text], [ask.input_ids])
    outputs = NativeOutputs(service.labels, ask, generation, several, shown=not only_echo(completion))
    return await make_response(
        received.request, generation, outputs.stream(), outputs.collect_outputs, bool(ask.stream)
    )


class JsonArray:
    """An array of JSON that grows. Its items are written once."""

    def __init__(self) -> None:
        self._items = bytearray()

    def __len__(self) -> int:
        """Bytes."""
        return len(self._items)

    def extend(self, items: list[Any]) -> None:
        """Write more items."""
        if items:
            self._items += (b"," if self._items else b"") + _encode(items)[1:-1]

    def whole(self) -> msgspec.Raw:
        """The array so far."""
        return msgspec.Raw(b"[%b]" % self._items)


@dataclass(slots=True)
class NativeOutput:
    """One output so far. sent: its size when it was last sent. end: the delta that ended it."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    tokens: JsonArray = field(default_factory=JsonArray)
    tops: JsonArray = field(default_factory=JsonArray)
    masks: JsonArray = field(default_factory=JsonArray)
    logprobs: JsonArray = field(default_factory=JsonArray)
    sent: int = 0
    end: Delta | None = None

    @property
    def size(self) -> int:
        """Bytes, about."""
        lists = len(self.tokens) + len(self.tops) + len(self.masks) + len(self.logprobs)
        return len(self.text) + 8 * len(self.ids) + lists


class NativeOutputs:
    """The answer as it comes. several: it is a list. shown: tokens are; else the engine's one token is left out."""

    def __init__(
        self, labels: Labels, ask: NativeRequest, generation: Generation, several: bool, shown: bool = True
    ) -> None:
        self._labels, self._ask, self._generation, self._several = labels, ask, generation, several
        self._shown = shown
        self._outputs = [NativeOutput() for _ in range(len(generation.prompts) * generation.params.n)]
        self._inputs: dict[int, tuple[JsonArray, JsonArray]] = {}  # per prompt, from its first delta on

    async def stream(self) -> AsyncGenerator[Generated, None]:
        """Yield each output whenever `_is_due` is true; at its end if the request does not stream.

        Raises:
            TailraceError: see Generation.deltas.
        """
        generation, each = self._generation, 1 + (self._generation.params.logprobs or 0)
        with native_names(self._ask, {}):
            async with aclosing(generation.deltas()) as deltas:
                async for index, found in deltas:
                    delta = found if self._shown else only_end(found)
                    p = index // generation.params.n
                    if p not in self._inputs:
                        size = each * len(generation.prompt_logprobs(p) or ())
                        self._inputs[p] = await generation.run(partial(self._written_input, p), size)
                    size = each * len(delta.token_ids) + mask_size(delta)
                    await generation.run(partial(self._add_delta, self._outputs[index], delta), size)
                    if self._is_due(index):
                        self._outputs[index].sent = self._outputs[index].size
                        yield self._so_far(index)

    async def collect_outputs(self, chunks: AsyncGenerator[Generated, None]) -> Any:
        """The whole answer."""
        found = {chunk.index: msgspec.structs.replace(chunk, index=UNSET) async for chunk in chunks}
        return [found[index] for index in range(len(found))] if self._several else found[UNSET]

    def _is_due(self, index: int) -> bool:
        """The output is sent now: its beginning, its end, and in between whenever enough is new.

        An event has all that came before. Were there one per token, the bytes of a stream would grow with the square
        of its length: 5 GB for 4,096 tokens with 20 alternatives each. So they grow with the length: at most OLD_BYTES
        of old for one of new, but for the first FREE_BYTES of an event.
        """
        output = self._outputs[index]
        if output.end is not None or not self._ask.stream:
            return output.end is not None
        new, again = output.size - output.sent, sum(map(len, self._inputs[index // self._generation.params.n]))
        return new > 0 and (not output.sent or output.sent + again <= FREE_BYTES + OLD_BYTES * new)

    def _add_delta(self, output: NativeOutput, delta: Delta) -> None:
        params, entries = self._generation.params, delta.logprobs or ()
        output.text += delta.text
        output.ids += delta.token_ids
        output.end = delta if delta.finish_reason is not None else None
        if self._ask.return_logprob:
            output.tokens.extend(self._label_tokens(zip(entries, delta.token_ids, strict=True)))
            output.tops.extend([self._label_likeliest(one, top) for one in entries] if (top := params.logprobs) else [])
        if self._ask.return_sampling_mask:
            output.masks.extend(written_masks(delta))
            if params.logprobs_mode == "processed":
                output.logprobs.extend([clamp_logprob(one.logprob) for one in entries])

    def _written_input(self, p: int) -> tuple[JsonArray, JsonArray]:
        """The logprobs of a prompt, and those of the likeliest. None of a prompt that was cut before it was read."""
        generation, tokens, tops = self._generation, JsonArray(), JsonArray()
        first = -1 if self._ask.logprob_start_len is None else self._ask.logprob_start_len
        ids = generation.prompts[p][first:] if first >= 0 and self._ask.return_logprob else []
        scores = generation.prompt_logprobs(p)
        if scores is None and len(ids) < 2:  # the first token has no logprob
            scores = []
        if ids and scores is not None:
            tokens.extend(self._label_tokens(zip([None, *scores], ids, strict=True)))
            tops.extend([None, *(self._label_likeliest(one, generation.params.logprobs or 0) for one in scores)])
        return tokens, tops

    def _so_far(self, index: int) -> Generated:
        ask, generation, output = self._ask, self._generation, self._outputs[index]
        p, params = index // generation.params.n, generation.params
        meta: dict[str, Any] = {}
        if ask.return_logprob:
            tokens, tops = self._inputs[p]
            meta |= {"input_token_logprobs": tokens.whole(), "output_token_logprobs": output.tokens.whole()}
            if params.logprobs:
                meta |= {"input_top_logprobs": tops.whole(), "output_top_logprobs": output.tops.whole()}
        if ask.return_sampling_mask:
            meta["output_token_sampling_mask"] = output.masks.whole()
            if params.logprobs_mode == "processed":
                meta["output_token_sampling_logprobs"] = output.logprobs.whole()
        suffix = f"_{index}" if self._several else ""
        meta |= {"id": f"{generation.id}{suffix}", "finish_reason": end_of(output)}
        meta |= {"prompt_tokens": len(generation.prompts[p]), "completion_tokens": len(output.ids)}
        described = NativeMeta(**meta, cached_tokens=generation.cached_tokens(p))
        return Generated(output.text, list(output.ids), described, index if self._several else UNSET)

    def _label_tokens(self, found: Iterable[tuple[TokenLogprobs | None, int]]) -> list[TokenLogprob]:
        return [
            self._make_token_logprob(None if entry is None else clamp_logprob(entry.logprob), id) for entry, id in found
        ]

    def _label_likeliest(self, entry: TokenLogprobs, top: int) -> list[TokenLogprob]:
        return [self._make_token_logprob(clamp_logprob(logprob), id) for id, logprob in iter_top_tokens(entry, top)]

    def _make_token_logprob(self, logprob: float | None, id: int) -> TokenLogprob:
        return logprob, id, self._labels.names[id][0] if self._ask.return_text_in_logprobs else None


def end_of(output: NativeOutput) -> NativeEnd | None:
    """Why it ended, in SGLang's words; None: it goes on."""
    if (end := output.end) is None:
        return None
    if end.finish_reason == "length":
        return NativeEnd("length", length=len(output.ids))
    if end.finish_reason == "stop":
        last = output.ids[-1] if output.ids else UNSET  # close_in_time may end a text before its first token
        return NativeEnd("stop", matched=last if end.stop_reason is None else end.stop_reason)
    return NativeEnd("abort", message=str(end.stop_reason or end.finish_reason))
