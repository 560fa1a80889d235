"""Makes decode steps that run without the model's code: CUDA graphs on a GPU, recorded calls on a CPU. They are used
only if their logits are those of the model."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from tailrace.runners.fuse import explain_difference
from tailrace.runners.graphs import GraphRecorder, Graphs, Launch
from tailrace.runners.paged_model import PagedModel
from tailrace.runners.recorded import MOST, RecordedSteps
from tailrace.runners.trials import decode_trial

log = logging.getLogger(__name__)


@torch.inference_mode()
def record_graphs(
    paged: PagedModel, most: int, width: int, capture: Callable[[Launch], Launch] | None = None
) -> Graphs | None:
    """Return the decode steps as graphs, or None if their logits differ. The trial's positions must be in the cache.

    Args:
        most: sequences of the largest graph. width: the most entries of a block table.
        capture: see Graphs; None: a GPU's.
    """
    graphs, problem = None, ""
    trials = sorted({1, min(3, most), most})
    if paged.states.shapes:
        trials = [sequences for sequences in trials if sequences <= paged.states.slots]
        paged.states.spread(trials[-1])
    try:
        recorder = capture or GraphRecorder(paged.device)
        graphs = Graphs(paged.run_placed, most, width, paged.device, recorder, bool(paged.states.shapes))
        for sequences in trials:
            batch = decode_trial(paged.vocab_size, paged.block_size, sequences)
            problem = problem or explain_difference(paged.logits(batch), graphs(batch))
    except RuntimeError as error:  # the model's code makes the host wait, or there is no memory left
        problem = str(error)
    if problem:
        log.warning("no CUDA graphs: %s", problem)
    return None if problem else graphs


@torch.inference_mode()
def record_calls(paged: PagedModel, max_num_seqs: int, width: int) -> RecordedSteps | None:
    """Return the decode steps as recorded calls, or None if the model's code does more than call. The trial's positions
    must be in the cache. width: the most entries of a block table.

    Steps of some numbers of sequences are recorded here, up to max_num_seqs. The others are recorded when they first
    occur, which makes that step two to four times as long for all its sequences.
    """
    states = paged.states
    steps, problem = RecordedSteps(paged.run, states, paged.model.parameters(), width), ""
    most = min(3, states.slots) if states.shapes else 3
    if states.shapes:
        states.spread(most)
    try:
        for sequences in sorted({1, most}):
            # recorded with other inputs
            steps(decode_trial(paged.vocab_size, paged.block_size, sequences, -2))
            batch = decode_trial(paged.vocab_size, paged.block_size, sequences)
            if not torch.equal(paged.logits(batch), steps(batch)):
                problem = "their logits are not the model's"
        for sequences in [] if problem or states.shapes else list_sizes(min(MOST, max_num_seqs)):
            steps(decode_trial(paged.vocab_size, paged.block_size, sequences))
    except (RuntimeError, TypeError, ValueError) as error:
        problem = str(error)
    if problem:
        log.info("no recorded decode steps: %s", problem)
    return None if problem else steps


def list_sizes(most: int) -> list[int]:
    """Return the numbers of sequences whose steps are recorded at load: powers of two, and `most`. Each takes some
    80 ms for a model of 30 layers."""
    return sorted({most, *(2**power for power in range(1, most.bit_length()))} - {0, 1})
