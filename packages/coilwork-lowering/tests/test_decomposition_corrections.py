"""Decompositions of our own give eager's results where torch's do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.out_dtype import out_dtype
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from coilwork_lowering import decompositions

aten = torch.ops.aten
CASES: dict[str, Callable[[], Any]] = {
    "linspace from a fraction": lambda: aten.linspace(4.3, -3, 50, dtype=torch.int64),
    "linspace of int32": lambda: aten.linspace(-2.9, 7.9, 13, dtype=torch.int32),
    "linspace of uint8": lambda: aten.linspace(0, 4.3, 50, dtype=torch.uint8),
    "linspace between tensors": lambda: aten.linspace(
        torch.tensor(4.3), torch.tensor(-3), 50, dtype=torch.int16
    ),
    "linspace of floats": lambda: aten.linspace(4.3, -3, 50),
    "angle": lambda: aten.angle(torch.tensor([-2.0, -0.0, 0.0, 3.0, float("nan"), float("-inf")])),
    "angle of integers": lambda: aten.angle(torch.tensor([-2, 0, 3])),
    "indices where a mask is true": lambda: aten._unsafe_masked_index(
        torch.arange(8.0).view(2, 4),
        torch.tensor([True, False, True, True]),
        [torch.tensor([1, 9, -2, -1]), torch.tensor([-1, -9, 3, -4])],
        5.0,
    ),
    "round to decimals": lambda: aten.round.decimals(torch.tensor([1.2345, -2.5, 0.055, 1e30]), decimals=2),
    "round to hundreds": lambda: aten.round.decimals(torch.tensor([1234.5, -250.0, 350.0]), decimals=-2),
    "round to integers": lambda: aten.round.decimals(torch.tensor([1.5, -2.5]).bfloat16(), decimals=0),
    "masked scatter": lambda: aten.masked_scatter(
        torch.zeros(2, 3), torch.tensor([[True, False, True], [False, True, True]]), torch.arange(1.0, 9.0)
    ),
    "masked scatter by a row": lambda: aten.masked_scatter(
        torch.zeros(3, 2).t(), torch.tensor([True, False, True]), torch.arange(1, 9).float()
    ),
    "adaptive pooling": lambda: _pooled(aten.adaptive_max_pool2d, aten.adaptive_max_pool2d_backward),
    "fractional pooling": lambda: aten.fractional_max_pool2d_backward(
        torch.ones(1, 2, 2, 2),
        torch.arange(50.0).view(1, 2, 5, 5),
        [2, 2],
        [2, 2],
        torch.tensor([[[[0, 6], [6, 24]], [[3, 4], [20, 21]]]]),
    ),
    "indices of triangles": lambda: (aten.tril_indices(3, 4, 1), aten.triu_indices(3, 4, -1)),
    "ldexp": lambda: aten.ldexp(torch.tensor([1.5, -3.0]), torch.tensor([0.5, -2.0])),
    "dist": lambda: aten.dist(torch.arange(6.0).view(2, 3), torch.ones(3), 3),
    "narrow copy": lambda: aten.narrow_copy(torch.arange(12).view(3, 4), 1, 1, 2),
    "elements by strides": lambda: (
        aten.as_strided_copy(torch.arange(12.0).view(3, 4), (2, 2), (1, 2), 3),
        aten.as_strided_copy(torch.arange(12).view(3, 4)[1:].t(), (4, 2), (0, 3), None),
    ),
    "gradients of a loss of NaN": lambda: aten.smooth_l1_loss_backward(
        torch.ones(6),
        torch.tensor([float("nan"), float("inf"), float("inf"), 0.25, 3.0, -3.0]),
        torch.tensor([0.0, float("inf"), 0.0, 0.5, 1.0, 1.0]),
        0,
        1.0,
    ),
    "gradients where values are NaN": lambda: aten.elu_backward(
        torch.ones(32), 1.0, 1.0, 1.0, False, torch.tensor([float("nan"), -0.5]).repeat(16)
    ),
    "added to nothing": lambda: aten.index_add(torch.zeros(3, 0), 1, torch.tensor([5]), torch.ones(3, 1)),
    "a number divided": lambda: (
        torch.div(5.5, torch.tensor([2.0, -3.0]), rounding_mode="floor"),
        torch.div(5.5, torch.tensor([2.0, -3.0]), rounding_mode="trunc"),
        torch.floor_divide(5.5, torch.tensor([2.0, -3.0])),
    ),
    "powers of booleans": lambda: (
        aten.pow.Tensor_Scalar(torch.tensor([True, False]), True),
        aten.pow.Tensor_Scalar(torch.tensor([True, False]), False),
        aten.pow.Tensor_Scalar(torch.tensor([True, False]), 2),
    ),
    "linspace of one": lambda: aten.linspace(4.3, -3, 1, dtype=torch.int64),
}


def _pooled(forward: Any, backward: Any) -> torch.Tensor:
    x = torch.arange(2.0 * 3 * 5 * 4).view(2, 3, 5, 4).sin()
    result, indices = forward(x, [2, 3])
    gradient: torch.Tensor = backward(result * 2, x, indices)
    return gradient


LEFT = (
    "as_strided_copy linspace angle round.decimals masked_scatter max_pool2d_backward tril_indices ldexp "
    "dist narrow_copy"
).split()


@pytest.mark.parametrize("name", CASES)
def test_corrected_decompositions_are_those_of_eager(name: str) -> None:
    function = CASES[name]
    gm = make_fx(function, decomposition_table=decompositions())()
    called = [str(node.target) for node in gm.graph.nodes]
    assert not [target for target in called if any(name in target for name in LEFT)]
    found, expected = gm(), function()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_masked_scatter_is_contiguous() -> None:
    value, mask = torch.arange(12.0).view(3, 4).t(), torch.arange(12).view(3, 4).t() % 3 == 0

    def function() -> Any:
        return aten.masked_scatter.default(value, mask, torch.arange(1.0, 9.0))

    found = make_fx(function, decomposition_table=decompositions())()()
    torch.testing.assert_close(found, function(), check_stride=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_sigmoid_is_contiguous(dtype: torch.dtype) -> None:
    value = torch.linspace(-90, 90, 48).view(2, 3, 2, 4).to(dtype).to(memory_format=torch.channels_last)

    def function() -> Any:
        return aten.log_sigmoid_forward.default(value)

    found = make_fx(function, decomposition_table=decompositions())()()
    torch.testing.assert_close(found, function(), check_stride=True)


def test_a_source_that_is_too_short_is_refused() -> None:
    def function(mask: torch.Tensor) -> torch.Tensor:
        scattered: torch.Tensor = aten.masked_scatter(torch.zeros(3), mask, torch.ones(1))
        return scattered

    mask = torch.tensor([True, False, True])
    gm = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(mask)
    with pytest.raises(IndexError):
        gm(mask)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_is_of_the_first_dimension(dim: int) -> None:
    """Along others, the meta functions of torch state strides that results do not have."""
    x = torch.tensor([[2, 0, 2, 1], [1, 0, 1, 1], [2, 0, 2, 1]])
    for function in (
        lambda x: aten.unique_dim(x, dim, True, True, True),
        lambda x: aten.unique_dim_consecutive(x, dim, True, True),
        lambda x: aten.unique_consecutive(x, True, True, dim),
    ):
        gm = make_fx(function, decomposition_table=decompositions())(x)
        called = [node for node in gm.graph.nodes if "unique" in str(node.target)]
        assert [node.args[1] for node in called] == [0]
        for found, expected in zip(gm(x), function(x), strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()


def test_unique_of_a_gpu_is_of_any_dimension() -> None:
    """Its kernel's results are contiguous, as the meta function says."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        gm = make_fx(lambda x: aten.unique_dim(x, 1, True, True, True), decomposition_table=decompositions())(
            torch.empty(5, 4, device="cuda:0")
        )
    (called,) = [node for node in gm.graph.nodes if "unique" in str(node.target)]
    assert called.args[1] == 1
    found = gm.graph.find_nodes(op="output")[0].args[0][0].meta["val"]
    assert found.stride(1) == 1


def test_what_may_be_empty_is_left_to_aten() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scattered: torch.Tensor = aten.masked_scatter(x, mask, torch.masked_select(x, mask))
        return scattered

    x, mask = torch.randn(3), torch.tensor([False, False, False])
    gm = make_fx(function, decomposition_table=decompositions(), tracing_mode="symbolic")(x, ~mask)
    assert any("masked_scatter" in str(node.target) for node in gm.graph.nodes)
    assert torch.equal(gm(x, mask), x)


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 1)])
def test_index_add_does_not_broadcast(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = aten.index_add(x, 0, index, source)
        return added

    inputs = (torch.zeros(3, 2), torch.tensor([0, 2]), torch.ones(shape))
    gm = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*inputs)
    with pytest.raises(RuntimeError, match="must match self tensor shape"):
        gm(*inputs)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("index", [torch.tensor(0), torch.tensor([0])])
def test_index_add_of_single_numbers(shape: tuple[int, ...], index: torch.Tensor) -> None:
    def function(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = aten.index_add(x, 0, index, source, alpha=2)
        return added

    x, source, other = torch.full(shape, 3.0), torch.full(shape, 5.0), torch.ones((1,) if shape == () else ())
    trace = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")
    gm = trace(x, index, source)
    assert torch.equal(gm(x, index, source), function(x, index, source))
    with pytest.raises(RuntimeError, match="must match self tensor shape"):
        trace(x, index, other)(x, index, other)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [[-3], [-1, 0]])
def test_a_norm_along_dimensions_counted_from_the_last(dim: list[int], keepdim: bool) -> None:
    value = torch.tensor([[[-1.5]]])

    def function(value: torch.Tensor) -> Any:
        return aten.linalg_vector_norm.default(value, 3, dim, keepdim)

    gm = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(value)
    (output,) = gm.graph.find_nodes(op="output")
    assert output.args[0].meta["val"].shape == function(value).shape
    torch.testing.assert_close(gm(value), function(value))


def test_how_many_values_are_distinct_depends_on_data() -> None:
    value = torch.tensor([3, 1, 3])

    def function(value: torch.Tensor) -> Any:
        return aten._unique.default(value)[0]

    gm = make_fx(function, decomposition_table=decompositions(), tracing_mode="symbolic")(value)
    (output,) = gm.graph.find_nodes(op="output")
    assert isinstance(output.args[0].meta["val"].shape[0], torch.SymInt)
    assert torch.equal(gm(value), function(value))


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: (aten.mm.default, torch.int32, a, b),
        lambda a, b: (aten.mul.Tensor, torch.int32, a, b.t()),
        lambda a, b: (aten.mul.Tensor, torch.int32, a, 2.0),
        lambda a, b: (aten.mm.default, torch.float32, a.bfloat16() / 7, b.bfloat16() / 3),
    ],
    ids=["product of bytes", "bytes", "bytes by a number", "product of bfloat16"],
)
def test_out_dtype_computes_in_the_wide_type(make: Callable[..., tuple[Any, ...]]) -> None:
    a, b = (torch.randint(-128, 127, shape, dtype=torch.int8) for shape in ((5, 6), (6, 5)))

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return out_dtype(*make(a, b))

    made = make_fx(function, decomposition_table=decompositions())(a, b)
    assert out_dtype not in {node.target for node in made.graph.nodes}
    torch.testing.assert_close(made(a, b), function(a, b))
