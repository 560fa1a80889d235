"""Tensors whose numbers are not what their memory holds: each argument reads them right, or refuses them by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tailrace.errors import ParameterError
from tailrace.kernels.dispatch import find
from tailrace.params import SamplingParams
from tailrace.sampling import Guidance, Rows, Sampler, Slots, sample
from tailrace.sampling.guidance import guide
from tailrace.sampling.prompt_logprobs import replay

R, V = 2, 64


def batch_in_vmap(tensor: torch.Tensor) -> torch.Tensor:
    held: list[torch.Tensor] = []
    torch.vmap(lambda inside: (held.append(inside), inside)[1])(tensor[None])
    return held[0]


def negate_imaginary(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view whose memory holds the opposite numbers."""
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


RIGHT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # the same numbers
    "negated lazily": lambda tensor: torch._neg_view(-tensor),
    "needs a gradient": lambda tensor: tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor,
    "strided": lambda tensor: torch.stack([tensor, -tensor], -1)[..., 0],
}
WRONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # no numbers in memory
    "sparse": torch.Tensor.to_sparse,
    "compressed rows": torch.Tensor.to_sparse_csr,
    "nested": lambda tensor: torch.nested.nested_tensor(list(tensor)),
    "jagged": lambda tensor: torch.nested.nested_tensor(list(tensor), layout=torch.jagged),
    "meta": lambda tensor: tensor.to("meta"),
    "fake": lambda tensor: FakeTensorMode().from_tensor(tensor),
    "functional": lambda tensor: torch._to_functional_tensor(tensor),  # pyright: ignore
    "inside vmap": batch_in_vmap,
    "conjugated": lambda tensor: torch.complex(tensor.float(), tensor.float()).conj(),
    "quantised": lambda tensor: torch.quantize_per_tensor(tensor.float(), 1.0, 0, torch.quint8),
}
if torch.backends.mkldnn.is_available():
    WRONG["mkldnn"] = lambda tensor: tensor.float().to_mkldnn()

MATRICES = ("compressed rows", "nested", "jagged")  # forms that one number per row can't have

LOGITS = torch.arange(R * V, dtype=torch.float32).reshape(R, V).sin() * 9
MASK = torch.full((R, V // 32), 0x55555555, dtype=torch.int32)
Q = torch.full((R, V), 1 / V)


def draw(logits: torch.Tensor, rows: Rows, backend: Any = None) -> list[int]:
    slots = Slots(R, V)
    for slot in range(R):
        slots.add(slot, SamplingParams(), key=slot, prompt=[1])
    return Sampler(slots, backend)(logits, rows).token_ids.tolist()


def force(tokens: torch.Tensor) -> list[int]:
    slots = Slots(1, V)
    slots.add(0, SamplingParams(presence_penalty=1.0), key=1, prompt=[1])
    slots.commit([0], [tokens])
    return slots[0].history.tokens


EACH = [0, 1]
ARGUMENTS: dict[str, tuple[str, torch.Tensor, Callable[[torch.Tensor], Any]]] = {
    "sampler": ("logits", LOGITS, lambda it: draw(it, Rows.plain(EACH, EACH, [1, 1]))),
    "reference": ("logits", LOGITS, lambda it: draw(it, Rows.plain(EACH, EACH, [1, 1]), "reference")),
    "masks": ("masks", MASK, lambda it: draw(LOGITS, Rows.plain(EACH, EACH, [1, 1], mask=EACH, masks=it))),
    "proposals": (
        "proposals",
        Q,
        lambda it: draw(LOGITS, Rows.drafted([0], [1], [[5]], ["rejection"], it)),
    ),
    "slot": ("slot", torch.arange(2), lambda it: draw(LOGITS, Rows.plain(it, EACH, [1, 1]))),
    "stateless": ("logits", LOGITS, lambda it: sample(it, seed=1, position=3).tolist()),
    "temperature": (
        "temperature",
        torch.tensor([0.5, 2.0]),
        lambda it: sample(LOGITS, seed=1, position=3, temperature=it).tolist(),
    ),
    "seed": ("seed", torch.tensor([5, 7]), lambda it: sample(LOGITS, seed=it, position=3).tolist()),
    "bitmask": ("bitmask", MASK, lambda it: sample(LOGITS, seed=1, position=3, bitmask=it).tolist()),
    "replay": ("logits", LOGITS, lambda it: replay(it, [3, 4], 2)),
    "replayed tokens": ("tokens", torch.tensor([3, 4]), lambda it: replay(LOGITS, it, 2)),
    "guide": ("conditional", LOGITS, lambda it: guide(it, -LOGITS, torch.tensor([1.5, 0.5])).tolist()),
    "scale": ("scale", torch.tensor([1.5, 0.5]), lambda it: guide(LOGITS, -LOGITS, it).tolist()),
    "companion": ("companion", torch.tensor([1, 0]), lambda it: Guidance(it, torch.ones(2)).companion.tolist()),
    "commit": ("tokens", torch.tensor([3, 4]), force),
    "argmax": ("logits", LOGITS, lambda it: find("argmax", "cpu")(it)[0].tolist()),
}


@pytest.mark.few
@pytest.mark.parametrize("form", RIGHT)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_other_form_of_the_same_numbers_is_read_right_or_refused(argument: str, form: str):
    name, plain, call = ARGUMENTS[argument]
    expected = call(plain)
    found: Any = None
    try:
        found = call(RIGHT[form](plain))
    except ParameterError as error:
        found = str(error)
    assert found == expected or found.startswith(f"{name} must be contiguous")


@pytest.mark.parametrize("argument", [name for name, (_, plain, _) in ARGUMENTS.items() if plain.is_floating_point()])
def test_imaginary_part_of_a_conjugate_is_read_right(argument: str):
    _, plain, call = ARGUMENTS[argument]
    given = negate_imaginary(plain)
    assert given.is_neg()
    if argument == "proposals":
        given = given.contiguous()
    assert call(given) == call(plain)


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested", "ignore:torch.quantize")
@pytest.mark.few(60)
@pytest.mark.parametrize(
    ("argument", "form"),
    [
        (argument, form)
        for argument, (_, plain, _) in ARGUMENTS.items()
        for form in WRONG
        if plain.dim() == 2 or form not in MATRICES
    ],
)
def test_tensor_without_numbers_in_memory_is_refused_by_name(argument: str, form: str):
    name, plain, call = ARGUMENTS[argument]
    given = WRONG[form](plain)
    with pytest.raises(ValueError, match=f"^{name} must "):
        call(given)


SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "no dimension": lambda tensor: tensor.flatten()[0],
    "no entry": lambda tensor: tensor[:0],
    "one dimension more": lambda tensor: tensor[None],
    "one entry less": lambda tensor: tensor[..., 1:],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_another_shape_has_a_meaning_or_is_refused(argument: str, shape: str):
    _, plain, call = ARGUMENTS[argument]
    with suppress(ParameterError):  # no other error
        call(SHAPES[shape](plain))


def test_one_row_for_all_is_read_as_that_row():
    one = LOGITS[:1].expand(R, V)
    assert one.stride(0) == 0
    assert sample(one, seed=1, position=3).tolist() == sample(one.contiguous(), seed=1, position=3).tolist()
    wide = LOGITS[:, :1].expand(R, V)
    assert sample(wide, seed=1, position=3).tolist() == sample(wide.contiguous(), seed=1, position=3).tolist()
