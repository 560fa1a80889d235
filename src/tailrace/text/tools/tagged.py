"""Calls whose arguments stand one by one between tags, as bare text: Qwen3-Coder and GLM-4.5. A call goes out whole."""

from __future__ import annotations

from tailrace.text.tools.block import Block, Read
from tailrace.text.tools.values import json_of


def qwen3_coder(block: Block) -> Read[None]:
    """<function=NAME>, <parameter=KEY>, each value on lines of its own."""
    while True:
        yield from block.white()
        yield from block.begin("<function=")
        name = yield from block.word()
        yield from block.expect(">")
        schemas = block.tools.get(name, {})
        arguments: dict[str, str] = {}
        yield from block.white()
        while not (yield from block.literal("</function>")):
            yield from block.expect("<parameter=")
            key = yield from block.until(">")
            text = (yield from block.until("</parameter>")).removeprefix("\n").removesuffix("\n")
            arguments[key] = json_of(text, schemas.get(key))
            yield from block.white()
        block.whole(name, arguments)
        if (yield from block.close()):
            return


def glm4(block: Block) -> Read[None]:
    """The name, then pairs of <arg_key> and <arg_value>; the closing marker says that there are no more."""
    yield from block.white()
    name = yield from block.word()
    schemas = block.tools.get(name, {})
    arguments: dict[str, str] = {}
    while not (yield from block.close()):
        yield from block.expect("<arg_key>")
        key = (yield from block.until("</arg_key>")).strip()
        yield from block.white()
        yield from block.expect("<arg_value>")
        arguments[key] = json_of((yield from block.until("</arg_value>")), schemas.get(key))
    block.whole(name, arguments)
