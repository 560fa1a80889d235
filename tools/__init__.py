"""Programs for maintainers, which no wheel holds. Each runs from the checkout's root as `python -m tools.NAME`."""
