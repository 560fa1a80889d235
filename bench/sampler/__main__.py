"""Measure each case of the sampler, against one streaming read of the same rows and against the samplers of other
projects.

cpu.py measures on the CPU. gpu.py measures on a GPU, or runs every case once in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import sys

from bench.sampler.cases import DEVICES


def asked_device(argv: list[str] | None) -> str:
    """Return the value of --device. Each device has flags of its own."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampler", add_help=False, allow_abbrev=False)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    return parser.parse_known_args(argv)[0].device


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark of the device that --device names."""
    device = asked_device(argv)
    if device == "cpu":
        from bench.sampler import cpu

        return cpu.run(argv)
    if device == "interpreter":  # Triton reads the variable when it is imported
        os.environ["TRITON_INTERPRET"] = "1"
    from bench.sampler import gpu

    return gpu.run(argv)


if __name__ == "__main__":
    sys.exit(main())
