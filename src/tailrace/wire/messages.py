"""Everything that crosses between a front end and the engine: tagged msgspec structs, with field names on the wire.

This file imports no torch and no zmq. A request is named by (id, epoch). The client counts epochs up, so a reused id
never meets an old output. A request has n sequences, 0 … n−1; each ends in exactly one `Finished` or `Failed`.
`Aborted` acknowledges an `Abort`. It is always sent, even if the engine does not know the request (any more).

    front end → engine   Hello, Submit, EndThoughts, Abort, Drain, Sleep, PeerQuery, PeerReply
    engine → front end   Ready, PromptProgress, PromptLogprobs, Tokens, Replayed, Finished, Failed, Aborted, Stats,
                         Drained, PeerCount, PeerQuery, PeerReply

If there are several front ends, the engine also passes on their questions to each other, without reading them.
(More than 300 lines: all messages in one file.)
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tailrace.base.logprobs import TokenLogprobs
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.params import SamplingParams

VERSION = 1  # both sides must agree; Hello and Ready carry it

FinishReason = Literal["stop", "length", "abort", "error"]


class Message(msgspec.Struct, tag=True, frozen=True, omit_defaults=True):
    """The base of all messages. The class name is the tag."""


class Hello(Message, frozen=True):
    """A front end introduces itself. The engine answers with Ready once the model is loaded."""

    version: int = VERSION


class Replay(msgspec.Struct, frozen=True, omit_defaults=True):
    """An earlier output that is to be explained.

    - output: its token ids. positions: the places to explain, ascending.
    - key: of its noise; None: that of the seed, for sequence `index` of the request.
    - what_if: other parameters, used in the records alone.
    """

    output: list[int]
    positions: list[int]
    options: ExplainOptions
    index: int = 0
    key: int | None = None
    what_if: SamplingParams | None = None


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a request belongs to, as far as the engine keeps users apart.

    - cache_salt: requests share cached prefixes only if they have the same salt. b"": no salt.
    - user: an id that no other user has; "": nobody's.
    - rank: the request's priority among the waiting requests of the user. Smaller ones take the places of larger ones.
    - weight: of the user among all users: how many tokens it gets for one token of a user with weight 1.
    """

    cache_salt: bytes = b""
    user: str = ""
    rank: int = 0
    weight: Annotated[int, msgspec.Meta(ge=1)] = 1


NOBODY = Owner()


class Submit(Message, frozen=True):
    """A request to generate.

    - priority: among all users, smaller runs first; of equal ones the user who got least is next. arrival_s: Unix time.
    - adapter: its name; "": none.
    - replay: generate nothing; explain this earlier output. reports_progress: send PromptProgress.
    """

    id: str
    epoch: int
    prompt: list[int]
    params: SamplingParams
    priority: int = 0
    arrival_s: float = 0.0
    adapter: str = ""
    replay: Replay | None = None
    owner: Owner = NOBODY
    reports_progress: bool = False


class EndThoughts(Message, frozen=True):
    """A request to close the thoughts that the sequences of a request have open. The answers follow. It needs
    SamplingParams.thinking, has no reply, and does nothing where no thought is open."""

    id: str
    epoch: int


class Abort(Message, frozen=True):
    """A request to end all sequences of a request, or the one of this index, whatever their state. Idempotent. `cause`
    is for logs."""

    id: str
    epoch: int
    cause: str = "client"
    index: int | None = None


class Drain(Message, frozen=True):
    """A request to refuse new requests, finish the running ones, then send Drained and exit."""


class Sleep(Message, frozen=True):
    """A request to send Drained and exit if nothing runs, waits or loads; else the message is ignored. The front ends
    keep the model's name and start another engine when a request comes. abort: fail all requests first."""

    abort: bool = False


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a front end needs to know of the model that the engine serves.

    - adapters: names of those that are loaded now. max_adapters: the most of them, if
      some may come at run time; else 0.
    - block_size: tokens of a block of the KV cache.
    """

    name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: list[int]
    adapters: list[str] = []
    max_adapters: int = 0
    block_size: int = 0


class Ready(Message, frozen=True):
    """The engine can serve. It is sent again when the adapters have changed."""

    model: ModelInfo
    version: int = VERSION


class Tokens(Message, frozen=True):
    """New tokens of one sequence, in order.

    - logprobs, explanations, survivors: one entry per token, if the request asked for them. An entry of `survivors`
      holds the ids that the token was drawn from, ascending int32, little-endian; b"" if there were too many.
    - cached_tokens, queued_s, key: only in the sequence's first message. The number of prompt tokens from the prefix
      cache, the seconds that the request had waited, and the key of its noise.
    - drafts: two numbers per step that verified drafts, since the last message: proposed and accepted drafts.
    - num_predicted: how many tokens of the request's prediction the sequence's output has so far.
    """

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
    num_predicted: int = 0


class PromptLogprobs(Message, frozen=True):
    """Logprobs of the prompt's tokens at the requested places (SamplingParams.scored_places), in order, from `start`
    on.

    All of them precede the request's first Tokens. named: for each token the logprobs of prompt_logprob_token_ids; []
    if none were requested.
    """

    id: str
    epoch: int
    start: int
    entries: list[TokenLogprobs]
    index: int = 0
    named: list[list[float]] = []


class PromptProgress(Message, frozen=True):
    """How many of a prompt's tokens are in the cache: when the request is admitted, and after each step that computes
    some. cached: those that came from the prefix cache."""

    id: str
    epoch: int
    cached: int
    computed: int
    index: int = 0


Why = Literal["drawn", "forced", "grammar", "ended"]


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token of an output that can't have come there: the reason, and the token that does come, if any.

    "drawn", "forced": another token comes; "grammar": the token is not allowed; "ended": the output was over.
    """

    position: int
    why: Why
    token: int | None = None


class Replayed(Message, frozen=True):
    """More records of a replay, in order.

    - difference: the first difference, once it is known.
    - unsure: number of tokens so far that are not what is drawn, but may have come from drafts.
    - cached_tokens: in the first message, as in Tokens.
    - stop_token_id: the output's last token, once it is known that this token ended the output.
    """

    id: str
    epoch: int
    records: list[Explanation]
    difference: Difference | None = None
    unsure: int = 0
    cached_tokens: int = 0
    stop_token_id: int | None = None
    index: int = 0


class Finished(Message, frozen=True):
    """The regular end of a sequence.

    - stop_token_id: the id that stopped it (EOS or a stop id). Its token was sent in Tokens before.
    - cause: another cause that only the engine knows: "repetition".
    - drafts, num_predicted: as in Tokens; drafts of steps without a token.
    """

    id: str
    epoch: int
    index: int
    reason: FinishReason
    stop_token_id: int | None = None
    cause: str | None = None
    drafts: list[int] = []
    num_predicted: int = 0


class Failed(Message, frozen=True):
    """The end of a sequence by an error. `code` is a code of errors.py; `param` is the field at fault, if any."""

    id: str
    epoch: int
    index: int
    code: str
    message: str
    param: str | None = None


class Aborted(Message, frozen=True):
    """The acknowledgement of an Abort: no message of (id, epoch), or of that one sequence, comes after it. `known` is
    False if it had ended before."""

    id: str
    epoch: int
    known: bool
    index: int | None = None


# Upper edges, in seconds, of the histograms of durations in Stats. They are fine enough that the last bucket shows how
# bad the worst case was.
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
    accepted_tokens: int = 0  # accepted guesses
    drafted_at: list[int] = []  # the same, by their place in the draft
    accepted_at: list[int] = []
    waiting_adapters: list[str] = []  # names of those that waiting sequences use
    bad_rows: dict[str, int] = {}  # rows of logits that can't be sampled from, by what is wrong
    finished: dict[str, int] = {}  # by reason
    step_ms: dict[str, float] = {}  # running totals per part of the step; where steps overlap, parts do
    step_counts: dict[
        str, list[int]
    ] = {}  # per part, how often it took up to each of DURATION_EDGES_S; at the end, longer
    decode_steps: dict[str, int] = {}  # steps without prefills: "verify" if guesses were verified, else "plain"
    decode_ms: dict[
        str, float
    ] = {}  # the same: from the forward pass to the draws; steps that overlap are not among them
    turn_ms: float = 0.0  # of the engine's thread: from when messages have arrived until the step's own are sent
    turn_counts: list[int] = []


class AdapterChange(msgspec.Struct, omit_defaults=True):
    """An adapter to load or to unload. folder: below the operator's folder. in_place: replace one of the name."""

    name: str
    folder: str = ""
    in_place: bool = False


class Drained(Message, frozen=True):
    """The last sequence has ended and the engine exits. asleep: after Sleep, or because nothing has come for
    `sleep_after`. changes: what makes the adapters of a new engine those of this one."""

    asleep: bool = False
    changes: list[AdapterChange] = []


class PeerQuery(Message, frozen=True):
    """A front end's question to all others. `number` is the asker's own count; `asker` its address, which the engine
    fills in. The engine itself answers "load_adapter" and "unload_adapter": an AdapterChange, and an AdapterOutcome as
    JSON."""

    number: int
    question: str
    argument: str
    asker: bytes = b""


class AdapterOutcome(msgspec.Struct, omit_defaults=True):
    """The result of an AdapterChange. code: "" without an error; else a code of errors.py."""

    code: str = ""
    message: str = ""
    param: str | None = None


class PeerCount(Message, frozen=True):
    """The number of front ends that have been asked."""

    number: int
    count: int


class PeerReply(Message, frozen=True):
    """One front end's answer to a PeerQuery; None if it has no answer."""

    asker: bytes
    number: int
    data: bytes | None


ToEngine = Hello | Submit | EndThoughts | Abort | Drain | Sleep | PeerQuery | PeerReply
FromEngine = (
    Ready
    | PromptProgress
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
SequenceEvent = PromptProgress | PromptLogprobs | Tokens | Replayed | Finished | Failed

to_engine = msgspec.msgpack.Decoder(list[ToEngine])  # messages travel in lists: one frame per step
from_engine = msgspec.msgpack.Decoder(list[FromEngine])
encoder = msgspec.msgpack.Encoder()
