"""Records of why tokens came, with the text of their tokens, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tailrace.api.logprobs import Labels, label_bytes
from tailrace.api.schema.explain import TokenExplanation
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.explain.sentences import sentences_of
from tailrace.text.output import Delta, TextStream

if TYPE_CHECKING:
    from tailrace.api.stored import OutputOrigin
    from tailrace.text.tokenizer import Tokenizer

CHARS = 16  # writing one shown token of a record costs as much as tokenizing so many characters

_encode = msgspec.json.Encoder().encode


def encode_records(labels: Labels, piece: Delta) -> list[msgspec.Raw]:
    """The records of a piece's tokens, without those behind a stop: one per entry of its logprobs, were they asked
    for."""
    return [encode_record(labels, record, data) for record, data in records_of(piece)]


def records_of(piece: Delta) -> Iterator[tuple[Explanation, bytes | None]]:
    """Each delivered token's, and the bytes that the text has of the token; None: all of them."""
    for place, record in enumerate(piece.explanations or ()):
        if place not in piece.spelt:
            yield record, None
        elif (data := piece.spelt[place]) is not None:
            yield record, data


def encode_record(labels: Labels, record: Explanation, data: bytes | None = None) -> msgspec.Raw:
    """A TokenExplanation. data: as in `records_of`."""
    label, own, _ = labels.names[record.token_id]
    token, spelt = (label_bytes(data)[0] if data else label), (own if data is None else list(data))
    return msgspec.Raw(
        _encode(
            TokenExplanation(
                *msgspec.structs.astuple(record),
                token=token,
                bytes=spelt,
                tokens=[labels.names[id][0] for id in record.ids],
                sentences=sentences_of(record, lambda id: labels.names[id][0]),
            )
        )
    )


def spell_output(
    tokenizer: Tokenizer, output: OutputOrigin, eos_token_ids: Sequence[int], stop_token_id: int | None
) -> Mapping[int, bytes | None]:
    """Return, by place in a whole output, the bytes that the answer's text has of a token, if they are not its own.

    stop_token_id: the token that ended the output, if one did.
    """
    params = msgspec.structs.replace(output.params, explain=ExplainOptions(), output_kind="cumulative")
    stream = TextStream(tokenizer, params, eos_token_ids, output.prompt)
    whole = stream.feed(output.output)
    if not stream.finished:
        whole = stream.flush("length" if stop_token_id is None else "stop", stop_token_id)
    return whole.spelt


def size_of(piece: Delta) -> int:
    """What it costs to write a piece's records, in characters."""
    return CHARS * sum(len(record.ids) * (1 + len(record.refinements)) for record in piece.explanations or ())
