"""An engine whose streams only decode: the worker of step_profile.py. The first line says which model and how
many streams, every further one for how many seconds to run steps. An answer is steps and seconds."""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from tailrace.config import EngineConfig, ModelConfig, SchedulerConfig
from tailrace.engine.process import build_engine
from tailrace.models import resolve
from tailrace.params import SamplingParams
from tailrace.wire.messages import Submit

SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}
WARM_UP = 10  # steps
VOCAB = 10_000  # of which prompts are made


def main() -> None:
    """Answer until stdin closes."""
    first = json.loads(sys.stdin.readline())
    named = {name: first[name] for name in ("weights", "threads")}
    folder = resolve(ModelConfig(model=first["model"], weights=first["weights"]), progress=False).folder
    model = ModelConfig(model=str(folder), **named)
    engine = build_engine(EngineConfig(model=model, scheduler=SchedulerConfig(max_num_seqs=first["streams"])))
    for i in range(first["streams"]):
        prompt = [(7919 * (i + 1) * (j + 1)) % VOCAB for j in range(first["prompt_tokens"])]
        params = SamplingParams(**SAMPLED, seed=i, max_tokens=first["output_tokens"], ignore_eos=True)
        engine.submit(Submit(str(i), 1, prompt, params))
    while engine.waiting or any(sequence.prefilling for sequence in engine.running):
        engine.step()
    for _ in range(WARM_UP):
        engine.step()
    gc.collect()
    gc.freeze()  # as in the engine's process
    print(json.dumps(0), flush=True)
    for line in sys.stdin:
        start, wanted_s, steps = time.perf_counter(), json.loads(line), 0
        while time.perf_counter() - start < wanted_s and len(engine.running) == first["streams"]:
            engine.step()
            steps += 1
        print(json.dumps([steps, time.perf_counter() - start]), flush=True)


if __name__ == "__main__":
    main()
