"""What mkdocs does beyond mkdocs.yml: pages from the files of the root, the list of decisions. Known to mkdocs by
`hooks`."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """README, CONTRIBUTING and CHANGELOG become pages, with links as they are from docs/."""
    root = Path(config.config_file_path).parent
    for name, page in ROOT_PAGES.items():
        text = (root / name).read_text().replace("](docs/", "](")
        for other, target in ROOT_PAGES.items():
            text = text.replace(f"]({other})", f"]({target})")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page of decisions ends with a list of them."""
    if page.file.src_uri != "decisions/index.md":
        return markdown
    records = sorted(file for file in files.src_uris if file.startswith("decisions/0"))
    titles = [(Path(config.docs_dir) / record).read_text().split("\n", 1)[0].removeprefix("# ") for record in records]
    lines = [f"- [{title}]({Path(record).name})" for record, title in zip(records, titles, strict=True)]
    return "\n".join([markdown, *lines, ""])
