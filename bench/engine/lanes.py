"""Show where the time of a step goes: consecutive steps as two lanes, the engine's thread and the device.

One engine in this process, streams that only decode, with overlap off and on. On a GPU the device's lane is what CUDA
events saw on its stream; on the CPU it is the time in the forward pass. Prints ms per step and part; --svg draws the
steps to scale.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

from bench.engine.device_lane import DeviceLane
from bench.lib.harness import cores, machine, table, write_json
from tailrace.config import EngineConfig, ModelConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.engine.process import build_engine
from tailrace.engine.stats import Span
from tailrace.models import resolve
from tailrace.params import SamplingParams
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Submit

SAMPLED = {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0.3, "logprobs": 3}
WARM_UP, STEPS, DRAWN = 20, 25, 4  # steps: before the rounds, of a round, in the drawing
ROUNDS = 6
PARTS = {  # part of a step → color
    "plan": "#8da0cb",
    "draft": "#a6d854",
    "forward": "#fc8d62",
    "mask": "#e5c494",
    "wait": "#eeeeee",
    "sample": "#e78ac3",
    "commit": "#66c2a5",
}
WIDTH, LANE, LEFT, TOP = 900, 26, 90, 44  # px


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.lanes", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results here too")
    parser.add_argument("--svg", type=Path, help="draw the lanes here")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--model", help="as for tailrace serve")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--device", default="auto", help="as for tailrace serve")
    parser.add_argument("--threads", type=int, default=cores())
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, draw."""
    args = arguments(argv)
    model = resolve(ModelConfig(model=args.model, dtype=args.dtype))
    config = ModelConfig(model=str(model.folder), dtype=args.dtype, device=args.device, threads=args.threads)
    prompt = Tokenizer.load(model.folder).encode("A tailrace carries the water away. " * args.prompt_tokens)
    prompts = [prompt[i : i + args.prompt_tokens] for i in range(args.streams)]
    runs: dict[str, Watched] = {}
    for overlap in ("off", "on"):
        scheduler = SchedulerConfig(max_num_seqs=args.streams, overlap=overlap)
        runs[overlap] = Watched(build_engine(EngineConfig(model=config, scheduler=scheduler)), prompts)
    gc.collect()
    gc.freeze()  # as in the engine's process
    for turn in range(ROUNDS):  # in turns, since machines drift
        for watched in [*runs.values()][:: 1 if turn % 2 else -1]:
            watched.steps()
    for watched in runs.values():
        if watched.engine.grammars is not None:
            watched.engine.grammars.close()
    found = {overlap: watched.parts() for overlap, watched in runs.items()}
    where = f"{args.streams} streams, {model.name}, {args.dtype}, {runs['off'].lane.name}"
    print(where)
    print(
        table(
            [
                {
                    "ms per step": part,
                    **{f"overlap {name}": round(parts.get(part, 0.0), 3) for name, parts in found.items()},
                }
                for part in (*PARTS, "device", "step")
            ]
        )
    )
    if args.svg:
        args.svg.write_text(drawing(where, {f"overlap {name}": watched.drawn for name, watched in runs.items()}))
    if args.json:
        write_json(args.json, {"machine": machine(), "what": where, "runs": found})
    return 0


class Watched:
    """An engine whose streams only decode. drawn: the spans of a few steps of the last round."""

    def __init__(self, engine: Engine, prompts: list[list[int]]) -> None:
        self.engine, self.lane = engine, DeviceLane(engine)
        self.spans: list[Span] = []
        self.took: list[float] = []
        self.drawn: list[Span] = []
        for i, prompt in enumerate(prompts):
            params = SamplingParams(**SAMPLED, seed=i, max_tokens=2 * (WARM_UP + ROUNDS * STEPS), ignore_eos=True)
            engine.submit(Submit(str(i), 1, prompt, params))
        while engine.waiting or any(sequence.prefilling for sequence in engine.running):
            engine.step()
        for _ in range(WARM_UP):
            engine.step()

    def steps(self) -> None:
        """Run a round of steps."""
        self.engine.counters.trace = trace = []
        self.lane.begin()
        starts = []
        for _ in range(STEPS):
            starts.append(time.perf_counter())
            self.engine.step()
        spans = [*trace, *self.lane.spans()]
        self.engine.counters.trace = None
        self.spans += spans
        self.took += [b - a for a, b in pairwise(starts)]
        self.drawn = clipped(spans, starts[STEPS // 2], starts[STEPS // 2 + DRAWN])

    def parts(self) -> dict[str, float]:
        """ms per step: parts of the engine's thread, parts of the device, and the whole step."""
        found = {part: self.each(part, "cpu") for part in PARTS}
        return found | {
            "device": sum(self.each(part, "device") for part in PARTS),
            "step": statistics.fmean(self.took) * 1e3,
        }

    def each(self, part: str, lane: str) -> float:
        return sum(s.end - s.start for s in self.spans if s.part == part and s.lane == lane) / (ROUNDS * STEPS) * 1e3


def clipped(spans: list[Span], first: float, last: float) -> list[Span]:
    """The spans between the two times, shifted to begin at 0."""
    return [
        Span(s.part, max(s.start, first) - first, min(s.end, last) - first, s.lane)
        for s in spans
        if s.end > first and s.start < last
    ]


def drawing(title: str, charts: dict[str, list[Span]]) -> str:
    """An SVG: for each chart a lane of the engine's thread and one of the device, all to the same scale."""
    longest = max((span.end for spans in charts.values() for span in spans), default=1.0)
    scale = WIDTH / longest
    height = TOP + len(charts) * (2 * LANE + 34) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="16">{title}</text>',
    ]
    for place, (part, color) in enumerate((p, c) for p, c in PARTS.items() if p != "draft"):
        x = LEFT + place * 90
        out.append(f'<rect x="{x}" y="22" width="10" height="10" fill="{color}" stroke="#999"/>')
        out.append(f'<text x="{x + 14}" y="31">{part}</text>')
    for place, (name, spans) in enumerate(charts.items()):
        y = TOP + place * (2 * LANE + 34)
        out.append(f'<text x="8" y="{y + 10}" font-weight="bold">{name}</text>')
        for row, lane in enumerate(("cpu", "device")):
            at = y + 16 + row * LANE
            out.append(f'<text x="8" y="{at + 16}">{"engine" if lane == "cpu" else "device"}</text>')
            out.append(f'<rect x="{LEFT}" y="{at}" width="{WIDTH}" height="{LANE - 4}" fill="none" stroke="#ccc"/>')
            out += [box(span, at, scale) for span in spans if span.lane == lane]
    axis = height - 22
    for ms in range(0, int(longest * 1e3) + 1, tick(longest * 1e3)):
        x = LEFT + ms / 1e3 * scale
        out.append(f'<line x1="{x:.1f}" y1="{TOP + 10}" x2="{x:.1f}" y2="{axis}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{axis + 14}" text-anchor="middle">{ms} ms</text>')
    return "\n".join([*out, "</svg>", ""])


def box(span: Span, y: int, scale: float) -> str:
    x, width = LEFT + span.start * scale, max(0.3, (span.end - span.start) * scale)
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{LANE - 4}" fill="{PARTS.get(span.part, "#ffffff")}" '
        f'stroke="#666" stroke-width="0.3"><title>{span.part} {(span.end - span.start) * 1e3:.2f} ms</title></rect>'
    )


def tick(longest_ms: float) -> int:
    """A round number of ms that gives about ten ticks."""
    return next((t for t in (1, 2, 5, 10, 20, 50, 100, 200) if longest_ms / t <= 12), 500)


if __name__ == "__main__":
    sys.exit(main())
