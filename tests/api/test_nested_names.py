"""Names that nobody knows, within the objects of a body: named to the client or refused, as in the body itself."""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import openai.types.chat.completion_create_params as chat_params
import openai.types.responses.response_create_params as response_params
import pytest
import typing_extensions

from api.test_unknown_fields import BODIES, post
from tailrace.api import routes
from tailrace.api.body import BodyNames, BodyReader
from tailrace.api.nested_names import Structs, find_structs, list_fields
from tailrace.api.routes import chat, responses
from tailrace.api.schema.chat import ChatMessage, Part
from tailrace.api.schema.conversations import ItemsRequest
from tailrace.api.schema.message_blocks import MessageBlock
from tailrace.api.schema.response_items import InputItem, InputPart
from tailrace.errors import ParameterError
from tailrace.request.options import RepetitionDetection, Watermark

ODD = "wurble"
PLENTY = 1 << 20


def list_readers() -> dict[str, BodyReader[Any]]:
    found: dict[str, BodyReader[Any]] = {}
    for module in pkgutil.iter_modules(routes.__path__):
        for name, value in vars(importlib.import_module(f"{routes.__name__}.{module.name}")).items():
            if isinstance(value, BodyReader):
                found.setdefault(f"{module.name}.{name}", value)
    return found


def make_example(kind: Any) -> Any:
    """A value of a type; None if anything will do."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return make_object(kind)
    if origin is Annotated:
        return make_example(parts[0])
    if origin is Literal:
        return parts[0]
    if origin in (typing.Union, types.UnionType):
        return make_example(parts[0])
    if origin in (list, tuple):
        return []
    if origin is dict:
        return {}
    return {str: "x", int: 1, float: 1.0, bool: True, msgspec.Raw: {}}.get(kind)


def make_object(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """An object with what the struct requires."""
    required = {
        field.encode_name: make_example(field.type) for field in msgspec.structs.fields(struct) if field.required
    }
    config = struct.__struct_config__
    return required | ({config.tag_field: config.tag} if config.tag_field else {})


def list_places(
    schema: type[msgspec.Struct], seen: tuple[Any, ...] = ()
) -> Iterator[tuple[list[str | int], Any, bool]]:
    """Each object within a struct: its path, the object, and whether it always refuses unknown names."""
    for field in msgspec.structs.fields(schema):
        listed = find_structs(field.type) != () and is_listed(field.type)
        for struct in find_structs(field.type):
            if (schema, struct, field.name) in seen:
                continue
            path: list[str | int] = [field.encode_name, *([0] if listed else [])]
            yield path, make_object(struct), bool(struct.__struct_config__.forbid_unknown_fields)
            for inner, value, strict in list_places(struct, (*seen, (schema, struct, field.name))):
                holder = make_object(struct)
                yield [*path, *inner], (holder, inner, value), strict


def is_listed(kind: Any) -> bool:
    """Whether structs of this type are in a list."""
    return any(get_origin(part) is list and find_structs(part) for part in (kind, *get_args(kind)))


def put(holder: dict[str, Any], path: list[str | int], value: Any) -> None:
    """Put a value, or a nested one, at a path of names, each with 0 behind it where it is a list."""
    name, *rest = path
    listed = bool(rest) and rest[0] == 0
    inner = rest[1:] if listed else rest
    if isinstance(value, tuple):
        own, below, deep = value
        put(own, below, deep)
        value = own
    else:
        assert not inner
        value = value | {ODD: 1}
    holder[str(name)] = [value] if listed else value


def list_cases() -> list[Any]:
    cases = []
    for name, reader in list_readers().items():
        for path, value, strict in list_places(reader.schema):
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
            cases.append(pytest.param(reader, path, value, strict, place, id=f"{name}-{place}-{len(cases)}"))
    return cases


@pytest.mark.parametrize(("reader", "path", "value", "strict", "place"), list_cases())
def test_every_object_names_what_it_does_not_know(
    reader: BodyReader[Any], path: list[str | int], value: Any, strict: bool, place: str
):
    body = make_object(reader.schema)
    put(body, path, value)
    names = BodyNames({}, {})
    raw = msgspec.json.encode(body)
    if strict:
        with pytest.raises(ParameterError, match=ODD):
            reader.decoded(raw, PLENTY, names)
    else:
        reader.decoded(raw, PLENTY, names)
        assert [*names.unknown] == [f"{place}.{ODD}"]


def test_the_table_has_the_objects_of_all_endpoints():
    names = [str(case.id) for case in list_cases()]
    for place in (
        *("responses.READER-conversation", "responses.READER-text.format", "responses.READER-tool_choice.function"),
        *("responses.READER-reasoning", "chat.READER-stream_options", "chat.READER-tools[0].function"),
        *("chat.READER-response_format.json_schema", "chat.READER-messages[0].content[0]", "chat.READER-thinking"),
        *(
            "messages.READER-tool_choice",
            "messages.READER-messages[0].content[0].content[0]",
            "compact.READER-input[0]",
        ),
        *("conversations.CREATE-items[0]", "messages.READER-output_config.format", "token_io.TOKENS-stream_options"),
    ):
        assert any(name.startswith(f"{place}-") for name in names), place


def test_objects_of_the_engine_keep_their_types():
    """The engine checks them by type, so no form of their own may stand in for them."""
    body = BODIES["/v1/chat/completions"] | {
        "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
        "watermark": {"kind": "kgw", "key": 5},
    }
    ask = chat.READER.decoded(msgspec.json.encode(body), PLENTY)
    assert type(ask.repetition_detection) is RepetitionDetection
    assert type(ask.watermark) is Watermark


NESTED: dict[str, dict[str, Any]] = {
    "/v1/responses": {"conversation": {"id": "conv_1", "x": 1}},
    "/v1/chat/completions": {"stream_options": {"include_usgae": True}},
    "/v1/messages": {"tool_choice": {"type": "none", "x": 1}},
    "/v1/completions": {"response_format": {"type": "text", "x": 1}},
}
PLACES = {
    "/v1/responses": "conversation.x",
    "/v1/chat/completions": "stream_options.include_usgae",
    "/v1/messages": "tool_choice.x",
    "/v1/completions": "response_format.x",
}


@pytest.mark.parametrize("path", [path for path in NESTED if path != "/v1/responses"])
async def test_a_header_names_the_place(tmp_path: Any, path: str):
    answer = await post(tmp_path, path, NESTED[path])
    assert answer.status_code == 200, answer.text
    expected = f'299 tailrace "ignored, because no such field is known: {PLACES[path]}"'
    assert answer.headers.get_list("warning") == [expected]


@pytest.mark.parametrize("path", NESTED)
async def test_the_operator_may_refuse_them(tmp_path: Any, path: str):
    answer = await post(tmp_path, path, NESTED[path], unknown_fields="refuse")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{PLACES[path]}: unknown field")


async def test_a_misspelt_name_has_a_suggestion(tmp_path: Any):
    path = "/v1/chat/completions"
    answer = await post(tmp_path, path, NESTED[path], unknown_fields="refuse")
    message = "stream_options.include_usgae: unknown field (did you mean include_usage?)"
    assert answer.json()["error"]["message"] == message


async def test_many_messages_name_a_field_once(tmp_path: Any):
    messages = [{"role": "user", "content": "hi", "x": 1}, {"role": "user", "content": "ho", "x": 1, "y": 2}]
    answer = await post(tmp_path, "/v1/chat/completions", {"messages": messages})
    expected = '299 tailrace "ignored, because no such field is known: messages[0].x, messages[1].y"'
    assert answer.headers.get_list("warning") == [expected]


async def test_a_number_without_effect_may_be_of_any_size(tmp_path: Any):
    path = "/v1/chat/completions"
    body = msgspec.json.encode(BODIES[path] | {"stream_options": {"x": 1}}).replace(b'"x":1', b'"x":1e400')
    names = BodyNames({}, {})
    chat.READER.decoded(body, PLENTY, names)
    assert [*names.unknown] == ["stream_options.x"]


@pytest.mark.parametrize("tool", [{"type": "web_search", "filters": {}}, {"type": "mcp", "server_url": "x"}])
def test_tools_of_vendors_have_names_of_their_own(tool: dict[str, Any]):
    names = BodyNames({}, {})
    body = {"input": "hi", "tools": [tool, {"type": "function", "name": "f", "parameters": {"free": 1}}]}
    responses.READER.decoded(msgspec.json.encode(body), PLENTY, names)
    assert names.unknown == {}


def find_typed_dicts(kind: Any) -> list[Any]:
    if typing_extensions.is_typeddict(kind):
        return [kind]
    return [one for part in get_args(kind) if not isinstance(part, str) for one in find_typed_dicts(part)]


def list_client_names(kind: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in find_typed_dicts(kind):
        yield one.__name__, typing_extensions.get_type_hints(one)


UNSERVED_ITEMS = ("AdditionalTools", "ConfigurationUpdate", "CompactionTrigger")
CLIENTS: list[tuple[str, Any, Structs]] = [
    *(
        (name, hints, (InputItem,))
        for name, hints in list_client_names(
            typing_extensions.get_type_hints(response_params.ResponseCreateParamsBase)["input"]
        )
        if not any(unserved in name for unserved in UNSERVED_ITEMS)
    ),
    *(
        (name, hints, (ChatMessage,))
        for name, hints in list_client_names(
            typing_extensions.get_type_hints(chat_params.CompletionCreateParamsBase)["messages"]
        )
    ),
]


@pytest.mark.parametrize(("name", "hints", "structs"), CLIENTS)
def test_names_of_the_official_client_are_known(name: str, hints: dict[str, Any], structs: Structs):
    assert hints.keys() <= list_fields(structs[0]).keys()
    part: Structs = (InputPart,) if structs == (InputItem,) else (Part,)
    for _, inner in list_client_names(hints.get("content")):
        assert inner.keys() <= list_fields(part[0]).keys()


TOP = [
    (chat.READER, chat_params.CompletionCreateParamsBase, name)
    for name in ("stream_options", "tools", "tool_choice", "response_format")
] + [
    (responses.READER, response_params.ResponseCreateParamsBase, name)
    for name in ("stream_options", "text", "conversation", "tool_choice")
]


@pytest.mark.parametrize(("reader", "params", "field"), TOP)
def test_objects_of_the_official_client_are_known(reader: BodyReader[Any], params: Any, field: str):
    structs = list_fields(reader.schema)[field]
    known = {name for struct in structs for name in list_fields(struct)}
    for kind, hints in list_client_names(typing_extensions.get_type_hints(params)[field]):
        if not any(word in kind for word in ("Mcp", "Shell", "ApplyPatch", "Types")):  # tools of the vendor
            assert hints.keys() <= known, kind


def test_blocks_of_messages_know_the_vendors_names():
    assert {"cache_control", "signature", "citations", "source"} <= list_fields(MessageBlock).keys()
    assert list_fields(ItemsRequest)["items"] == (InputItem,)
