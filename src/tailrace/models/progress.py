"""Progress of a long download or conversion on stderr: a bar on a terminal, a plain line per stage elsewhere, or
nothing."""

from __future__ import annotations

import sys

from tqdm import tqdm

from tailrace.errors import escape_controls


class Progress:
    """A job of several stages. Use it as a context manager, so that the bar is closed in any case."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.bar: tqdm | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_stage(self, text: str) -> None:
        """Start a new stage."""
        self.close()
        if not self.enabled:
            return
        text = escape_controls(text)
        if sys.stderr.isatty():
            layout = "{desc}: {percentage:3.0f}% |{bar}| {elapsed}"
            self.bar = tqdm(total=1, desc=text, file=sys.stderr, bar_format=layout, leave=True)
        else:
            print(f"tailrace: {text}", file=sys.stderr, flush=True)

    def advance(self, done: int, total: int) -> None:
        """Set the progress of the stage; `done` and `total` may have any unit."""
        if self.bar is not None and total > 0:
            self.bar.total = total
            self.bar.n = min(done, total)
            self.bar.refresh()

    def close(self) -> None:
        """End the stage and complete its bar."""
        if self.bar is not None:
            self.bar.n = self.bar.total
            self.bar.close()
            self.bar = None
