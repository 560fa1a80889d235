"""The methods, loaded in the order of method_order.py. The sampler walks these tables and knows no method by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import TypeVar

import torch

from tailrace.kernels.program import MAX_STAGES, STAGES, Stage
from tailrace.params import FIELDS, SamplingParams, list_switches
from tailrace.request.method_order import EDIT_ORDER, REFINEMENT_ORDER, OrderEntry
from tailrace.request.sampler_fields import REFINEMENT_NAMES
from tailrace.sampling.processors import keep_argmax
from tailrace.sampling.slot import LogitsEdit, Refinement, Slot

Method = TypeVar("Method", LogitsEdit, Refinement)


def load_methods(kind: type[Method], order: Iterable[OrderEntry], declared: set[str]) -> dict[str, Method]:
    """Load the methods of this order. Each gets its name and the condition under which a request needs it.

    Raises:
        ImportError: the fields' declarations name other methods, or a file has no METHOD of this kind.
    """
    names = [entry.name for entry in order]
    if declared != set(names):
        raise ImportError(
            f"method_order.py and the declarations of SamplingParams' fields name different methods: "
            f"{sorted(declared ^ set(names))}"
        )
    found: dict[str, Method] = {}
    for name in names:
        method = getattr(import_module(f"tailrace.sampling.methods.{name}"), "METHOD", None)
        if not isinstance(method, kind):
            raise ImportError(
                f"sampling/methods/{name}.py must have a METHOD that is a {kind.__name__}, has {method!r}"
            )
        found[name] = replace(method, name=name, wanted=method.wanted or switched_on(name))
    return found


def switched_on(method: str) -> Callable[[SamplingParams], bool]:
    """Return a function that tests whether a field that switches the method on is not neutral."""
    checks = [(attrgetter(name), FIELDS[name].neutral) for name in list_switches(method)]

    def is_wanted(params: SamplingParams) -> bool:
        for get, neutral in checks:  # noqa: SIM110, asked for every method of every request: no generator
            if not neutral(get(params)):
                return True
        return False

    return is_wanted


def check_state(refinements: dict[str, Refinement]) -> None:
    """Raise ImportError unless `begin` and `stateful` agree: the checks between fields rely on it."""
    for name, method in refinements.items():
        if any(FIELDS[field].stateful != (method.begin is not None) for field in list_switches(name)):
            raise ImportError(f"{name}: its fields must be declared stateful if, and only if, it has a `begin`")


EDITS = load_methods(LogitsEdit, EDIT_ORDER, {field.edit for field in FIELDS.values() if field.edit})
REFINEMENTS = load_methods(Refinement, REFINEMENT_ORDER, set(REFINEMENT_NAMES))
check_state(REFINEMENTS)
if len(REFINEMENTS) > MAX_STAGES:
    raise ImportError(
        f"a program has at most {MAX_STAGES} stages (MAX_STAGES, kMaxStages), for {len(REFINEMENTS)} refinements"
    )


def is_needed(method: LogitsEdit | Refinement, params: SamplingParams) -> bool:
    """Return whether the request needs this method."""
    return method.wanted is not None and method.wanted(params)


def edits_of(params: SamplingParams) -> tuple[LogitsEdit, ...]:
    """Return the edits that a request needs, in order.

    Processors that keep the argmax are left out of a greedy request if no later edit and no report needs them.
    """
    wanted = tuple(method for method in EDITS.values() if is_needed(method, params))
    shown = params.logprobs_mode == "processed" and (params.logprobs is not None or params.report_entropy)
    last = wanted[-1].name if wanted else ""
    if params.greedy and not shown and last == "processors" and keep_argmax(params.processors):
        return wanted[:-1]
    return wanted


def add_edit(slot: Slot, name: str) -> None:
    """Insert the edit of this name into the slot's edits, in order."""
    among = {method.name for method in slot.edit_methods} | {name}
    slot.use_edits(tuple(method for method in EDITS.values() if method.name in among))


def refinements_of(params: SamplingParams) -> tuple[Refinement, ...]:
    """Return the refinements that a request needs: those in its own order, then the others in the default order. A
    greedy request needs none."""
    if params.greedy:
        return ()
    order = dict.fromkeys((*params.sampler_order, *REFINEMENTS))
    return tuple(REFINEMENTS[name] for name in order if is_needed(REFINEMENTS[name], params))


def beyond_kernels(params: SamplingParams) -> bool:
    """Return whether no kernels have everything that the request needs. Its rows then fall back to the reference
    sampler."""
    named = bool(params.logprob_token_ids) and params.logprobs_mode == "processed"
    dense = any(method.dense(params) for method in edits_of(params))
    return named or dense or any(method.stage is None for method in refinements_of(params))


def stages_of(params: SamplingParams) -> list[Stage]:
    """Return the request's refinements as the kernels have them."""
    return [method.stage(params) for method in refinements_of(params) if method.stage is not None]


def beyond_device(params: SamplingParams, device: torch.device) -> bool:
    """Return whether this device's kernels lack something that the parameters need."""
    on_gpu = device.type != "cpu"
    return beyond_kernels(params) or (on_gpu and not all(STAGES[stage.kind].on_gpu for stage in stages_of(params)))
