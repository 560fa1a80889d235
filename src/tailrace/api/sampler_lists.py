"""Lists of samplers under the names of llama.cpp, koboldcpp and text-generation-webui → sampler_order.

Edits (penalties, DRY, …) go before all refinements here, so a list that puts them elsewhere is refused, if they do
anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tailrace.errors import ParameterError, format_json
from tailrace.params import FIELDS, NEUTRAL, list_switches
from tailrace.request.method_order import EDIT_ORDER, REFINEMENT_ORDER
from tailrace.request.sampler_fields import REFINEMENT_NAMES

# other servers' names of refinements
NAMES = {
    **dict.fromkeys(("typ_p", "typ", "typ-p", "typical", "typical-p"), "typical_p"),
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "min-p": "min_p",
    "temp": "temperature",
    "tfs": "tfs_z",
    "top-n-sigma": "top_n_sigma",
    "dynamic_temperature": "dynatemp",
    "quadratic_sampling": "smoothing",
}
# llama.cpp's letters, and the samplers that a list of llama.cpp's leaves out where it does not name them
LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typical_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
}
KOBOLD = ("top_k", "top_a", "top_p", "tfs_z", "typical_p", "temperature", "penalties")  # by its numbers
EDITS = tuple(entry.name for entry in EDIT_ORDER if any(field.edit == entry.name for field in FIELDS.values()))
METHODS = (*EDITS, *REFINEMENT_NAMES)
# the refinements without a field that removes tokens
RESHAPES = {*REFINEMENT_NAMES} - {field.refinement for field in FIELDS.values() if field.kind == "truncation"}


def read_order(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Our own field: other servers' names and koboldcpp's numbers are translated."""
    return {"sampler_order": read_refinements("sampler_order", value, given)} if isinstance(value, list) else {}


def read_priority(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """text-generation-webui's list, or its lines; what it leaves out follows."""
    items = value.replace(",", "\n").split("\n") if isinstance(value, str) else value
    return {"sampler_order": read_refinements("sampler_priority", items, given)}


def read_samplers(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """llama.cpp's list, or its letters, or names with semicolons between them. What the list leaves out is off."""
    if isinstance(value, str):
        named = ";" in value or NAMES.get(value, value) in LETTERS.values()
        items: Any = value.split(";") if named else [LETTERS.get(letter, letter) for letter in value]
    else:
        items = value
    order = read_refinements("samplers", items, given, numbers=False)
    if (before := given.get("sampler_order")) not in (None, [], order):
        raise ParameterError(
            f"samplers and sampler_order ({format_json(before)}) are two names of one order", "samplers"
        )
    there = {find_method(item) for item in items}
    found: dict[str, Any] = {"sampler_order": order} if order else {}
    for method in LETTERS.values():
        for name in () if method in there else list_switches(method):
            found[name] = NEUTRAL[name]
    return found if "temperature" in there else found | {"dynatemp_range": NEUTRAL["dynatemp_range"]}


def put_temperature_last(value: Any, given: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """text-generation-webui's switch: all that removes tokens goes first. The others follow in the default order."""
    if value is not True:
        return {}
    order = given.get("sampler_order") or []
    whole = dict.fromkeys((*order, *(entry.name for entry in REFINEMENT_ORDER)))
    return {"sampler_order": [name for name in whole if name not in RESHAPES]}


def read_refinements(field: str, items: Any, given: Mapping[str, Any], numbers: bool = True) -> list[str]:
    """Return the list's refinements by our names, each once: the first place counts, as in llama.cpp's panels, which
    name some samplers twice. numbers: koboldcpp's numbers are names, too.

    Raises:
        ParameterError: it is no list of names, has a name that no method has, or puts edits that do something behind
            what goes after them here.
    """
    if not isinstance(items, list) or not all(is_item(item, numbers) for item in items):
        raise ParameterError(f"{field} must be a list of names of samplers, got {format_json(items)}", field)
    found: list[str] = []
    edits: list[str] = []
    for item in items:
        method = find_method(item)
        if method and method not in METHODS:
            raise ParameterError(f"{field} must hold names out of {', '.join(METHODS)}, got {format_json(item)}", field)
        if method not in EDITS:
            found += [method] if method and method not in found else []
        elif method not in edits and is_effective(method, given):
            if found or (method == "penalties" and "dry" in edits):
                raise ParameterError(
                    f"{field}: {item} can't be put behind {found[-1] if found else 'dry'}: here penalties go first, "
                    "then dry, then all that cuts the distribution",
                    field,
                )
            edits.append(method)
    return found


def is_item(item: Any, numbers: bool) -> bool:
    """Return whether this may name a sampler."""
    return isinstance(item, str) or (numbers and type(item) is int and 0 <= item < len(KOBOLD))


def find_method(item: str | int) -> str:
    """Return our name of a sampler; an edit for the name of one of its fields; a name that nobody knows as it is."""
    name = KOBOLD[item] if isinstance(item, int) else item.strip()
    name = NAMES.get(name, name)
    if name in REFINEMENT_NAMES or name not in FIELDS:
        return name
    return FIELDS[name].edit or FIELDS[name].refinement or name


def is_effective(edit: str, given: Mapping[str, Any]) -> bool:
    """Return whether the request list_switches the edit on."""
    values: Iterable[tuple[str, Any]] = ((name, given.get(name)) for name in list_switches(edit))
    return any(value is not None and not FIELDS[name].neutral(value) for name, value in values)
