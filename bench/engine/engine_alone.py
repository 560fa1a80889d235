"""The engine alone, without HTTP: tokens per second of streams that only decode, and how long the device is idle.

Run as a worker (see harness.Worker): the first line says which model and settings. The clock runs from the step that
finishes the last prompt to the step that finishes the first answer. On a GPU, CUDA events stand around each forward
pass and each launch of the sampler's kernels (device_lane.py), and the time between them is idle. On the CPU,
where the device is a thread, idle time is time without a forward pass.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from bench.engine.device_lane import DeviceLane
from tailrace.config import EngineConfig, ModelConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.engine.process import build_engine
from tailrace.params import SamplingParams
from tailrace.wire.messages import Submit


def main() -> None:
    """Answer questions until stdin closes."""
    first = json.loads(sys.stdin.readline())
    model = ModelConfig(**{name: first[name] for name in ("model", "dtype", "device", "threads", "batch_invariant")})
    streams = first["streams"]
    at_once = max(SchedulerConfig().max_num_batched_tokens, streams * first["prompt_tokens"])  # all prompts in one step
    scheduler = SchedulerConfig(max_num_seqs=streams, max_num_batched_tokens=at_once, overlap=first["overlap"])
    engine = build_engine(EngineConfig(model=model, scheduler=scheduler))
    lane = DeviceLane(engine)
    print(json.dumps({"vocab": engine.runner.vocab_size}), flush=True)
    for turn, line in enumerate(sys.stdin):
        print(json.dumps(measure(engine, lane, turn, json.loads(line))), flush=True)


def measure(engine: Engine, lane: DeviceLane, turn: int, question: dict[str, Any]) -> dict[str, Any]:
    """All prompts at once. tokens: sampled while the clock ran. parts: ms per step of the engine's work on the host."""
    params = SamplingParams(**question["sampling"], max_tokens=question["output_tokens"], ignore_eos=True)
    for i, prompt in enumerate(question["prompts"]):
        engine.submit(Submit(f"{turn} {i}", turn, prompt, params))
    while engine.waiting or any(sequence.prefilling for sequence in engine.running):
        engine.step()
    engine.counters.trace = trace = []
    lane.begin()
    begun, steps, parts, count = said(engine), engine.counters.steps, dict(engine.counters.step_ms), len(engine.running)
    start = time.perf_counter()
    engine.step()
    while len(engine.running) == count:
        engine.step()
    wall_s, tokens, steps = time.perf_counter() - start, said(engine) - begun, max(1, engine.counters.steps - steps)
    forward_s = sum(span.end - span.start for span in trace if span.part == "forward")
    idle = lane.idle() if lane.on_gpu else 1 - forward_s / wall_s
    parts = {name: (ms - parts.get(name, 0.0)) / steps for name, ms in engine.counters.step_ms.items()}
    engine.counters.trace = None
    while engine.has_work:
        engine.step()
    return {"wall_s": wall_s, "tokens": tokens, "steps": steps, "idle": idle, "parts": parts}


def said(engine: Engine) -> int:
    return engine.counters.generated_tokens


if __name__ == "__main__":
    main()
