"""How each format writes calls, as the models' templates do. The tests of every format are made from this table.

A new format of a known shape needs one entry in WRITERS, one in TOKENS if not each marker is one token, and texts in
CASES where it has ways of its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.addressed import Addressed, Headed
from tailrace.text.tool_parsers.horizon import Horizon
from tailrace.text.tool_parsers.sections import Sectioned
from tailrace.text.tool_parsers.tag_tree import TagTree
from tailrace.text.tool_parsers.tagged import InChannels, Tagged
from tailrace.text.tool_parsers.trees import Gemma
from tailrace.text.tool_parsers.wrapped import JsonCalls, Mistral

Calls = list[tuple[str, dict[str, Any]]]
Say = Callable[[str, str, Any], str]  # function, parameter, value → as it stands between tags
Writer = Callable[[random.Random | None, Calls, Say], str]


def of_shape(*shapes: type) -> tuple[str, ...]:
    return tuple(name for name, one in TOOL_FORMATS.items() if isinstance(one.shape, shapes))


STREAMED = of_shape(JsonCalls, Mistral, Sectioned, Headed)  # arguments are JSON and go out as they come
UNQUOTED = of_shape(Tagged, InChannels, Addressed, Horizon, Gemma, TagTree)  # texts have no quotes of JSON
TAGGED = tuple(name for name in of_shape(Tagged) if TOOL_FORMATS[name].shape.types is None)  # untyped  # pyright: ignore
TREES = of_shape(Gemma, TagTree)  # nested values are no JSON
ALONE = tuple(name for name, one in TOOL_FORMATS.items() if one.bare)


def json_text(rng: random.Random | None, value: Any) -> str:
    if rng is None:
        return json.dumps(value, ensure_ascii=False)
    spaced = rng.choice([(", ", ": "), (",", ":")])
    odd = any(c in json.dumps(value) for c in ("\\ud", "\\x"))
    return json.dumps(value, ensure_ascii=rng.random() < 0.5 or odd, separators=spaced)


def plain(_name: str, _key: str, value: Any) -> str:
    """A text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def in_object(rng: random.Random | None, name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {json_text(rng, arguments)}}}'


def listed(opening: str, closing: str = "", head: str = '{{"name": "{}", "arguments": ') -> Writer:
    def write(rng: random.Random | None, calls: Calls, _: Say) -> str:
        each = (f"{head.format(name)}{json_text(rng, arguments)}}}" for name, arguments in calls)
        return f"{opening}[{', '.join(each)}]{closing}"

    return write


def apart(opening: str, closing: str, key: str = "arguments", line: str = "\n") -> Writer:
    def write(rng: random.Random | None, calls: Calls, _: Say) -> str:
        return "\n".join(f"{opening}{line}{in_object(rng, *call, key=key)}{line}{closing}" for call in calls)

    return write


def tagged(begin: str, end: str, field: str, opening: str, closing: str) -> Writer:
    """All calls between one pair of markers."""

    def write(_rng: random.Random | None, calls: Calls, said: Say) -> str:
        each = "\n".join(
            begin.format(name) + "".join(field.format(key, said(name, key, v)) for key, v in arguments.items()) + end
            for name, arguments in calls
        )
        return f"{opening}\n{each}\n{closing}"

    return write


def tagged_apart(begin: str, end: str, field: str, between: str = "\n") -> Writer:
    """Each call between markers of its own."""

    def write(_rng: random.Random | None, calls: Calls, said: Say) -> str:
        return between.join(
            begin.format(name) + "".join(field.format(key, said(name, key, v)) for key, v in arguments.items()) + end
            for name, arguments in calls
        )

    return write


def dsml(block: str, word: str = "｜DSML｜") -> Writer:
    def field(key: str, value: Any) -> str:
        kind = "true" if isinstance(value, str) else "false"
        return f'<{word}parameter name="{key}" string="{kind}">{plain("", key, value)}</{word}parameter>\n'

    def write(_rng: random.Random | None, calls: Calls, _: Say) -> str:
        each = "\n".join(
            f'<{word}invoke name="{name}">\n{"".join(field(*one) for one in arguments.items())}</{word}invoke>'
            for name, arguments in calls
        )
        return f"<{word}{block}>\n{each}\n</{word}{block}>"

    return write


def kimi_k3(_rng: random.Random | None, calls: Calls, _: Say) -> str:
    kinds = {bool: "boolean", str: "string", int: "number", float: "number", list: "array", dict: "object"}

    def field(key: str, value: Any) -> str:
        kind = kinds.get(type(value), "null")
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{plain("", key, value)}<|close|>argument<|sep|>'

    each = "".join(
        f'<|open|>call tool="{name}" index="{i}"<|sep|>'
        f"{''.join(field(*one) for one in arguments.items())}<|close|>call<|sep|>"
        for i, (name, arguments) in enumerate(calls, 1)
    )
    return f"<|open|>tools<|sep|>{each}<|close|>tools<|sep|>"


def gemma(opening: str, closing: str, quote: str) -> Writer:
    def said(value: Any) -> str:
        match value:
            case str():
                return f"{quote}{value}{quote}"
            case dict():
                return "{" + ",".join(f"{key}:{said(one)}" for key, one in value.items()) + "}"
            case list():
                return f"[{','.join(map(said, value))}]"
        return json.dumps(value)

    return lambda _rng, calls, _say: "".join(f"{opening}call:{name}{said(args)}{closing}" for name, args in calls)


def minimax_m3(_rng: random.Random | None, calls: Calls, _: Say) -> str:
    mark = "]<]minimax[>["

    def said(key: str, value: Any) -> str:
        match value:
            case dict():
                inner = "".join(said(*one) for one in value.items())
            case list():
                inner = "".join(said("item", one) for one in value)
            case _:
                inner = plain("", key, value)
        return f"{mark}<{key}>{inner}{mark}</{key}>"

    each = "\n".join(
        f'{mark}<invoke name="{name}">{"".join(said(*one) for one in arguments.items())}{mark}</invoke>'
        for name, arguments in calls
    )
    return f"{mark}<tool_call>\n{each}\n{mark}</tool_call>"


def python_call(rng: random.Random | None, name: str, arguments: dict[str, Any]) -> str:
    def said(value: Any) -> str:
        return json_text(rng, value) if rng is None or rng.random() < 0.5 else repr(value)

    return f"{name}({', '.join(f'{key}={said(value)}' for key, value in arguments.items())})"


def python_list(opening: str = "", closing: str = "") -> Writer:
    return lambda rng, calls, _: f"{opening}[{', '.join(python_call(rng, *call) for call in calls)}]{closing}"


def muse(_rng: random.Random | None, calls: Calls, said: Say) -> str:
    def message(name: str, arguments: dict[str, Any]) -> str:
        body = tagged(
            '<atem:invoke name="{}">\n',
            "</atem:invoke>",
            '<atem:parameter name="{}">{}</atem:parameter>\n',
            "<atem:function_calls>",
            "</atem:function_calls>",
        )(None, [(name, arguments)], said)
        return f" to={name}<|message|>{body}"

    return "<|eom|><|start|>assistant".join(message(*call) for call in calls)


def inkling(rng: random.Random | None, calls: Calls, _: Say) -> str:
    each = (f"<|content_invoke_tool_json|>{in_object(rng, *call, key='args')}<|end_message|>" for call in calls)
    return "<|message_model|>".join(each)


PLAMO = {
    name: f"<|plamo:{name}:plamo|>"
    for side in ("begin", "end")
    for name in (f"{side}_tool_requests", f"{side}_tool_request", f"{side}_tool_name", f"{side}_tool_arguments")
}


def plamo(rng: random.Random | None, calls: Calls, _: Say) -> str:
    each = "".join(
        f"{PLAMO['begin_tool_request']}{PLAMO['begin_tool_name']}{name}{PLAMO['end_tool_name']}"
        f"{PLAMO['begin_tool_arguments']}<|plamo:constrain|>json<|plamo:msg|>{json_text(rng, arguments)}"
        f"{PLAMO['end_tool_arguments']}{PLAMO['end_tool_request']}"
        for name, arguments in calls
    )
    return f"{PLAMO['begin_tool_requests']}{each}{PLAMO['end_tool_requests']}"


def solar(rng: random.Random | None, calls: Calls, _: Say) -> str:
    each = "".join(
        f"<|tool_call:begin|>a1b2c3d4e{i}<|tool_call:name|>{name}"
        f"<|tool_call:args|>{json_text(rng, args)}<|tool_call:end|>"
        for i, (name, args) in enumerate(calls)
    )
    return f"<|tool_calls|>{each}<|calls|>"


DS = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
STEP = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"
KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
PARAMETER = "<parameter={}>{}</parameter>\n"
WRITERS: dict[str, Writer] = {
    "hermes": apart("<tool_call>", "</tool_call>"),
    "qwen3_coder": tagged_apart(
        "<tool_call>\n<function={}>\n", "</function>\n</tool_call>", "<parameter={}>\n{}\n</parameter>\n"
    ),
    "glm4": tagged_apart("<tool_call>{}\n", "</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"),
    "gemma4": gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "deepseek_v3": lambda rng, calls, _: (
        DS[0] + "".join(f"{DS[1]}{name}{DS[2]}{json_text(rng, args)}{DS[3]}" for name, args in calls) + DS[4]
    ),
    "deepseek_v32": dsml("function_calls"),
    "deepseek_v4": dsml("tool_calls"),
    "minimax_m2": tagged(
        '<invoke name="{}">\n',
        "</invoke>",
        '<parameter name="{}">{}</parameter>\n',
        "<minimax:tool_call>",
        "</minimax:tool_call>",
    ),
    "minimax_m3": minimax_m3,
    "kimi_k2": lambda rng, calls, _: (
        KIMI[0]
        + "".join(
            f"{KIMI[1]}functions.{name}:{i}{KIMI[2]}{json_text(rng, args)}{KIMI[3]}"
            for i, (name, args) in enumerate(calls)
        )
        + KIMI[4]
    ),
    "kimi_k3": kimi_k3,
    "seed_oss": tagged_apart("<seed:tool_call>\n<function={}>\n", "</function>\n</seed:tool_call>", PARAMETER),
    "step3": tagged(
        f'{STEP[0]}function{STEP[1]}<steptml:invoke name="{{}}">\n',
        f"</steptml:invoke>{STEP[2]}",
        '<steptml:parameter name="{}">{}</steptml:parameter>\n',
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
    ),
    "nemotron": listed("<TOOLCALL>", "</TOOLCALL>"),
    "longcat": apart("<longcat_tool_call>", "</longcat_tool_call>"),
    "mistral": lambda rng, calls, _: "".join(f"[TOOL_CALLS]{name}[ARGS]{json_text(rng, args)}" for name, args in calls),
    "phi4_mini_json": listed("functools"),
    "granite": listed("<|tool_call|>"),
    "jamba": listed("<tool_calls>", "</tool_calls>"),
    "command": listed("<|START_ACTION|>", "<|END_ACTION|>", '{{"tool_call_id": "0", "tool_name": "{}", "parameters": '),
    "internlm": apart("<|action_start|><|plugin|>", "<|action_end|>", "parameters", ""),
    "apertus": listed("<|tools_prefix|>", "<|tools_suffix|>", '{{"{}": '),
    "lfm2": python_list("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": lambda rng, calls, _: (
        f"<function_calls>{chr(10).join(python_call(rng, *call) for call in calls)}</function_calls>"
    ),
    "llama3_json": lambda rng, calls, _: "; ".join(in_object(rng, *call, key="parameters") for call in calls),
    "xlam": listed(""),
    "hy_v3": tagged(
        "<tool_call>{}<tool_sep>\n",
        "</tool_call>",
        "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
        "<tool_calls>",
        "</tool_calls>",
    ),
    "hy_v4": lambda _rng, calls, said: (
        "<tool_calls>"
        + "".join(
            f"<tool_call>{name}"
            + "".join(f"<arg_key>{k}</arg_key><arg_value>{said(name, k, v)}</arg_value>" for k, v in arguments.items())
            + "</tool_call>"
            for name, arguments in calls
        )
        + "</tool_calls>"
    ),
    "dots": tagged(
        '<invoke name="{}">\n',
        "</invoke>",
        '<parameter name="{}">{}</parameter>\n',
        "<dots_function_call>",
        "</dots_function_call>",
    ),
    "minicpm5": tagged_apart('<function name="{}">', "</function>", '<param name="{}">{}</param>', ""),
    "mimo": tagged_apart("<tool_call>\n<function={}>\n", "</function>\n</tool_call>", PARAMETER),
    "iquest_q1": tagged_apart(
        "<iquest_tool_call>{}", "</iquest_tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>"
    ),
    "k2_horizon": tagged(
        "<ifm|tool_call>{}\n",
        "</ifm|tool_call>",
        "<ifm|arg_key>{}</ifm|arg_key>\n<ifm|arg_value>{}</ifm|arg_value>\n",
        "<ifm|tool_calls>",
        "</ifm|tool_calls>",
    ),
    "muse": muse,
    "inkling": inkling,
    "gigachat35": dsml("tool_calls", "｜GCML｜"),
    "gigachat3": lambda rng, calls, _: "; ".join(in_object(rng, *call) for call in calls).join(
        ["<|function_call|>", ""]
    ),
    "deepseek_v41": dsml("calls", "｜DSML｜ "),
    "plamo3": plamo,
    "solar_open": solar,
    "granite_20b": apart("<function_call>", "", line=" "),
    "pythonic": python_list(),
}
# what of the markers is one token in such a model's vocabulary, where it is not each of them
TOKENS: dict[str, tuple[str, ...]] = {
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
    "deepseek_v32": ("｜DSML｜",),
    "deepseek_v4": ("｜DSML｜",),
    "minimax_m3": ("]<]minimax[>[",),
    "kimi_k3": ("<|open|>", "<|close|>", "<|sep|>"),
    "internlm": ("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    "command": ("<|START_ACTION|>", "<|END_ACTION|>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "granite": ("<|tool_call|>",),
    "phi4_mini_json": (),
    "llama3_json": ("<|python_tag|>",),
    "pythonic": (),
    "xlam": (),
    "deepseek_v41": ("｜DSML｜",),
    "gigachat35": ("｜GCML｜",),
    "plamo3": ("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>"),
    "muse": ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    "mimo": ("<tool_call>", "</tool_call>"),
    "minicpm5": (),
    "gigachat3": ("<|function_call|>", "<|role_sep|>", "<|message_sep|>"),
    "granite_20b": (),
}

ALWAYS = ("minimax_m3",)  # whose marker is never written as text: it could not be told from the tag behind it


def tokens(name: str) -> tuple[str, ...]:
    """The markers that are one token each."""
    form = TOOL_FORMATS[name]
    return TOKENS.get(name) or tuple(dict.fromkeys((*form.marks, *(form.frame.markers if form.frame else ()))))


def written(name: str, calls: Calls) -> str:
    """Calls as such a model writes them."""
    return WRITERS[name](None, calls, plain)


def ends_of(name: str) -> tuple[str, ...]:
    """What ends a text in a call."""
    match TOOL_FORMATS[name].shape:
        case (Tagged() as shape) | Addressed(calls=shape) | Horizon(plain=shape) | InChannels(calls=shape):
            again = ("\n" + shape.closing, "\n" + shape.call.partition("NAME")[0])  # the end, or another call
            close, line = "\n" * shape.own_line + shape.close, "\n" * bool(shape.line)
            last = (close + line + (shape.end or shape.closing), close + line + shape.parameter.partition("KEY")[0])
            return (close, *last, '"', *(again if shape.several else ()))
        case Gemma() as shape:
            return (shape.quote, shape.quote + "}", shape.quote + ",")
        case TagTree() as shape:
            return (shape.mark + "</",)
        case JsonCalls(listed=True):
            return ('"', ", {")  # also another call
    return ('"',)
