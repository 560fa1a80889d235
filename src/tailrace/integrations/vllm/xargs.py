"""tailrace's own fields in `vllm_xargs` (`extra_args` offline): their names and values.

The rule for values is that of integrations/field_values.py. Some fields may hold text that only a tokenizer can read
(integrations/field_texts.py). vLLM's front end converts such text to token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm import SamplingParams as Theirs

from tailrace.integrations.field_values import read_value
from tailrace.integrations.refusals import FieldPlace
from tailrace.integrations.v1_engine import READ_BY_ENGINE
from tailrace.integrations.vllm.refused_fields import EVERYWHERE
from tailrace.params import FIELDS, find_idle

VLLMS = {name for name in Theirs.__struct_fields__ if not name.startswith("_")} - {"extra_args"}
# vLLM has these fields, under the same name or under ours over HTTP
SHARED = {name: own for name, field in FIELDS.items() for own in (name, field.http_name) if own in VLLMS}
OURS = tuple(name for name in FIELDS if name not in SHARED and name not in EVERYWHERE)
# those whose effect depends on the output so far
READING = {name for name in OURS if FIELDS[name].kind == "edit" or FIELDS[name].stateful or name == "forced_token_ids"}
DIFFUSION = ("diffusion_seed_canvas", "diffusion_canvas_length", "diffusion_max_steps", "diffusion_read_only")
THEIRS = {name: f"vLLM's own {SHARED.get(name, name)}, outside of vllm_xargs" for name in sorted(VLLMS | SHARED.keys())}


def own_fields(params: Theirs) -> dict[str, Any]:
    """Return tailrace's fields among `extra_args`, without those of a method that the request turns off.

    Raises:
        ParameterError: a value breaks the rule.
    """
    if not (given := params.extra_args):
        return {}
    found = {name: read_value(FIELDS[name], given[name]) for name in OURS if name in given}
    idle = find_idle(found, found) if found else ()
    return {name: value for name, value in found.items() if name not in idle}


def describe_place(refused: Mapping[str, str]) -> FieldPlace:
    """Return the place of the names in vllm_xargs. refused: the refused fields of the server, with reasons."""
    return FieldPlace("vllm_xargs", "vLLM", refused, THEIRS, (*READ_BY_ENGINE, *DIFFUSION))


ANY_SERVER = describe_place({})
