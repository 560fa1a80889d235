"""SGLang's modules for a machine without a GPU, in each process whose PYTHONPATH has this folder.

Packages of vision, audio and CUDA that SGLang's imports name, and that these tests never call, are empty objects. A
kernel that is called all the same raises an error. KERNELS has those of sgl_kernel's build for a CPU that a tree of
drafts needs, in Python. Python runs this file at its start.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


class Missing(MagicMock):
    """A function that no test may call."""

    def __call__(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError(f"{self!r} is a stand-in")


ABSENT = {
    "torchvision": MagicMock,
    "torchaudio": MagicMock,
    "soundfile": Missing,
    "sgl_kernel": Missing,
    "flashinfer": Missing,
}


class Absent:
    """Finds them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None  # type: ignore

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        made = ABSENT[spec.name.partition(".")[0]](name=spec.name)
        made.__spec__, made.__path__, made.__name__, made.__version__ = spec, [], spec.name, "0"
        for name, kernel in KERNELS.get(spec.name, {}).items():
            setattr(made, name, kernel)
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


def find_tree(mask, lengths, positions, index, next_token, next_sibling, count: int, width: int) -> None:
    """Describe each request's tree of drafts by its mask of ancestors, bool [count · width · width]."""
    for one in range(count):
        rows = mask.view(count, width, width)[one].tolist()
        above = [[j for j in range(i) if row[j]] for i, row in enumerate(rows)]
        parents = [max(nodes, default=-1) for nodes in above]
        for node in range(width):
            index.view(count, width)[one, node] = one * width + node
            positions.view(count, width)[one, node] = lengths[one] + len(above[node])
            children = [k for k in range(node + 1, width) if node in above[k]]
            next_token.view(count, width)[one, node] = children[0] if children else -1
            same = [k for k in range(node + 1, width) if parents[k] == parents[node] >= 0]
            next_sibling.view(count, width)[one, node] = same[0] if same else -1


def verify_greedily(
    *,
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
) -> None:
    """Keep the drafts that are their parent's target token; the last kept node's target token follows them."""
    for one, drafts in enumerate(candidates.tolist()):
        node, kept = 0, 0
        accept_index[one, 0] = retrive_index[one, 0]
        while kept + 1 < accept_index.shape[1]:
            wanted, child = int(target_predict[one, node]), int(retrive_next_token[one, node])
            while child != -1 and drafts[child] != wanted:
                child = int(retrive_next_sibling[one, child])
            if child == -1:
                break
            predicts[int(retrive_index[one, node])] = wanted
            node, kept = child, kept + 1
            accept_index[one, kept] = retrive_index[one, node]
        predicts[int(retrive_index[one, node])] = int(target_predict[one, node])
        accept_token_num[one] = kept


def assign_cache(rows, table, starts, ends, out, width: int) -> None:
    """Copy the cache's places of each request's new tokens."""
    done = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        out[done : done + end - start] = table[row, start:end]
        done += end - start


def fill_table(rows, table, starts, ends, places, width: int) -> None:
    """Write the cache's places of each request's new tokens into the table."""
    done = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = places[done : done + end - start].to(table.dtype)
        done += end - start


def fill_kept_cache(accept_index, places, out) -> None:
    """Copy the cache's places of the kept nodes."""
    kept = accept_index[accept_index > -1].long()
    out[: len(kept)] = places[kept]


def copy_cache(addresses, strides, targets, sources) -> None:
    """Copy the cache's rows of these places, in each of its buffers."""
    for address, size in zip(addresses.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + place * size, size) for place in sources.tolist()]
        for place, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(address + place * size, row, size)


KERNELS = {
    "sgl_kernel": {
        "verify_tree_greedy_cpu": verify_greedily,
        "assign_extend_cache_locs_cpu": assign_cache,
        "assign_req_to_token_pool_cpu": fill_table,
        "fill_accept_out_cache_loc_cpu": fill_kept_cache,
        "copy_all_layer_kv_cache_cpu": copy_cache,
    },
    "sgl_kernel.speculative": {"reconstruct_indices_from_tree_mask": find_tree},
}
sys.meta_path.append(Absent())  # type: ignore[arg-type]
