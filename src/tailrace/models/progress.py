"""What a long fetch or conversion says on stderr: a bar on a terminal, a plain line per stage elsewhere, or nothing."""

from __future__ import annotations

import sys

from tqdm import tqdm


class Progress:
    """One job of several stages. Use as a context manager, so that the bar is closed whatever happens."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.bar: tqdm | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stage(self, text: str) -> None:
        """A new stage begins."""
        self.close()
        if not self.enabled:
            return
        if sys.stderr.isatty():
            layout = "{desc}: {percentage:3.0f}% |{bar}| {elapsed}"
            self.bar = tqdm(total=1, desc=text, file=sys.stderr, bar_format=layout, leave=True)
        else:
            print(f"tailrace: {text}", file=sys.stderr, flush=True)

    def advance(self, done: int, total: int) -> None:
        """So much of the stage is done; any unit, as long as both have the same."""
        if self.bar is not None and total > 0:
            self.bar.total = total
            self.bar.n = min(done, total)
            self.bar.refresh()

    def close(self) -> None:
        """End the stage: the bar runs to its end."""
        if self.bar is not None:
            self.bar.n = self.bar.total
            self.bar.close()
            self.bar = None
