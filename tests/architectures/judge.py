"""One tiny checkpoint through the engine, against transformers: the same greedy tokens in float32, and in bfloat16
logits no farther from the float32 ones than transformers' own.

Outcomes: equal; refused, with the sentence; wrong, with the first difference; crashed, with the exception; and unmade,
where transformers itself can't build or run the tiny model.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from architectures.tiny import ROPE_BOUNDARY
from tailrace.config import CacheConfig, ModelConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.models.auto_class import find_auto_class
from tailrace.params import SamplingParams
from tailrace.runners import load_runner
from tailrace.runners.base import ModelRunner, StatefulRunner
from tailrace.runners.flat_batch import FlatTokens
from tailrace.wire.messages import Failed, ModelInfo, Submit, Tokens

BLOCK = 16
REUSE_BLOCKS = 4096  # of the cache in which prompts are sent again: an eighth of it must hold a copy of a state
LENGTHS = (5, 37, 70)  # of the prompts: the longer ones cross the window, the chunk and the rope's boundary
NEW = 40
DEVICE = "cpu"  # where ours runs; transformers runs on the CPU
TIE = 2e-3  # two logits nearer than that, in standard deviations of the row, are a tie in float32
FACTOR = 2.0  # what our bfloat16 may err more than transformers' own
FLOOR = 1e-3  # relative error that is never judged
WAYS: dict[str, dict[str, Any]] = {  # how the same requests are served
    "alone": {"max_num_seqs": 1, "max_num_batched_tokens": 512},
    "in chunks of 7": {"max_num_seqs": 1, "max_num_batched_tokens": 7},
    "in a batch": {"max_num_seqs": 8, "max_num_batched_tokens": 64},
}


Answered = list[tuple[list[int], list[int]]]  # prompts, and what transformers answers


@dataclass(frozen=True)
class Outcome:
    """kind: equal, refused, wrong, crashed or unmade. why: one line. reused: of the tokens of a prompt that is sent
    again, those that come from the prefix cache. layers: the kinds of the tiny model's layers, if its config names
    them."""

    kind: str
    why: str = ""
    reused: int = 0
    layers: str = ""


def prompts(config: Any) -> list[list[int]]:
    """Ids from 3 on: lower ones are special. A model with LongRoPE gets only those beyond the boundary: it is served
    with the long factors throughout, and transformers' generate begins with the short ones (runners/rope.py)."""
    generator = torch.Generator().manual_seed(11)
    texts = [torch.randint(3, config.vocab_size, (length,), generator=generator).tolist() for length in LENGTHS]
    long = "longrope" in str(getattr(config, "rope_parameters", None))
    return [text for text in texts if not long or len(text) > ROPE_BOUNDARY]


def judge(folder: Path, made: Callable[[], None]) -> Outcome:
    """The outcome of the checkpoint in `folder`. made: called when transformers has run it."""
    try:
        theirs = reference(folder, torch.float32, "eager")
        expected = [(prompt, generated(theirs, prompt)) for prompt in prompts(theirs.config.get_text_config())]
    except Exception as error:
        return refused(folder) or Outcome("unmade", line(error))
    made()
    apart, reused = 0.0, 0
    for dtype in ("float32", "bfloat16"):
        try:
            runner = load_runner(
                ModelConfig(dtype=dtype, threads=1, device=DEVICE, batch_invariant=True), folder, block_size=BLOCK
            )
        except (ModelLoadError, ConfigError) as error:
            return Outcome("refused", f"{'' if dtype == 'float32' else dtype + ': '}{line(error)}")
        except Exception as error:
            return Outcome("crashed", f"{dtype}, at load: {line(error)}")
        try:
            problem = judged[dtype](runner, theirs, expected, folder)
            if dtype == "float32" and not problem:
                reused, problem = reuse_prefix(runner, longest_text(expected))
            if dtype == "float32":
                apart = between_neighbours(runner, [prompt + answer for prompt, answer in expected])
        except Exception as error:
            return Outcome("crashed", f"{dtype}, served: {line(error)}")
        if problem:
            return Outcome("wrong", f"{dtype}, {problem}")
    return Outcome("equal", f"beside others the logits differ by {apart:.0e}" if apart else "", reused)


def refused(folder: Path) -> Outcome | None:
    """The outcome where transformers itself can't run the checkpoint, and the server says why it doesn't."""
    try:
        load_runner(ModelConfig(dtype="float32", threads=1, device=DEVICE), folder, block_size=BLOCK)
    except ModelLoadError as error:
        return Outcome("refused", line(error))
    except Exception:
        return None
    return None


def quiet() -> None:
    """Warnings of others, and ours about modules that are not replaced."""
    from transformers.utils import logging as hf_logging

    warnings.simplefilter("ignore")
    hf_logging.set_verbosity(50)
    hf_logging.disable_progress_bar()
    logging.getLogger("tailrace").setLevel(logging.ERROR)


def line(error: BaseException) -> str:
    """An exception as one short line, without the folder."""
    text = " ".join(str(error).split())
    _, found, rest = text.partition("/checkpoint: ")
    text = rest if found else text
    return (text if isinstance(error, ModelLoadError | ConfigError) else f"{type(error).__name__}: {text}")[:300]


def reference(folder: Path, dtype: torch.dtype, attention: str) -> Any:
    """The checkpoint as transformers runs it."""
    from transformers import AutoConfig

    kind = find_auto_class(AutoConfig.from_pretrained(folder))
    return kind.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()


@torch.inference_mode()
def generated(model: Any, prompt: list[int]) -> list[int]:
    """What transformers' greedy generate says."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return out[0, len(prompt) :].tolist()


@torch.inference_mode()
def whole(model: Any, ids: list[int]) -> torch.Tensor:
    """Logits of all positions in one pass, float32 [T, V]."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def served(runner: ModelRunner, limits: dict[str, Any], asked: list[list[int]]) -> list[list[int]]:
    """The engine's greedy tokens for the prompts, with other requests beside them where there is room."""
    beside = [list(reversed(asked[-1]))[:23], asked[-1][5:9]] if limits["max_num_seqs"] > 1 else []
    cache = CacheConfig(num_blocks=64, block_size=BLOCK, prefix_reuse=False)
    engine = Engine(runner, ModelInfo("tiny", runner.vocab_size, 256, []), cache, SchedulerConfig(**limits))
    said, _ = answered(engine, [*asked, *beside])
    engine.close()
    return said[: len(asked)]


def answered(engine: Engine, asked: list[list[int]]) -> tuple[list[list[int]], int]:
    """The greedy tokens for the prompts, sent at once, and how many of the prompts' tokens were cached."""
    for i, prompt in enumerate(asked):
        engine.submit(Submit(str(i), 0, prompt, SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)))
    said: dict[str, list[int]] = {str(i): [] for i in range(len(asked))}
    cached = 0
    while engine.has_work:
        for message in engine.step().get(b"", []):
            if isinstance(message, Failed):
                raise RuntimeError(f"a request failed: {message}")
            if isinstance(message, Tokens):
                said[message.id] += message.token_ids
                cached += message.cached_tokens
    return list(said.values()), cached


def longest_text(expected: Answered) -> list[int]:
    """The longest prompt and its answer, as the next turn of a conversation repeats them."""
    return max((prompt + answer for prompt, answer in expected), key=len)


def reuse_prefix(runner: ModelRunner, prompt: list[int]) -> tuple[int, str]:
    """How many tokens of a prompt that is sent again are cached, and how the answer then differs; "" if it doesn't."""
    cache = CacheConfig(num_blocks=REUSE_BLOCKS, block_size=BLOCK, prefix_reuse=True)
    engine = Engine(runner, ModelInfo("tiny", runner.vocab_size, 256, []), cache, SchedulerConfig(max_num_seqs=1))
    first, _ = answered(engine, [prompt])
    again, cached = answered(engine, [prompt])
    engine.close()
    return cached, "" if again == first else f"behind a reused prefix: {cached} cached tokens change the answer"


def same_tokens(runner: ModelRunner, theirs: Any, expected: Answered, folder: Path) -> str:
    """How the engine's tokens differ from generate's, other than by a tie; "" if they don't."""
    for way, limits in WAYS.items():
        answers = served(runner, limits, [prompt for prompt, _ in expected])
        for ours, (prompt, wanted) in zip(answers, expected, strict=True):
            if ours == wanted:
                continue
            at = next(i for i, (a, b) in enumerate(zip(ours, wanted, strict=True)) if a != b)
            row = whole(theirs, prompt + ours[:at])[-1]
            gap = float((row.max() - row[ours[at]]) / row.std())
            if gap > TIE:
                return f"{way}: token {at} behind a prompt of {len(prompt)} is {gap:.2g} deviations below the best"
    return ""


@torch.inference_mode()
def logits(runner: ModelRunner, texts: list[list[int]], passes: int = 3) -> list[torch.Tensor]:
    """Our logits of all positions of the texts, prefilled side by side in so many passes; float32 [T, V] each."""
    width = -(-max(map(len, texts)) // BLOCK) + 1  # a block more: the trial needs two
    if isinstance(runner, StatefulRunner) and runner.state_bytes:
        runner.allocate_states(len(texts), 2, 0)
    runner.allocate(width * len(texts))
    tables = torch.randperm(width * len(texts), generator=torch.Generator().manual_seed(5))
    tables = tables.view(len(texts), width).to(torch.int32).numpy()
    parts: list[list[torch.Tensor]] = [[] for _ in texts]
    for each in range(passes):
        flat = FlatTokens()
        for ids in texts:
            first, end = (len(ids) * each // passes, len(ids) * (each + 1) // passes)
            flat.add(ids[first:end], end)
        flat.wanted = list(range(len(flat.token_ids)))
        rows = runner.forward(flat.make_batch(tables, BLOCK)).float().cpu()
        for i in range(len(texts)):
            parts[i].append(rows[flat.query_start[i] : flat.query_start[i + 1]].clone())
    return [torch.cat(part) for part in parts]


def small_error(runner: ModelRunner, theirs: Any, expected: Answered, folder: Path) -> str:
    """How far bfloat16 logits are from those of the same weights in float32, where that is more than FACTOR times what
    transformers' own attentions reach; "" if it is not. By position, since experts that change places make single
    positions err by much; the medians and the ninth deciles are compared."""
    texts = [prompt + answer for prompt, answer in expected]
    exact = reference(folder, torch.bfloat16, "eager").float()
    rounded = [whole(exact, ids) for ids in texts]
    own = []
    for attention in ("eager", "sdpa"):
        try:
            model = reference(folder, torch.bfloat16, attention)
        except (ValueError, ImportError):  # the architecture has no such attention
            continue
        own.append(errors([whole(model, ids) for ids in texts], rounded))
    ours = errors(logits(runner, texts), rounded)
    for name, share in (("median", 0.5), ("ninth decile", 0.9)):
        allowed = max(float(each.quantile(share)) for each in own)
        got = float(ours.quantile(share))
        if not got <= FACTOR * allowed + FLOOR:
            return f"{name} of the relative errors {got:.2g}, transformers' own {allowed:.2g}"
    return ""


def between_neighbours(runner: ModelRunner, texts: list[list[int]]) -> float:
    """The largest difference between the logits of a text alone in one pass, and beside others in three passes or token
    by token; 0: all
    bits are the same."""
    together = logits(runner, texts)
    alone = [logits(runner, [ids], passes=1)[0] for ids in texts]
    single = [logits(runner, [ids[:4]], passes=4)[0] for ids in texts]  # token by token
    alone += [rows[:4] for rows in alone]
    return max(float((a - b).abs().max()) for a, b in zip(together + single, alone, strict=True))


def errors(got: list[torch.Tensor], exact: list[torch.Tensor]) -> torch.Tensor:
    """Relative error of every position, one vector."""
    return torch.cat([(a - b).norm(dim=-1) / b.norm(dim=-1) for a, b in zip(got, exact, strict=True)])


judged = {"float32": same_tokens, "bfloat16": small_error}
