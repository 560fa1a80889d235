"""Benchmarks, which need a checkout: `python -m bench.NAME` runs one, `python -m bench` lists their names.

Each area has a folder, and lib/ has what several areas share. The folders of areas are on this package's search path,
so NAME needs no area: `python -m bench.knobs` runs bench/server/knobs.py. Code imports modules by their full names.
"""

from __future__ import annotations

from pathlib import Path

AREAS = ("sampler", "server", "model", "speculation", "engine")
__path__ += [str(Path(__file__).parent / area) for area in AREAS]
