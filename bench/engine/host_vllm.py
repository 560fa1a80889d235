"""vLLM's core beside ours: the worker of bench.host, in an environment with vLLM (`make test-vllm` makes one).

    python -m bench.engine.host_vllm 64 256

The engine runs in this process, with a tiny model of random weights. The processor time of its host part is measured
where all streams decode: `schedule` and the preparation of inputs are "plan", the update from outputs is "commit". The
last line is JSON: a row per number of streams, in microseconds per sequence and step.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ["TAILRACE_VLLM"] = "0"  # vLLM's own sampler

VOCAB, STEPS, PROMPT = 2048, 64, 8


def write_model(folder: Path) -> None:
    """Write a model of two layers of 64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, **sizes)).save_pretrained(folder)


def clock_method(owner: type, name: str, part: str, spent_s: defaultdict[str, float]) -> None:
    """Add the processor time of a method to a part."""
    whole: Callable[..., Any] = getattr(owner, name)

    def timed(*given: Any, **named: Any) -> Any:
        begun_s = time.thread_time()
        try:
            return whole(*given, **named)
        finally:
            spent_s[part] += time.thread_time() - begun_s

    setattr(owner, name, timed)


def measure(engine: Any, streams: int, spent_s: defaultdict[str, float]) -> dict[str, float]:
    """Return the row of this many greedy streams."""
    from vllm import SamplingParams  # type: ignore[import-not-found]

    params = SamplingParams(temperature=0.0, max_tokens=STEPS + 40, ignore_eos=True, detokenize=False)
    for place in range(streams):
        prompt = [(7919 * (place + 1) * (j + 1)) % VOCAB for j in range(PROMPT)]
        engine.add_request(f"{streams}-{place}", {"prompt_token_ids": prompt}, params)
    for _ in range(20):
        engine.step()
    spent_s.clear()
    for _ in range(STEPS):
        engine.step()
    row = {part: seconds * 1e6 / STEPS / streams for part, seconds in spent_s.items()}
    while engine.has_unfinished_requests():
        engine.step()
    return {"streams": streams, **row}


def main() -> None:
    """Print the rows."""
    from vllm import EngineArgs, LLMEngine  # type: ignore[import-not-found]
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # type: ignore[import-not-found]

    counts, spent_s = [int(count) for count in sys.argv[1:]], defaultdict[str, float](float)
    for owner, name, part in (
        (Scheduler, "schedule", "plan"),
        (GPUModelRunner, "_update_states", "plan"),
        (GPUModelRunner, "_prepare_inputs", "plan"),
        (Scheduler, "update_from_output", "commit"),
    ):
        clock_method(owner, name, part, spent_s)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        options = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "dtype": "float32",
        }
        most = max(counts)
        engine = LLMEngine.from_engine_args(
            EngineArgs(model=folder, max_num_seqs=most, max_num_batched_tokens=max(2048, most * PROMPT), **options)
        )
        rows = [measure(engine, count, spent_s) for count in counts]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
