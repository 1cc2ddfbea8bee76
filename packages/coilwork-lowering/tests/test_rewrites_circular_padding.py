"""Circular padding, which arrives as copies of slices, is read at positions modulo sizes; other
copies stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import loop_evaluator
import pytest
import torch
from rewritten_graphs import Rewritten
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.nn.functional import pad

from coilwork_ir.loops import Pointwise
from coilwork_lowering import decompositions, lower
from coilwork_lowering.rewrites import apply_rewrites
from coilwork_lowering.rewrites.circular_padding import CIRCULAR_PADDING
from coilwork_lowering.torch_compat.sizes import find_shape_env, guard_count

PADS = [
    ((3, 4, 7), (2, 1)),
    ((3, 4, 7), (7, 7)),
    ((3, 4, 7), (0, 3)),
    ((4, 7), (3, 0)),
    ((2, 2, 1), (1, 1)),
    ((1, 2, 5), (3, -2)),
    ((1, 2, 6), (-2, 3)),
    ((1, 2, 6), (-2, -1)),
    ((2, 3, 5, 6), (2, 1, 3, 1)),
    ((2, 3, 8, 6), (2, -1, -3, 1)),
    ((2, 3, 8, 6), (-1, -2, -3, -1)),
    ((1, 2, 3, 4), (0, 0, 2, 2)),
    ((2, 2, 3, 4, 5), (1, 0, 1, 1, 2, 2)),
]


def captured(
    function: Callable[[Tensor], Tensor], x: Tensor, *more: Tensor, open_sizes: bool = False
) -> Rewritten:
    """The graph of `function` as AOTAutograd has it, rewritten; what it computes of `x`, and of `more`, is
    eager's.
    """
    seen: list[Rewritten] = []

    def compiler(gm: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        environment = find_shape_env(gm)
        before = 0 if environment is None else guard_count(environment)
        fired = apply_rewrites(gm, [CIRCULAR_PADDING])
        assert environment is None or guard_count(environment) == before
        gm.graph.lint()
        gm.graph.eliminate_dead_code()
        gm.recompile()
        seen.append(Rewritten(gm, fired))
        boxed: Callable[..., object] = make_boxed_func(gm.forward)
        return boxed

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=compiler, decompositions=decompositions())
    compiled = torch.compile(function, backend=backend, dynamic=False)
    for dim, size in enumerate(x.shape):
        if open_sizes and size > 1:
            torch._dynamo.mark_dynamic(x, dim)
    for given in (x, *more):
        found, wanted = compiled(given), function(given)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()
    (made,) = seen
    return made


def is_copied_once(made: Rewritten) -> bool:
    calls = [call for call in made.calls() if "aten." in call]
    return (
        made.names == ("wrapped-around",)
        and calls[-1] == "aten.clone.default"
        and not any("scatter" in call for call in calls)
    )


@pytest.mark.parametrize(("shape", "pads"), PADS)
def test_circular_padding_is_one_copy(shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    assert is_copied_once(captured(lambda x: pad(x, pads, mode="circular"), torch.randn(shape)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.bool])
def test_of_any_type(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (2, 3, 4)).to(dtype)
    assert is_copied_once(captured(lambda x: pad(x, (2, 1), mode="circular"), x))


# Not where more may be padded than is left of a dimension, for all that the guards say.
@pytest.mark.parametrize(("shape", "pads"), [case for case in PADS if case[1] not in ((3, -2), (-2, 3))])
def test_circular_padding_of_open_sizes_is_copied_once(shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    x, larger = torch.randn([size + 7 for size in shape]), torch.randn([size + 9 for size in shape])
    assert is_copied_once(captured(lambda x: pad(x, pads, mode="circular"), x, larger, open_sizes=True))


def halves(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[:, :3] = x[:, 4:]
    made[:, 3:] = x[:, :4]
    return made


def test_copies_that_somebody_wrote() -> None:
    assert is_copied_once(captured(halves, torch.randn(3, 7)))


def from_zeros(x: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    made[:, :3] = x[:, 4:]
    made[:, 3:] = x[:, :4]
    return made


def two_sources(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[:, :3] = x[:, 4:]
    made[:, 3:] = x[:, :4] + 1
    return made


def another_order(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[:, :2] = x[:, 4:6]
    made[:, 2:5] = x[:, :3]
    made[:, 5:] = x[:, 3:5]
    return made


def part_by_part(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[:2] = x[1:]
    made[2:, :3] = x[:1, :3]
    made[2:, 3:] = x[:1, 2:6]
    return made


def every_other(x: Tensor) -> Tensor:
    made = x.new_empty(3, 14)
    made[:, ::2] = x
    made[:, 1::2] = x
    return made


def converted(x: Tensor) -> Tensor:
    made = torch.empty_like(x, dtype=torch.float64)
    made[:, :3] = x[:, 4:]
    made[:, 3:] = x[:, :4]
    return made


STAYS = [from_zeros, two_sources, another_order, part_by_part, every_other, converted]


@pytest.mark.parametrize("function", STAYS)
def test_other_copies_stay(function: Callable[[Tensor], Tensor]) -> None:
    assert captured(function, torch.randn(3, 7)).names == ()


def test_what_was_never_written_stays() -> None:
    def with_a_gap(x: Tensor) -> Tensor:
        made = x.new_empty(3, 9)
        made[:, :7] = x
        made[:, 8:] = x[:, :1]
        return made[:, :7]

    assert captured(with_a_gap, torch.randn(3, 7)).names == ()


def test_complex_numbers_stay() -> None:
    x = torch.randn(3, 7, dtype=torch.complex64)
    assert captured(halves, x).names == ()


def test_it_is_lowered_to_copies_alone() -> None:
    x = torch.randn(2, 3, 5, 6)
    lowered = lower(captured(lambda x: pad(x, (2, 1, 3, 1), mode="circular"), x).gm, name="graph")
    assert all(isinstance(node, Pointwise) for node in lowered.graph.nodes)
    assert len(lowered.graph.nodes) <= 2
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [x])
    assert torch.equal(found, pad(x, (2, 1, 3, 1), mode="circular"))
