"""tests/field_examples.py, for the tests of the plug-in, whose root is this folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PLACE = Path(__file__).parents[1] / "field_examples.py"
spec = importlib.util.spec_from_file_location("field_examples", PLACE)
assert spec is not None
assert spec.loader is not None
examples = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = examples
spec.loader.exec_module(examples)
company, example = examples.company, examples.example
