"""Grammar of arguments in braces and brackets, with texts and keys in a form of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tailrace.text.tool_parsers.grammar_writer import GrammarWriter
from tailrace.text.tool_parsers.tree_grammar import Tree, join_optional_parts, repeat_counted

SCALAR = {"type": ["number", "boolean", "null"]}


class Braces(NamedTuple):
    """The form of objects and lists.

    - `text`: (schema, suffix for rules, place) → the grammar of a text.
    - `key`: the name of a property → the grammar of the key and its colon.
    - `any_key`: the grammar of any key and its colon.
    - `comma`: the grammar of the comma.
    """

    text: Callable[[Mapping[str, Any], str, str], str]
    key: Callable[[str], str]
    any_key: str
    comma: str = '","'

    def make_tree(self, writer: GrammarWriter, kind: type[Tree] = Tree) -> Tree:
        """Return the writer of values in this form."""

        def write_object(fields: list[tuple[str, str, bool]], id: str) -> str:
            parts = [(f"{self.key(name)} {value}", required) for name, value, required in fields]
            return f'"{{" {join_optional_parts(writer, parts, id, self.comma)} "}}"'

        def write_array(item: str, schema: Mapping[str, Any]) -> str:
            return f'"[" {repeat_counted(item, schema, self.comma)} "]"'

        return kind(writer, self.text, write_object, write_array, free=self.write_anything(writer))

    def write_anything(self, writer: GrammarWriter) -> dict[str, str]:
        """Return the rules of objects and lists with any values."""
        text, comma = self.text({"type": "string"}, "FREE", ""), self.comma
        scalar = writer.rule("any_scalar", writer.write_json(SCALAR))
        value = writer.rule("any_value", f"{text} | {scalar} | any_object | any_list")
        pair = writer.rule("any_pair", f"{self.any_key} {value}")
        return {
            "object": writer.rule("any_object", f'"{{" ({pair} ({comma} {pair})*)? "}}"'),
            "array": writer.rule("any_list", f'"[" ({value} ({comma} {value})*)? "]"'),
        }
