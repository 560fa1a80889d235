"""Judge every causal architecture of the installed transformers and write docs/models.md.

    PYTHONPATH=tests python -m architectures [MODEL_TYPE …] [--part 1/4] [--missing] [--new 40] [--device cuda]

Each one runs in a process of its own, so that a crash or an endless loop is an outcome too. Outcomes are kept in
outcomes.json by version of transformers, and the page is made of the newest version's; those of other devices are
printed alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from typing import Any

import torch
import transformers
from filelock import FileLock

from architectures import judge as judging
from architectures.child import judged, work
from architectures.judge import Outcome, quiet
from architectures.page import CELLS, OUTCOMES, PAGE, kept, page
from architectures.variants import variants

LIMIT_S = 300.0


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m architectures", description=__doc__)
    parser.add_argument("types", nargs="*", help="model types; none: all")
    parser.add_argument("--part", default="1/1", help="K/N: every N-th, from the K-th on")
    parser.add_argument("--new", type=int, default=judging.NEW, help="tokens that each prompt is answered with")
    parser.add_argument(
        "--missing", action="store_true", help="only those whose outcome is not known yet, or lacks cells"
    )
    parser.add_argument("--device", default="cpu", help="where tailrace runs them: cpu, cuda")
    return parser.parse_args(argv)


def outcome(model_type: str, own: dict[str, Any]) -> Outcome:
    """What the child says, or how it ended. A fork has imported what it needs; but no fork can use CUDA once its parent
    has asked the driver for anything: then the forks are those of a process that has done nothing but import."""
    context = multiprocessing.get_context("fork" if judging.DEVICE == "cpu" else "forkserver")
    ours, theirs = context.Pipe()
    child = context.Process(target=work, args=(theirs, model_type, own, judging.NEW, judging.DEVICE))
    child.start()
    theirs.close()
    late = "unmade"
    try:
        while ours.poll(LIMIT_S):
            if isinstance(said := ours.recv(), Outcome):
                return said
            late = "crashed"
        child.kill()
        return Outcome(late, f"nothing after {LIMIT_S:.0f} seconds")
    except EOFError:
        child.join()
        return Outcome("crashed", f"the process ended with {child.exitcode}")
    finally:
        child.join()


def main(argv: list[str] | None = None) -> int:
    """Judge what is asked for; note each outcome at once, so that a run can be cut short."""
    args = arguments(argv)
    judging.NEW = args.new
    version = transformers.__version__
    torch.set_num_threads(1)
    quiet()
    if args.device == "cpu":
        judged("llama", {})  # imports what every fork needs
    else:
        multiprocessing.get_context("forkserver").set_forkserver_preload(["architectures.child"])
    judging.DEVICE = args.device
    part, parts = map(int, args.part.split("/"))
    known = kept().get(version, {}) if args.missing else {}
    asked = variants(tuple(args.types))[part - 1 :: parts]
    for model_type, variant, own in asked:
        if len(known.get(f"{model_type}|{variant}", [])) == CELLS:
            continue
        begun = time.monotonic()
        found = outcome(model_type, own)
        print(f"{model_type:28} {variant:22} {found.kind:8} {time.monotonic() - begun:4.0f}s {found.why}", flush=True)
        if args.device == "cpu":
            keep(version, f"{model_type}|{variant}", found)
    return 0


def keep(version: str, name: str, found: Outcome) -> None:
    """Note one outcome, and write the page anew. Other parts may do the same at the same time."""
    with FileLock(OUTCOMES.with_suffix(".lock")):
        outcomes = kept()
        outcomes.setdefault(version, {})[name] = [found.kind, found.why, judging.NEW, found.reused, found.layers]
        OUTCOMES.write_text(json.dumps(outcomes, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        PAGE.write_text(page(outcomes))


if __name__ == "__main__":
    sys.exit(main())
