"""The Markdown files: links lead somewhere, names exist in the code, lines are wrapped, pictures and figures are
current."""

from __future__ import annotations

import re
import runpy
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from peers import tool_docs
from tailrace.params import FIELDS
from tailrace_conform.laws import all_laws

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("packages/*/*.md"), *(ROOT / "docs").rglob("*.md")])
# Records of their time: what they name may be gone.
HISTORY = re.compile(r"docs/decisions/0|CHANGELOG")
LINK = re.compile(r"\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")
FILE = re.compile(r"[\w./-]*\w\.(?:py|cpp|h|md|svg|toml|yml)")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
CODE = ("src", "csrc", "packages", "tests", "bench", "tools")
LINE = 120  # columns of prose


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(text: str) -> str:
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The headings' anchors. A heading counts if GitHub and mkdocs call it the same."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE):
        plain = re.sub(r"[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        github = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        if github == re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip()):
            found.add(github)
    return found


def broken_links(page: Path) -> list[str]:
    """Relative links of a page to files or anchors that are not there."""
    found = []
    for link in LINK.findall(SPAN.sub("", prose(page.read_text()))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.is_file() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


def long_lines(text: str) -> list[str]:
    """Lines of prose that were not wrapped; a table's row has to be one line."""
    return [line for line in text.split("\n") if len(line) > LINE and not line.lstrip().startswith("|")]


@cache
def all_files() -> tuple[str, ...]:
    roots = [
        *ROOT.glob("*.*"),
        *(path for folder in (*CODE, "docs", "deploy") for path in (ROOT / folder).rglob("*.*")),
    ]
    return tuple("/" + named(path) for path in roots if path.is_file())


@cache
def all_words() -> frozenset[str]:
    """Every identifier of the sources."""
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cpp", ".h")]
    files.append(ROOT / "CMakeLists.txt")
    return frozenset(
        word for path in files if path != Path(__file__) for word in re.findall(r"[A-Za-z_]\w*", path.read_text())
    )


def missing_files(text: str) -> list[str]:
    """Files that code spans name and that are nowhere. A name may be the end of a path; `test_<name>.py` is a
    pattern."""
    spans = [word for span in SPAN.findall(prose(text)) for word in span.split()]
    names = {word for word in spans if FILE.fullmatch(word) and not word.startswith("/")} - {"llama.cpp"}
    return sorted(name for name in names if not any(path.endswith("/" + name) for path in all_files()))


def missing_names(text: str) -> list[str]:
    """Identifiers that code spans name and that no source has."""
    names = {span for span in SPAN.findall(prose(text)) if IDENTIFIER.fullmatch(span) and not FILE.fullmatch(span)}
    return sorted(name for name in names if name.split(".")[-1] not in all_words())


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path):
    assert not broken_links(page)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_are_wrapped_like_prose(page: Path):
    assert not long_lines(page.read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if not HISTORY.search(named(page))], ids=named)
def test_files_that_are_named_exist(page: Path):
    assert not missing_files(page.read_text())


@pytest.mark.parametrize("page", sorted((ROOT / "docs/add").glob("*.md")), ids=named)
def test_names_in_the_guides_exist(page: Path):
    assert not missing_names(page.read_text())


def missing_objects(text: str) -> list[str]:
    """What the reference shows (`::: tailrace.room.file.Name`) and no file binds."""
    found = []
    for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        parts = name.split(".")
        files = [ROOT / "src" / "/".join(parts[:cut]) for cut in (len(parts), len(parts) - 1)]
        there = [file for path in files for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()]
        if not there or not (whole_file(there[0], parts) or re.search(rf"\b{parts[-1]}\b", there[0].read_text())):
            found.append(name)
    return found


def whole_file(file: Path, parts: list[str]) -> bool:
    return file.stem == parts[-1] or file.parent.name == parts[-1]


def test_objects_of_the_reference_exist():
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    assert len(pages) > 3
    assert not [name for page in pages for name in missing_objects(page.read_text())]


def test_planted_faults_are_found(tmp_path: Path):
    (tmp_path / "there.md").write_text("# One heading\n\n```\n# no heading\n```\n\n## Größe\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#one-heading) [c](gone.md) [d](there.md#no-heading) [e](#here) [f](https://x.org/gone) "  # noqa: E501, one text
        "[g](there.md#größe) `[h](gone.md)`\n"
    )
    assert broken_links(page) == ["gone.md", "there.md#no-heading", "#here", "there.md#größe"]
    assert long_lines(page.read_text() + "| " + "x" * LINE) == [page.read_text().strip()]
    assert missing_files("`sampling/pipeline.py` `pipeline.py`, `line.py` and `engine/pipeline.py`") == [
        "engine/pipeline.py",
        "line.py",
    ]
    assert missing_objects(
        "::: tailrace.sampling.Slots\n\n::: tailrace.sampling.Slotz\n::: tailrace.gone\n::: tailrace.errors\n"
    ) == [
        "tailrace.sampling.Slotz",
        "tailrace.gone",
    ]  # the first is nothing in its file, the second is no file
    assert missing_names("`Sampler.begin` `Sampler.nowhere_at_all` `not_there` `top_k: 5`") == [
        "Sampler.nowhere_at_all",
        "not_there",
    ]


def test_the_picture_of_the_path_is_current():
    script = runpy.run_path(str(ROOT / "docs/draw_path.py"))
    assert script["PICTURE"].read_text() == script["picture"](), "run python docs/draw_path.py"
    folders = {
        word
        for group in ("REQUEST", "STEP", "REPLY")
        for box in script[group]
        for word in box.where.split()
        if "/" in word
    }
    assert len(folders) == 6
    assert all((ROOT / "src/tailrace" / folder).is_dir() for folder in folders)


def test_the_tables_of_fields_are_current():
    script = runpy.run_path(str(ROOT / "docs/write_fields.py"))
    pages = [path.read_text() for path in script["PAGES"]]
    assert sum(page.count("<!-- table: ") for page in pages) == len(script["TABLES"])
    assert pages == [script["written"](page) for page in pages], "run python docs/write_fields.py"
    page = pages[0]
    changed = page.replace("| `top_p` | Keep", "| `top_p` | Throw away")
    assert script["written"](changed) == page != changed


def test_the_table_of_thinking_formats_is_current():
    script = runpy.run_path(str(ROOT / "docs/write_reasoning.py"))
    page = script["PAGE"].read_text()
    assert page == script["written"](page), "run python docs/write_reasoning.py"
    changed = page.replace("Seed-OSS", "Sad-OSS")
    assert script["written"](changed) == page != changed


def test_the_table_of_tool_formats_is_current():
    page = tool_docs.PAGE.read_text()
    assert page == tool_docs.with_formats(page), "run python tests/peers/tool_calls.py --write"
    changed = page.replace("| Hunyuan 3 |", "| Hunyuan 5 |")
    assert tool_docs.with_formats(changed) == page != changed


def test_the_table_of_fields_together_is_current():
    script = runpy.run_path(str(ROOT / "docs/write_combinations.py"))
    page = script["PAGE"].read_text()
    assert page == script["written"](page), "run python docs/write_combinations.py"
    changed = page.replace("| `stop_token_ids` | ends", "| `stop_token_ids` | cuts")
    assert script["written"](changed) == page != changed


def test_the_table_of_fields_inside_engines_is_current():
    script = runpy.run_path(str(ROOT / "docs/write_engines.py"))
    page = script["PAGE"].read_text()
    assert page == script["written"](page), "run python docs/write_engines.py"
    changed = page.replace("| `top_p` | truncation | acts |", "| `top_p` | truncation | |")
    assert script["written"](changed) == page != changed
    head, *rows = script["make_table"]()
    assert not [row for row in rows if len(row) != len(head) or not all(cell.strip() for cell in row)]
    assert {name for name, _ in script["list_fields"]()} == FIELDS.keys() | script["SERVER_FIELDS"].keys()


def test_the_tree_is_current():
    script = runpy.run_path(str(ROOT / "docs/write_tree.py"))
    page = script["PAGE"].read_text()
    assert page == script["written"](), "run python docs/write_tree.py"
    assert not re.findall(r"^- .*: $", page, re.MULTILINE), "a file without a sentence"


def test_the_table_of_laws_is_current():
    script = runpy.run_path(str(ROOT / "docs/write_laws.py"))
    page = script["PAGE"].read_text()
    assert page == script["written"](page), "run python docs/write_laws.py"
    changed = page.replace("| `stops.cut` |", "| `stops.cutt` |")
    assert script["written"](changed) == page != changed


def test_the_readme_counts_the_laws():
    assert f"by {len(all_laws())} laws" in (ROOT / "README.md").read_text()


def test_every_page_has_its_place_in_the_site():
    listed = set(re.findall(r"- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert listed - pages == {"index.md", "contributing.md", "changelog.md"}  # made by docs/site_hooks.py
    assert {page for page in pages - listed if not page.startswith("decisions/0")} == set()


def test_each_type_on_the_path_is_defined_in_its_file():
    rows = re.findall(r"^\| \d+ \| `(\w+)` \| `([\w/.]+)` \|", (ROOT / "docs/path.md").read_text(), re.MULTILINE)
    assert len(rows) >= 10
    for name, file in rows:
        assert re.search(rf"^class {name}\b", (ROOT / "src/tailrace" / file).read_text(), re.MULTILINE), (name, file)


def test_every_decision_has_its_place_in_the_index():
    """Once, under the topic that a reader looks for."""
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"^- \[\d+\]\((\d.*\.md)\)", (folder / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in folder.glob("0*.md"))


def test_the_readme_is_short_and_its_figures_are_the_benchmarks():
    readme, benchmarks = (ROOT / "README.md").read_text(), (ROOT / "docs/benchmarks.md").read_text()
    assert len(readme.splitlines()) <= 100
    rows = re.findall(r"^\| \d.*$", readme, re.MULTILINE)
    assert len(rows) == 3
    assert all(row.removesuffix("|") in benchmarks for row in rows)


PROMISED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def find_untested_promises(page: str) -> list[str]:
    """The rows of the tables of SECURITY.md that name no test, and the named tests that do not exist."""
    part = page[page.index("## What counts") : page.index("## What does not")]
    rows = re.findall(r"^\| (?!promise \||state \|).*$", part, re.MULTILINE)
    assert len(rows) >= 25
    found = [row for row in rows if not PROMISED.search(row)]
    for file, name in PROMISED.findall(part):
        path = ROOT / file
        if not path.is_file() or not re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE):
            found.append(f"{file}::{name}")
    return found


def test_each_promise_between_users_names_a_test_that_exists():
    page = (ROOT / "SECURITY.md").read_text()
    assert find_untested_promises(page) == []
    wrong = page.replace("::test_an_equal_part_of_the_store_is_safe", "::test_an_equal_part")
    assert find_untested_promises(wrong) == ["tests/api/test_users.py::test_an_equal_part"]
    row = "| A user gets cake | |"
    assert find_untested_promises(page.replace("| promise | tests |\n|---|---|", f"{row}\n|---|---|", 1)) == [row]
