"""The fields by which clients ask how much a model should think → the variables of the chat template, and a budget.

`reasoning_effort`, `enable_thinking` (Qwen), `thinking` (Anthropic, GLM, Kimi, DeepSeek) and `reasoning` (OpenRouter)
are names of the same wishes. A wish that the template has no variable for is logged once, except thinking that is
turned off: then a thought is closed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from tailrace.api.body import log_once
from tailrace.errors import ParameterError, format_json
from tailrace.text.effort_probe import LEVELS, OFF, KnownEfforts, find_efforts
from tailrace.text.reasoning_probe import EFFORTS, SWITCHES

if TYPE_CHECKING:
    from tailrace.api.schema.chat import Conversation
    from tailrace.api.service import Service
    from tailrace.text.tokenizer import Tokenizer

OWN = "chat_template_kwargs."
KNOWN = (*SWITCHES, *EFFORTS)
C = TypeVar("C", bound="Conversation")


class GivenField(NamedTuple):
    """A field and its value. sent: the client's own value, if it is another spelling of the same meaning."""

    name: str
    value: Any
    sent: Any = None


class Wish(NamedTuple):
    """A request's settings for thinking.

    - switch: on or off.
    - budget_field: the client's name for the budget.
    - variables: further variables of the template.
    - off_field: the client's name for the field that turns thinking off; "" if thinking stays on.
    - effort_field: the client's name for the effort.
    - own_switches, own_efforts: the values in chat_template_kwargs under known names.
    """

    switch: bool | None
    effort: str | None
    budget: int | None
    budget_field: str
    variables: dict[str, Any]
    off_field: str = ""
    own_switches: tuple[GivenField, ...] = ()
    own_efforts: tuple[GivenField, ...] = ()
    effort_field: str = ""


def wish_of(ask: Conversation) -> Wish:
    """Return what the request says of thinking, under whatever names.

    Raises:
        ParameterError: two of its fields contradict each other.
    """
    kwargs, thinking, reasoning = ask.chat_template_kwargs or {}, ask.thinking, ask.reasoning
    switches = [GivenField("enable_thinking", ask.enable_thinking)]
    efforts = [GivenField("reasoning_effort", ask.reasoning_effort)]
    budgets = [GivenField("thinking_token_budget", ask.thinking_token_budget)]
    if isinstance(thinking, bool):
        switches.append(GivenField("thinking", thinking))
    elif thinking is not None:
        switches.append(GivenField("thinking.type", thinking.type != "disabled", thinking.type))
        budgets.append(GivenField("thinking.budget_tokens", thinking.budget_tokens))
        if thinking.type == "disabled" and thinking.budget_tokens is not None:
            raise ParameterError("thinking.budget_tokens: thinking is disabled", "thinking.budget_tokens")
    if reasoning is not None:
        switches.append(GivenField("reasoning.enabled", reasoning.enabled))
        efforts.append(GivenField("reasoning.effort", reasoning.effort))
        budgets.append(GivenField("reasoning.max_tokens", reasoning.max_tokens))
    own = [
        GivenField(f"{OWN}{name}", kwargs[name] == on, kwargs[name])
        for name, (on, off) in SWITCHES.items()
        if kwargs.get(name) in (on, off)
    ]
    own_efforts = [GivenField(f"{OWN}{name}", kwargs[name]) for name in EFFORTS if kwargs.get(name) is not None]
    switch = read_agreed_value(switches, own)
    effort_field = find_agreed_field(efforts).name
    effort = read_agreed_value(efforts, [entry for entry in own_efforts if entry.name == f"{OWN}reasoning_effort"])
    if effort == "none":
        find_agreed_field([GivenField(effort_field, False, effort), *switches])
    off = next((entry.name for entry in (*own, *switches) if entry.value is False), "")
    if not off and not any(entry.value for entry in (*own, *switches)):
        off = next((entry.name for entry in (*own_efforts, *efforts) if entry.value == "none"), "")
    given = {name: getattr(ask, name) for name in ("verbosity",) if getattr(ask, name) is not None}
    if thinking is not None and not isinstance(thinking, bool) and thinking.clear_thinking is not None:
        given["clear_thinking"] = thinking.clear_thinking
    budget = find_agreed_field(budgets)
    return Wish(switch, effort, budget.value, budget.name, given, off, tuple(own), tuple(own_efforts), effort_field)


def read_agreed_value(fields: list[GivenField], own: Sequence[GivenField] = ()) -> Any:
    """Return the one value that the fields give.

    Raises:
        ParameterError: two fields differ, or one and what chat_template_kwargs holds: own.
    """
    found = find_agreed_field(fields)
    if found.value is not None:
        find_agreed_field([found, *own])
    return found.value


def find_agreed_field(fields: list[GivenField]) -> GivenField:
    """Return the one value that the fields give, with the first field that gives it.

    Raises:
        ParameterError: two fields differ.
    """
    given = [entry for entry in fields if entry.value is not None]
    for entry in given[1:]:
        if entry.value != given[0].value:
            first, second = (
                f"{name} ({format_json(value if sent is None else sent)})" for name, value, sent in (given[0], entry)
            )
            raise ParameterError(f"{first} and {second} differ", given[0].name)
    return given[0] if given else fields[0]


def with_thinking(tokenizer: Tokenizer, ask: C) -> C:
    """The request with its wishes in the variables that the chat template reads. The effort "none" turns thinking off,
    any other effort turns it on, where the template has a switch and no field says otherwise. What chat_template_kwargs
    holds stays. The operator's variables fill what is left.

    Raises:
        ParameterError: see `wish_of` and `translate_effort`.
    """
    wish, reads = wish_of(ask), tokenizer.template_reads
    found = variables_of(wish, reads, find_efforts(tokenizer))
    thinks = {} if wish.off_field else {"reasoning_effort": wish.effort, "enable_thinking": wish.switch}
    unread = [name for name, value in thinks.items() if value is not None and not found]
    for name in (*unread, *(name for name in wish.variables if name not in found)):
        log_once(f"{name} (the chat template does not ask for it)")
    given = found | (ask.chat_template_kwargs or {})
    kwargs = {**list_defaults(tokenizer, given), **given} or None
    settled = dict.fromkeys(("reasoning_effort", "enable_thinking", "thinking", "reasoning", "verbosity"))
    settled |= {"chat_template_kwargs": kwargs, "thinking_token_budget": wish.budget}
    return msgspec.structs.replace(ask, **settled)  # type: ignore[arg-type, return-value]


def list_defaults(tokenizer: Tokenizer, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operator's variables of the template for a request. If the request gives any variable of thinking, all
    of the operator's variables of thinking are left out, because the two could contradict each other."""
    thinks = any(name in KNOWN for name in given)
    defaults = tokenizer.default_variables.items()
    return {name: value for name, value in defaults if not (thinks and name in KNOWN)}


def variables_of(
    wish: Wish, reads: Callable[[str], bool], known: Mapping[str, KnownEfforts] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the template's variables for a wish. What chat_template_kwargs hold under a name that the template does
    not read is a wish, too.

    Args:
        reads: tells whether the template reads a name. known: the efforts that its variables know.

    Raises:
        ParameterError: see `translate_effort`.
    """
    effort = read_unread_value(wish.own_efforts, reads) if wish.effort is None else wish.effort
    on = read_unread_value(wish.own_switches, reads) if wish.switch is None else wish.switch
    if on is None and effort is not None:
        on = effort != "none"
    found: dict[str, Any] = {}
    if on is not None:
        found = {name: values[not on] for name, values in SWITCHES.items() if reads(name)}
    if on is False and effort is None:
        effort = "none"
    if effort is not None and (effort != "none" or not found):
        field = wish.effort_field if wish.effort is not None else next((o.name for o in wish.own_efforts), "")
        values = {name: translate_effort(effort, known.get(name), field) for name in EFFORTS if reads(name)}
        found |= {name: value for name, value in values.items() if value is not None}
    return found | {name: value for name, value in wish.variables.items() if reads(name)}


def translate_effort(effort: str, known: KnownEfforts | None, field: str) -> str | None:
    """Return the value for an effort: that of the nearest known effort that is not above it. None: the variable is left
    out.

    Args:
        known: the efforts that the variable knows; None: it takes each value. field: the client's name of the effort.

    Raises:
        ParameterError: the variable knows no effort so low.
    """
    if known is None or (effort != OFF and effort not in LEVELS):
        return effort
    if effort == OFF:
        return known.off
    level = known.find_level(effort)
    if level is None:
        raise ParameterError(
            f"{field} must be one of {', '.join(known.names)} for this model, got {format_json(effort)}", field
        )
    return known.levels[level]


def read_unread_value(own: Sequence[GivenField], reads: Callable[[str], bool]) -> Any:
    """Return the value of entries of chat_template_kwargs, none of which the template reads; else None.

    Raises:
        ParameterError: two entries differ.
    """
    if any(reads(entry.name.removeprefix(OWN)) for entry in own):
        return None
    return find_agreed_field([*own, GivenField("", None)]).value


def list_unread_names(tokenizer: Tokenizer, kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names in chat_template_kwargs that the template does not read, and that are not read as a known
    switch. Thinking that is turned off asks for nothing where the template has no switch."""
    reads = tokenizer.template_reads
    switched = any(reads(name) for name in KNOWN)
    off = {name: values[1] for name, values in SWITCHES.items()} | dict.fromkeys(EFFORTS, "none")
    heard = {name for name, value in kwargs.items() if name in KNOWN and (switched or value == off[name])}
    return [name for name in kwargs if not reads(name) and name not in heard]


def closes_thoughts(service: Service, wish: Wish) -> bool:
    """Return True if thinking is turned off and the template has no variable for that, so that the engine has to close
    each thought at once.

    Raises:
        ParameterError: the template has efforts, but none that turns thinking off, and the engine can't close thoughts.
    """
    if not wish.off_field:
        return False
    form, tokenizer = service.reasoning, service.tokenizer
    closable = form is not None and form.split and not form.harmony and not form.again
    efforts = [name for name in EFFORTS if tokenizer.template_reads(name)]
    known = [find_efforts(tokenizer).get(name) for name in efforts]
    if any(map(tokenizer.template_reads, SWITCHES)) or any(each is None or each.off for each in known):
        return False
    if known and not closable:
        names = ", ".join(dict.fromkeys(name for each in known if each is not None for name in each.names))
        raise ParameterError(
            f"{wish.off_field}: this model's thinking can't be turned off; its efforts are {names}", wish.off_field
        )
    return closable and wish.budget is None


def check_budget(service: Service, wish: Wish) -> None:
    """Raise ParameterError for a budget that can't be kept."""
    if wish.budget is not None and (service.reasoning is None or not service.reasoning.split):
        raise ParameterError(
            f"{wish.budget_field}: how this model marks its thinking is not known (--reasoning-parser names it)",
            wish.budget_field,
        )
