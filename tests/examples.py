"""How many examples hypothesis tries: in `make test` an eighth, in `make test-long` all, always the same ones; by the
profile `search` all, others each time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quick", derandomize=True, deadline=None)
settings.register_profile("long", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("quick")  # --hypothesis-profile=long comes later


def examples(most: int) -> int:
    """Of `most` what the profile in force tries, 12 at least."""
    return min(most, max(most // 8, 12)) if settings.get_current_profile_name() == "quick" else most
