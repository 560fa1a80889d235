"""The edits of logits that vLLM's V2 runner lacks, in torch on the device, for its buffers of tokens.

vLLM's own kernels ban, add logit_bias and penalise before. A request that has one of these edits gets its penalties
here, too: they come in the middle of these edits, and may have windows and scopes. Each function is the counterpart of
a method's `edits` (sampling/methods), for all rows at once. A row without the method has its neutral values. Custom
processors and green lists are made on the host, so that a step with one of these waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from tailrace.integrations.vllm.v2_history import TokenRows, make_column, make_id_table
from tailrace.kernels.gpu.agreements import find_agreements
from tailrace.kernels.transfer import there
from tailrace.params import FIELDS, SamplingParams, list_switches
from tailrace.request.method_order import EDIT_ORDER
from tailrace.request.sampler_fields import Scope
from tailrace.sampling.methods.dry import LARGEST
from tailrace.sampling.methods.processors import find_processors, make_edits
from tailrace.sampling.pipeline import edits_of
from tailrace.sampling.reference import BadRowError, apply_dense
from tailrace.sampling.watermark import green_list

MOST = 2**30  # tokens, more than any text has


@dataclass(frozen=True)
class EditedRows:
    """The rows of a step whose requests have one of these edits.

    - params: of each row's request. enders: the ids that end its text.
    - history: the tokens so far.
    """

    params: Sequence[SamplingParams]
    enders: Sequence[Sequence[int]]
    history: TokenRows

    @property
    def device(self) -> torch.device:
        """Return the device of the tokens."""
        return self.history.tokens.device

    def read_column(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a field of all requests, [R, 1]."""
        return make_column([getattr(params, name) for params in self.params], self.device, dtype)

    def read_tokens(self, row: int) -> list[int]:
        """Return the ids of prompt and output, on the host."""
        prompt, output = self.history.read_text(row)
        return prompt + output

    @cached_property
    def agreements(self) -> torch.Tensor:
        """Return int32 [R, L]: lengths of agreement with the end, as long as the rows need them."""
        most = make_column([find_longest(params) for params in self.params], self.device, torch.int64)[:, 0]
        return find_agreements(self.history.tokens, self.history.lengths, most)

    @cached_property
    def followers(self) -> torch.Tensor:
        """Return int64 [R, L]: the token after each place."""
        return self.history.tokens.roll(-1, 1)


def find_longest(params: SamplingParams) -> int:
    """Return the largest length of agreement that makes a difference. DRY's penalty stops growing at LARGEST."""
    longest = max(params.no_repeat_ngram_size, params.encoder_no_repeat_ngram_size) - 1
    if not params.dry_multiplier:
        return max(longest, 0)
    if params.dry_base == 1.0:
        return max(longest, min(params.dry_allowed_length, MOST))
    growing = math.log(LARGEST / params.dry_multiplier) / math.log(params.dry_base)
    return max(longest, min(params.dry_allowed_length + math.ceil(growing) + 1, MOST))


def normalize_rows(logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the logits with log-softmax at these rows, unless a row has no finite logit."""
    rows = logits.index_select(0, places).float()
    rows = rows.log_softmax(1).where(rows.isfinite().any(1, keepdim=True), rows)
    return logits.float().index_copy(0, places, rows)


def ban_repeats(logits: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Ban the tokens that would complete an n-gram again."""
    history, banned = rows.history, torch.zeros_like(logits, dtype=torch.bool)
    for name, ends in (("no_repeat_ngram_size", history.lengths), ("encoder_no_repeat_ngram_size", history.prompts)):
        sizes = rows.read_column(name, torch.int64)
        within = history.places + 1 < ends.minimum(history.lengths)[:, None]
        completing = within & (rows.agreements >= sizes - 1) & (sizes > 1)
        last = rows.followers.where(completing, history.vocab)
        every = (history.places < ends[:, None]) & (history.places < history.lengths[:, None]) & (sizes == 1)
        banned |= history._replace(tokens=last).flag_tokens(completing) | history.flag_tokens(every)
    return logits.masked_fill(banned, -torch.inf)


def add_biases(logits: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Add the biases of phrases to the id that would complete them."""
    pairs = [(row, ids, bias) for row, params in enumerate(rows.params) for ids, bias in params.sequence_bias]
    width = max(len(ids) for _, ids, _ in pairs)
    padded = torch.tensor([[-1] * (width - len(ids)) + list(ids) for _, ids, _ in pairs])
    owners, phrases = (there(part, rows.device) for part in (torch.tensor([row for row, *_ in pairs]), padded))
    biases = there(torch.tensor([bias for *_, bias in pairs], dtype=torch.float64), rows.device)
    ending = rows.history.end_with(owners, phrases[:, :-1])
    total = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    total.index_put_((owners, phrases[:, -1]), biases.where(ending, 0.0), accumulate=True)
    return logits + total.float()


def penalise_repeated(logits: torch.Tensor, repetition: torch.Tensor, repeated: torch.Tensor) -> torch.Tensor:
    """Return the logits after a repetition penalty. repetition: float32 [R, 1]. repeated: bool [R, V]."""
    return torch.where(logits > 0, logits / repetition, logits * repetition).where(repeated, logits)


def favour_prompt(logits: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Make the prompt's tokens likelier, or less likely."""
    strength = make_column([1.0 / params.encoder_repetition_penalty for params in rows.params], rows.device)
    return penalise_repeated(logits, strength, rows.history.flag_tokens(rows.history.flag_prompts()))


def flag_scopes(rows: EditedRows, scopes: Sequence[Scope]) -> torch.Tensor:
    """Return bool [R, L]: the places within each row's scope."""
    prompt, output = (
        make_column([scope in ("both", part) for scope in scopes], rows.device, torch.bool)
        for part in ("prompt", "output")
    )
    return (rows.history.flag_prompts() & prompt) | (rows.history.flag_outputs() & output)


def penalise(logits: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Apply repetition, frequency and presence penalty, within windows and scopes."""
    history, params = rows.history, rows.params
    windows = rows.read_column("penalty_last_n", torch.int64)
    inside = (windows < 0) | (history.places >= history.lengths[:, None] - windows)
    repeated = history.flag_tokens(inside & flag_scopes(rows, [one.repetition_scope for one in params]))
    counts = history.count_tokens(inside & flag_scopes(rows, [one.penalty_scope for one in params]))
    logits = penalise_repeated(logits, rows.read_column("repetition_penalty"), repeated)
    lowered = logits - rows.read_column("frequency_penalty") * counts.float()
    return (lowered - rows.read_column("presence_penalty")).where(counts > 0, logits)


def repel_repeats(logits: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Apply DRY: lower the tokens that would go on with a repetition."""
    history, params = rows.history, rows.params
    breaking = torch.stack([make_id_table(one.dry_sequence_breakers, history.vocab, rows.device) for one in params])
    breaking = breaking.gather(1, history.tokens)
    last_break = history.places.where(breaking & (history.places < history.lengths[:, None]), -1).amax(1)
    unbroken = history.lengths - 1 - last_break
    windows = rows.read_column("dry_penalty_last_n", torch.int64)
    first = (history.lengths[:, None] - windows).where(windows >= 0, 0)
    lengths = rows.agreements.long().minimum(unbroken[:, None])
    lengths = lengths.minimum(history.places - first + 1).where(~breaking.roll(-1, 1), 0)
    allowed = rows.read_column("dry_allowed_length", torch.int64)
    long = (lengths >= allowed) & (history.places + 1 < history.lengths[:, None])
    longest = torch.zeros((len(params), history.vocab + 1), dtype=torch.int64, device=rows.device)
    longest.scatter_reduce_(1, rows.followers.where(long, history.vocab), lengths.where(long, 0), "amax")
    longest = longest[:, : history.vocab]
    base, multiplier = (rows.read_column(name, torch.float64) for name in ("dry_base", "dry_multiplier"))
    penalty = (multiplier * base.pow(longest - allowed)).clamp(max=LARGEST).float()
    return (logits - penalty).where(longest > 0, logits)


def lift_ends(logits: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Make the ends likelier with each token beyond a length."""
    history = rows.history
    decays = [params.exponential_decay_length_penalty or (0, 1.0) for params in rows.params]
    ends = torch.stack([make_id_table(tuple(ids), history.vocab, rows.device) for ids in rows.enders])
    ends = ends[:, : history.vocab]
    starts = make_column([start for start, _ in decays], rows.device, torch.int64)
    beyond = (history.lengths - history.prompts)[:, None] - starts
    factors = make_column([factor for _, factor in decays], rows.device, torch.float64)
    strength = (factors.pow(beyond).clamp(max=LARGEST) - 1.0).float()
    return (logits + logits.abs() * strength).where(ends & (beyond > 0) & logits.isfinite(), logits)


def call_processors(logits: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Call the custom processors of each row on the host. A row whose processor fails keeps its largest logit alone."""
    edited = logits.clone()
    for row, params in enumerate(rows.params):
        if params.processors:
            changed = logits[row].to("cpu", copy=True)
            try:
                for edit in make_edits(find_processors(params), rows.read_tokens(row)):
                    apply_dense(changed, edit)
            except BadRowError:  # logged
                changed = torch.full_like(logits[row], -torch.inf).index_fill_(0, logits[row].argmax(), 0.0)
            edited[row] = changed.to(rows.device)
    return edited


def favour_green(logits: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Add the bias of green-list watermarks. Their lists are made on the host."""
    edited = logits.clone()
    for row, params in enumerate(rows.params):
        mark = params.watermark
        if mark is not None and mark.kind == "kgw" and len(tokens := rows.read_tokens(row)) >= mark.context:
            green = green_list(mark, tokens[-mark.context :], logits.shape[1]).astype("int64")
            edited[row, torch.from_numpy(green).to(rows.device)] += mark.delta
    return edited


FUNCTIONS: dict[str, Callable[[torch.Tensor, EditedRows], torch.Tensor]] = {
    "no_repeat_ngram": ban_repeats,
    "sequence_bias": add_biases,
    "processors": call_processors,
    "encoder_repetition_penalty": favour_prompt,
    "penalties": penalise,
    "dry": repel_repeats,
    "length_decay": lift_ends,
    "green_list": favour_green,
}
ORDER = tuple(entry.name for entry in EDIT_ORDER if entry.name in FUNCTIONS)
NORMALIZE = "normalize_logits"  # before vLLM's own edits
# the slots' values of these edits' fields: the draw must not apply them again
NEUTRAL = {name: field.default for name, field in FIELDS.items() if field.edit in {*FUNCTIONS, NORMALIZE}}
PENALTIES = list_switches("penalties")
WINDOWS = tuple(name for name, field in FIELDS.items() if field.edit == "penalties" and field.needs)


def list_edits(params: SamplingParams) -> frozenset[str]:
    """Return the edits that vLLM must leave to this module; the penalties among them unless they are alone and have
    neither windows nor scopes. (A window of 0 turns them off, which vLLM does not know.)"""
    names = {method.name for method in edits_of(params)} & {*FUNCTIONS, NORMALIZE}
    if names <= {"penalties"} and all(params.neutral(name) for name in WINDOWS):
        return frozenset()
    penalised = not all(params.neutral(name) for name in PENALTIES)
    return frozenset({*names, *(["penalties"] if penalised else [])})


def edit_rows(logits: torch.Tensor, places: torch.Tensor, rows: EditedRows) -> torch.Tensor:
    """Return the logits after the edits of these rows, in their order. places: int64 [R], the rows."""
    wanted = set[str]().union(*map(list_edits, rows.params))
    edited = logits.index_select(0, places).float()
    for name in ORDER:
        if name in wanted:
            edited = FUNCTIONS[name](edited, rows)
    return logits.float().index_copy(0, places, edited)


def warm_up(device: torch.device) -> None:
    """Compile the kernel, so that no request waits for it."""
    one = torch.ones((1, 1), dtype=torch.int64, device=device)
    find_agreements(one, one[0], one[0])
