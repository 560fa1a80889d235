"""Triton's interpreter without what it does in vain: the same numbers in two fifths of the time. Knows nothing of
the kernels.

Each call of a device function patches all of `triton.language` anew though its caller has done so, each integer
addition is checked for an overflow that is then not reported (`debug` is off), each dtype is looked up in a table that
is made for this once, and each tensor's shape is checked, spelt and wrapped anew.
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
    tl.block_type.__init__ = remembered_type(tl.block_type.__init__)
    tl.tensor.__init__ = remembered_shape(tl.tensor.__init__)


def remembered_type(slow):
    """`block_type.__init__`, whose shape is checked once for each element type and shape."""
    known: dict[tuple, dict] = {}

    def init(self, element_ty, shape) -> None:
        key = (element_ty.name, *[s.value if type(s) is tl.constexpr else s for s in shape])
        if (made := known.get(key)) is None:
            slow(self, element_ty, shape)
            made = {name: value for name, value in self.__dict__.items() if name != "element_ty"}
            made["of_tensors"] = (tl.tuple([tl.constexpr(s) for s in self.shape]), tl.constexpr(self.numel), element_ty)
            known[key] = made
        else:
            self.__dict__.update(made, element_ty=element_ty)

    return init


def remembered_shape(slow):
    """`tensor.__init__`, which wraps the shape once for each type."""

    def init(self, handle, type) -> None:
        made = type.__dict__.get("of_tensors")
        if made is None:
            slow(self, handle, type)
            type.of_tensors = (self.shape, self.numel, self.dtype)
        else:
            self.handle, self.type = handle, type
            self.shape, self.numel, self.dtype = made

    return init


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
