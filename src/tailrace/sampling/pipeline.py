"""The order of the methods, with the reason for each place. The sampler walks these tables and knows no method by name.

A name is that of the method's file in sampling/methods, and the one that the declarations of its fields have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import TypeVar

import torch

from tailrace.kernels.program import MAX_STAGES, STAGES, Stage
from tailrace.params import FIELDS, SamplingParams, switches
from tailrace.sampler_fields import REFINEMENT_NAMES
from tailrace.sampling.methods.base import LogitsEdit, Refinement
from tailrace.sampling.processors import keep_argmax

Method = TypeVar("Method", LogitsEdit, Refinement)

# Before all edits comes the row's grammar mask (kernels/rows.py): a row of a draft has its own, so it is no slot's
# business.
EDIT_ORDER = (
    "normalize_logits",  # of the model's own logits, as transformers has it
    "allowed_token_ids",  # then the bans, which nothing later lifts: −inf plus or times anything is −inf
    "bad_words",
    "banned_at",
    "min_tokens",
    "no_repeat_ngram",
    "logit_bias",  # before the penalties, which look at the sign of the biased logit
    "sequence_bias",
    "processors",
    "encoder_repetition_penalty",
    "penalties",
    "dry",
    "length_decay",  # after what else moves EOS: it grows by what is there
    "green_list",  # last: the mark must survive what is asked for otherwise
)

REFINEMENT_ORDER = (
    "temperature",  # first: the others cut the distribution that is really drawn from
    "dynatemp",
    "smoothing",
    "min_p",  # relative to the likeliest token, so before anything renormalises; cheap, leaves little for the rest
    "top_k",
    "top_p",  # takes its mass from what the others left
    "top_n_sigma",
    "typical_p",
    "tfs_z",
    "top_a",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_h",
    "p_less",
    "min_k",  # by the logits before the temperature, so its place matters little
    "mirostat",
    "xtc",  # removes the likeliest of what is left
    "adaptive_p",  # reshapes by the probabilities of what is left
    "synthid",  # last: the tournament is held among what may be drawn
)


def load(kind: type[Method], order: tuple[str, ...], declared: set[str]) -> dict[str, Method]:
    """The methods of these names, in order, each with the condition under which a request wants it.

    Raises:
        ImportError: the fields' declarations name other methods, or a file has no METHOD of this kind.
    """
    if declared != set(order):
        raise ImportError(
            f"sampling/pipeline.py and the declarations of SamplingParams' fields name different methods: "
            f"{sorted(declared ^ set(order))}"
        )
    found: dict[str, Method] = {}
    for name in order:
        method = getattr(import_module(f"tailrace.sampling.methods.{name}"), "METHOD", None)
        if not isinstance(method, kind):
            raise ImportError(
                f"sampling/methods/{name}.py must have a METHOD that is a {kind.__name__}, has {method!r}"
            )
        found[name] = method if method.wanted is not None else replace(method, wanted=switched_on(name))
    return found


def switched_on(method: str) -> Callable[[SamplingParams], bool]:
    """Whether one of the fields that switch the method on is not neutral."""
    checks = [(attrgetter(name), FIELDS[name].neutral) for name in switches(method)]

    def wanted(params: SamplingParams) -> bool:
        for get, neutral in checks:  # noqa: SIM110, asked for every method of every request: no generator
            if not neutral(get(params)):
                return True
        return False

    return wanted


def check_state(refinements: dict[str, Refinement]) -> None:
    """Raise ImportError unless `begin` and `stateful` agree: the checks between fields rely on it."""
    for name, method in refinements.items():
        if any(FIELDS[field].stateful != (method.begin is not None) for field in switches(name)):
            raise ImportError(f"{name}: its fields must be declared stateful if, and only if, it has a `begin`")


EDITS = load(LogitsEdit, EDIT_ORDER, {field.edit for field in FIELDS.values() if field.edit})
REFINEMENTS = load(Refinement, REFINEMENT_ORDER, set(REFINEMENT_NAMES))
check_state(REFINEMENTS)
if len(REFINEMENTS) > MAX_STAGES:
    raise ImportError(
        f"a program has at most {MAX_STAGES} stages (MAX_STAGES, kMaxStages), for {len(REFINEMENTS)} refinements"
    )


def wants(method: LogitsEdit | Refinement, params: SamplingParams) -> bool:
    """The request needs this method."""
    return method.wanted is not None and method.wanted(params)


def edits_of(params: SamplingParams) -> tuple[str, ...]:
    """The edits a request wants, in order. Processors that keep the argmax have no effect where they are the last,
    nothing but that is asked for, and no report shows what became of the others."""
    wanted = tuple(name for name, method in EDITS.items() if wants(method, params))
    shown = params.logprobs_mode == "processed" and (params.logprobs is not None or params.report_entropy)
    if params.greedy and not shown and wanted[-1:] == ("processors",) and keep_argmax(params.processors):
        return wanted[:-1]
    return wanted


def refinements_of(params: SamplingParams) -> tuple[str, ...]:
    """The refinements a request wants: those it ordered, then the others in the default order. None if it is greedy."""
    if params.greedy:
        return ()
    order = dict.fromkeys((*params.sampler_order, *REFINEMENTS))
    return tuple(name for name in order if wants(REFINEMENTS[name], params))


def beyond_kernels(params: SamplingParams) -> bool:
    """No kernels have all that it asks for: its rows fall back to the reference sampler."""
    named = bool(params.logprob_token_ids) and params.logprobs_mode == "processed"
    dense = any(EDITS[name].dense(params) for name in edits_of(params))
    return named or dense or any(REFINEMENTS[name].stage is None for name in refinements_of(params))


def stages_of(params: SamplingParams) -> list[Stage]:
    """Its refinements as the kernels have them."""
    return [stage(params) for name in refinements_of(params) if (stage := REFINEMENTS[name].stage) is not None]


def beyond_device(params: SamplingParams, device: torch.device | None) -> bool:
    """The kernels of this device (None: the CPU) don't have all that it asks for, as far as its parameters say."""
    on_gpu = device is not None and device.type != "cpu"
    return beyond_kernels(params) or (on_gpu and not all(STAGES[stage.kind].on_gpu for stage in stages_of(params)))
