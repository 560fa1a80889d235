"""The order of the methods, with the reason for each place. The sampler walks these tables and knows no method by name."""

from __future__ import annotations

import torch

from tailrace import ranges
from tailrace.kernels.program import NOT_ON_GPU, Stage
from tailrace.params import SamplingParams
from tailrace.sampling.methods.adaptive_p import ADAPTIVE_P
from tailrace.sampling.methods.allowed_token_ids import ALLOWED_TOKEN_IDS
from tailrace.sampling.methods.bad_words import BAD_WORDS
from tailrace.sampling.methods.banned_at import BANNED_AT
from tailrace.sampling.methods.base import EditMethod, Refinement
from tailrace.sampling.methods.dry import DRY
from tailrace.sampling.methods.dynatemp import DYNATEMP
from tailrace.sampling.methods.encoder_repetition_penalty import ENCODER_REPETITION_PENALTY
from tailrace.sampling.methods.epsilon_cutoff import EPSILON_CUTOFF
from tailrace.sampling.methods.eta_cutoff import ETA_CUTOFF
from tailrace.sampling.methods.green_list import GREEN_LIST
from tailrace.sampling.methods.length_decay import LENGTH_DECAY
from tailrace.sampling.methods.logit_bias import LOGIT_BIAS
from tailrace.sampling.methods.min_k import MIN_K
from tailrace.sampling.methods.min_p import MIN_P
from tailrace.sampling.methods.min_tokens import MIN_TOKENS
from tailrace.sampling.methods.mirostat import MIROSTAT
from tailrace.sampling.methods.no_repeat_ngram import NO_REPEAT_NGRAM
from tailrace.sampling.methods.normalize_logits import NORMALIZE_LOGITS
from tailrace.sampling.methods.p_less import P_LESS
from tailrace.sampling.methods.penalties import PENALTIES
from tailrace.sampling.methods.processors import PROCESSORS
from tailrace.sampling.methods.sequence_bias import SEQUENCE_BIAS
from tailrace.sampling.methods.smoothing import SMOOTHING
from tailrace.sampling.methods.synthid import SYNTHID
from tailrace.sampling.methods.temperature import TEMPERATURE
from tailrace.sampling.methods.tfs_z import TFS_Z
from tailrace.sampling.methods.top_a import TOP_A
from tailrace.sampling.methods.top_h import TOP_H
from tailrace.sampling.methods.top_k import TOP_K
from tailrace.sampling.methods.top_n_sigma import TOP_N_SIGMA
from tailrace.sampling.methods.top_p import TOP_P
from tailrace.sampling.methods.typical_p import TYPICAL_P
from tailrace.sampling.methods.xtc import XTC
from tailrace.sampling.processors import keep_argmax

# Before all edits comes the row's grammar mask (kernels/rows.py): a row of a draft has its own, so it is no slot's business.
EDITS: dict[str, EditMethod] = {
    "normalize_logits": NORMALIZE_LOGITS,  # of the model's own logits, as transformers has it
    "allowed_token_ids": ALLOWED_TOKEN_IDS,  # then the bans, which nothing later lifts: −inf plus or times anything is −inf
    "bad_words": BAD_WORDS,
    "banned_at": BANNED_AT,
    "min_tokens": MIN_TOKENS,
    "no_repeat_ngram": NO_REPEAT_NGRAM,
    "logit_bias": LOGIT_BIAS,  # before the penalties, which look at the sign of the biased logit
    "sequence_bias": SEQUENCE_BIAS,
    "processors": PROCESSORS,
    "encoder_repetition_penalty": ENCODER_REPETITION_PENALTY,
    "penalties": PENALTIES,
    "dry": DRY,
    "length_decay": LENGTH_DECAY,  # after what else moves EOS: it grows by what is there
    "green_list": GREEN_LIST,  # last: the mark must survive what is asked for otherwise
}

REFINEMENTS: dict[str, Refinement] = {
    "temperature": TEMPERATURE,  # first: the others cut the distribution that is really drawn from
    "dynatemp": DYNATEMP,
    "smoothing": SMOOTHING,
    "min_p": MIN_P,  # relative to the likeliest token, so before anything renormalises; cheap, leaves little for the rest
    "top_k": TOP_K,
    "top_p": TOP_P,  # takes its mass from what the others left
    "top_n_sigma": TOP_N_SIGMA,
    "typical_p": TYPICAL_P,
    "tfs_z": TFS_Z,
    "top_a": TOP_A,
    "epsilon_cutoff": EPSILON_CUTOFF,
    "eta_cutoff": ETA_CUTOFF,
    "top_h": TOP_H,
    "p_less": P_LESS,
    "min_k": MIN_K,  # by the logits before the temperature, so its place matters little
    "mirostat": MIROSTAT,
    "xtc": XTC,  # removes the likeliest of what is left
    "adaptive_p": ADAPTIVE_P,  # reshapes by the probabilities of what is left
    "synthid": SYNTHID,  # last: the tournament is held among what may be drawn
}

if REFINEMENTS.keys() != ranges.REFINEMENTS.keys():
    raise ImportError(
        f"ranges.REFINEMENTS must have the same names: {sorted(REFINEMENTS.keys() ^ ranges.REFINEMENTS.keys())}"
    )


def edits_of(params: SamplingParams) -> tuple[str, ...]:
    """The edits a request wants, in order. Processors that keep the argmax have no effect where they are the last, nothing but that is
    asked for, and no report shows what became of the others."""
    wanted = tuple(name for name, method in EDITS.items() if method.wanted(params))
    shown = params.logprobs_mode == "processed" and (params.logprobs is not None or params.report_entropy)
    if params.greedy and not shown and wanted[-1:] == ("processors",) and keep_argmax(params.processors):
        return wanted[:-1]
    return wanted


def refinements_of(params: SamplingParams) -> tuple[str, ...]:
    """The refinements a request wants: those it ordered, then the others in the default order. None if it is greedy."""
    if params.greedy:
        return ()
    order = dict.fromkeys((*params.sampler_order, *REFINEMENTS))
    return tuple(name for name in order if REFINEMENTS[name].wanted(params))


def beyond_kernels(params: SamplingParams) -> bool:
    """No kernels have all that it asks for: its rows fall back to the reference sampler."""
    named = bool(params.logprob_token_ids) and params.logprobs_mode == "processed"
    return named or any(EDITS[name].dense(params) for name in edits_of(params))


def stages_of(params: SamplingParams) -> list[Stage]:
    """Its refinements as the kernels have them."""
    return [REFINEMENTS[name].stage(params) for name in refinements_of(params)]


def beyond_device(params: SamplingParams, device: torch.device | None) -> bool:
    """The kernels of this device (None: the CPU) don't have all that it asks for, as far as its parameters say."""
    odd = device is not None and device.type != "cpu" and any(stage.kind in NOT_ON_GPU for stage in stages_of(params))
    return odd or beyond_kernels(params)
