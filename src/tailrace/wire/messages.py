"""Everything that crosses between a front end and the engine: tagged msgspec structs, one file, field names on the
wire.

Imports no torch and no zmq. A request is named by (id, epoch): the client counts epochs up, so a reused id never meets
an old output. A request has n sequences, 0 … n−1; each ends in exactly one `Finished` or `Failed`. `Aborted` is the
acknowledgement of an `Abort`, always sent, even for a request that the engine does not know (any more).

    front end → engine   Hello, Submit, Abort, Drain, PeerQuery, PeerReply
    engine → front end   Ready, PromptLogprobs, Tokens, Replayed, Finished, Failed, Aborted, Stats, Drained, PeerCount,
    PeerQuery, PeerReply

Where there are several front ends, the engine also passes on what they ask each other, without looking at it.
(More than 300 lines: all messages in one file.)
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tailrace.explanation import ExplainOptions, Explanation
from tailrace.logprobs import TokenLogprobs
from tailrace.params import SamplingParams

VERSION = 1  # both sides must agree; Hello and Ready carry it

FinishReason = Literal["stop", "length", "abort", "error"]


class Message(msgspec.Struct, tag=True, frozen=True, omit_defaults=True):
    """Base of all; the class name is the tag."""


class Hello(Message, frozen=True):
    """A front end introduces itself; answered by Ready once the model is loaded."""

    version: int = VERSION


class Replay(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output that was given once, to be explained afterwards.

    output: its token ids. positions: which of them, ascending. key: of its noise; None: that of the seed, for sequence
    `index` of the request. what_if: these parameters instead, in the records alone.
    """

    output: list[int]
    positions: list[int]
    options: ExplainOptions
    index: int = 0
    key: int | None = None
    what_if: SamplingParams | None = None


class Submit(Message, frozen=True):
    """Generate. `priority`: smaller runs first; equal ones first come, first served. `arrival_s`: Unix time. `adapter`:
    its name; "" is none. `replay`: nothing is generated, the output is there already."""

    id: str
    epoch: int
    prompt: list[int]
    params: SamplingParams
    priority: int = 0
    arrival_s: float = 0.0
    adapter: str = ""
    replay: Replay | None = None


class Abort(Message, frozen=True):
    """End all sequences of the request, or the one of this index, whatever they are doing. Idempotent. `cause` is for
    logs."""

    id: str
    epoch: int
    cause: str = "client"
    index: int | None = None


class Drain(Message, frozen=True):
    """Take nothing new, finish what runs, then say Drained and exit."""


class ModelInfo(msgspec.Struct, frozen=True):
    """What a front end must know of the model that the engine serves."""

    name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: list[int]


class Ready(Message, frozen=True):
    """The engine can serve."""

    model: ModelInfo
    version: int = VERSION


class Tokens(Message, frozen=True):
    """New tokens of one sequence, in order. `logprobs`, `explanations` and `survivors` have one entry per token if the
    request asked for them. An entry of `survivors` holds the ids that the token was drawn from, ascending int32,
    little-endian; b"" where there were too many. The sequence's first message says how many prompt tokens came from the
    prefix cache, how many seconds its request had waited, and the key of its noise. drafts: two numbers per step since
    the last message that verified drafts: how many were proposed, and how many accepted."""

    id: str
    epoch: int
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    cached_tokens: int = 0
    queued_s: float = 0.0
    drafts: list[int] = []
    key: int | None = None
    explanations: list[Explanation] | None = None
    survivors: list[bytes] | None = None


class PromptLogprobs(Message, frozen=True):
    """Of the prompt's tokens at the places that are asked for (SamplingParams.scored_places), in order, from place
    `start` on; all come before the request's first Tokens. named: for each of them the logprobs of
    prompt_logprob_token_ids; [] where nobody asked."""

    id: str
    epoch: int
    start: int
    entries: list[TokenLogprobs]
    index: int = 0
    named: list[list[float]] = []


Why = Literal["drawn", "forced", "grammar", "ended"]


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token of an output that can't have come there: why, and which one does, if any. "drawn", "forced": another one
    is; "grammar": it is not allowed; "ended": the output was over."""

    position: int
    why: Why
    token: int | None = None


class Replayed(Message, frozen=True):
    """More records of a replay, in order. difference: the first one, once it is known. unsure: tokens so far that are
    not what is drawn, but may have come from drafts. cached_tokens: in the first one, as in Tokens."""

    id: str
    epoch: int
    records: list[Explanation]
    difference: Difference | None = None
    unsure: int = 0
    cached_tokens: int = 0
    index: int = 0


class Finished(Message, frozen=True):
    """Terminal. `stop_token_id` says which id stopped it (EOS or a stop id); its token was sent in Tokens before.
    `cause`: what else did, where only the engine knows: "repetition". drafts: as in Tokens, of steps without a
    token."""

    id: str
    epoch: int
    index: int
    reason: FinishReason
    stop_token_id: int | None = None
    cause: str | None = None
    drafts: list[int] = []


class Failed(Message, frozen=True):
    """Terminal. `code` is that of errors.py; `param` the field at fault, if one is."""

    id: str
    epoch: int
    index: int
    code: str
    message: str
    param: str | None = None


class Aborted(Message, frozen=True):
    """Acknowledges an Abort: nothing of (id, epoch), or of that one sequence, will come after this. `known` is False if
    it had ended before."""

    id: str
    epoch: int
    known: bool
    index: int | None = None


# upper edges of the histograms of durations in Stats, in seconds: fine enough that the last bucket shows how bad the
# worst case was
DURATION_EDGES_S = (
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    20.0,
    60.0,
)


class Stats(Message, frozen=True):
    """The engine's counters and gauges, sent about once a second and after the last sequence ended."""

    running: int = 0
    waiting: int = 0
    slots_total: int = 0
    slots_used: int = 0
    blocks_total: int = 0
    blocks_used: int = 0  # held by running sequences; cached but free blocks do not count
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    rewinds: int = 0  # banned strings taken back
    drafted_tokens: int = 0  # guessed ahead
    accepted_tokens: int = 0  # of these, so many stood
    drafted_at: list[int] = []  # the same by their place in the draft
    accepted_at: list[int] = []
    bad_rows: dict[str, int] = {}  # rows of logits that can't be sampled from, by what is wrong
    finished: dict[str, int] = {}  # by reason
    step_ms: dict[str, float] = {}  # running totals per part of the step; where steps overlap, parts do
    step_counts: dict[
        str, list[int]
    ] = {}  # per part, how often it took up to each of DURATION_EDGES_S; at the end, longer
    decode_steps: dict[str, int] = {}  # those without prefills: "verify" where guesses were verified, else "plain"
    decode_ms: dict[
        str, float
    ] = {}  # the same: from the forward pass to the draws; steps that overlap are not among them
    turn_ms: float = 0.0  # of the engine's thread: from when messages have arrived until the step's own are sent
    turn_counts: list[int] = []


class Drained(Message, frozen=True):
    """The last sequence has ended and the engine exits."""


class PeerQuery(Message, frozen=True):
    """A front end's question to all others. `number` is the asker's own count; `asker` its address, which the engine
    fills in."""

    number: int
    question: str
    argument: str
    asker: bytes = b""


class PeerCount(Message, frozen=True):
    """How many front ends have been asked."""

    number: int
    count: int


class PeerReply(Message, frozen=True):
    """To one PeerQuery, from one front end; None if it has no answer."""

    asker: bytes
    number: int
    data: bytes | None


ToEngine = Hello | Submit | Abort | Drain | PeerQuery | PeerReply
FromEngine = (
    Ready
    | PromptLogprobs
    | Tokens
    | Replayed
    | Finished
    | Failed
    | Aborted
    | Stats
    | Drained
    | PeerCount
    | PeerQuery
    | PeerReply
)
SequenceEvent = PromptLogprobs | Tokens | Replayed | Finished | Failed

to_engine = msgspec.msgpack.Decoder(list[ToEngine])  # messages travel in lists: one frame per step
from_engine = msgspec.msgpack.Decoder(list[FromEngine])
encoder = msgspec.msgpack.Encoder()
