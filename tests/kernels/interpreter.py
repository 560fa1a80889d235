"""Triton's interpreter without what it does in vain: the same numbers in half the time. Knows nothing of the kernels.

Each call of a device function patches all of `triton.language` anew though its caller has done so, each integer
addition is checked for an overflow that is then not reported (`debug` is off), and each dtype is looked up in a table
that is made for this once.
"""

from __future__ import annotations

import dataclasses
import functools
import types

import triton.language as tl
from triton.runtime import interpreter


def hasten() -> None:
    """Once per process; a Triton that has other names inside stays as it is."""
    builder = getattr(interpreter, "interpreter_builder", None)
    if builder is None or not all(
        hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope", "_get_np_dtype")
    ):
        return
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    slow, known = interpreter._get_np_dtype, functools.cache(interpreter._get_np_dtype)
    interpreter._get_np_dtype = lambda dtype: (
        known(dtype) if type(dtype) is tl.dtype else slow(dtype)
    )  # pointers have no hash
    interpreter._patch_lang = once(interpreter._patch_lang, interpreter._LangPatchScope)


def once(patch, scope_type):
    """`patch`, done once for each language module that a grid's functions see, and undone when the grid has ended."""
    patched: set[int] = set()
    scopes: list = []

    @functools.cache
    def seen(function: types.FunctionType) -> frozenset[int]:
        return frozenset(id(value) for value in function.__globals__.values() if value is tl or value is tl.core)

    def patch_once(function: types.FunctionType):
        if seen(function) <= patched:
            return scope_type()
        patched.update(seen(function))
        scopes.append(patch(function))
        if len(scopes) > 1:
            return scope_type()  # the grid's own undoes this one too
        outer = scope_type()
        outer.restore = undo
        return outer

    def undo() -> None:
        patched.clear()
        while scopes:
            scopes.pop().restore()

    return patch_once
