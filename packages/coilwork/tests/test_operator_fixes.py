"""Operators that torch's tracing gets wrong, beside eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from coilwork.backend import backend
from coilwork_frontend.capture.operator_fixes import broadcast_masked_select, keep_resize_operators
from coilwork_frontend.torch_compat.aot_autograd import compile_with_aot_autograd
from coilwork_lowering import decompositions, partition

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "function": torch.masked_select,
    "method": lambda x, mask: x.masked_select(mask),
    "by name": lambda x, mask: torch.masked_select(mask=mask, input=x),
}
OPERANDS: dict[str, tuple[Tensor, Tensor]] = {
    "a row by a matrix": (torch.arange(4.0), torch.arange(20).view(5, 4) % 7 > 0),
    "a matrix by a row": (torch.arange(20.0).view(4, 5).t(), torch.arange(4) > 1),
    "a column by a row": (torch.arange(5.0)[:, None], torch.arange(4)[None] > 1),
    "alike": (torch.arange(4.0), torch.arange(4) > 1),
}


class Broadcasting:
    """A back end that does nothing else, and counts broadcasts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        broadcast_masked_select(gm)
        gm.graph.lint()
        self.count = sum(node.target is torch.broadcast_tensors for node in gm.graph.nodes)
        call: Callable[..., Any] = gm.forward
        return call


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shapes", OPERANDS)
def test_broadcast_forms_are_those_of_eager(form: str, shapes: str) -> None:
    backend = Broadcasting()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = torch.compile(FORMS[form], backend=backend, dynamic=True)(*OPERANDS[shapes])
    torch.testing.assert_close(found, FORMS[form](*OPERANDS[shapes]))
    assert backend.count == (shapes != "alike")


SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "nansum": lambda x: torch.nansum(x, dim=[]) * 2,
    "nansum with dimensions kept": lambda x: x.nansum([], keepdim=True) * 2,
    "nanmean": lambda x: torch.nanmean(x, ()) * 2,
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_no_listed_dimensions(name: str) -> None:
    ours = torch.compile(SUMS[name], backend="coilwork", options={"strict": True})
    results = []
    for call in (SUMS[name], ours):
        x = torch.tensor([[1.0, float("nan")], [3.0, 4.0]]).requires_grad_()
        found = call(x)
        found.sum().backward()
        results.append((found.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])


def labels(rows: int, classes: int) -> Tensor:
    """Of each row other classes, of which some rows have none and some all."""
    generator = torch.Generator().manual_seed(3)
    found = torch.stack([torch.randperm(classes, generator=generator) for _ in range(rows)])
    for row in range(rows):
        end = row % (classes + 1)
        if end < classes:
            found[row, end] = -1
    return found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_end_at_the_first_that_is_none(reduction: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.randn(9, 6, dtype=torch.float64)
    x[2, 3] = float("inf")
    x[3, 1] = float("nan")

    def loss(x: Tensor, target: Tensor) -> Tensor:
        return functional.multilabel_margin_loss(x, target, reduction=reduction)

    compiled = torch.compile(loss, backend=backend, dynamic=dynamic)
    mine, its = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, wanted = compiled(mine, labels(9, 6)), loss(its, labels(9, 6))
    torch.testing.assert_close(got, wanted, equal_nan=True)
    got.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(mine.grad, its.grad, equal_nan=True)


def test_ways_to_call_it() -> None:
    torch._dynamo.reset()
    x, target = torch.randn(9, 6), labels(9, 6)

    def losses(x: Tensor) -> list[Tensor]:
        return [
            functional.multilabel_margin_loss(x, target, size_average=False),
            functional.multilabel_margin_loss(x, target, reduce=False),
            torch._C._nn.multilabel_margin_loss(x, target, 2),
            torch.ops.aten.multilabel_margin_loss(x, target, reduction=0),
            functional.multilabel_margin_loss(target=target, input=x),
            *torch.ops.aten.multilabel_margin_loss_forward(x, target, 1),
        ]

    torch.testing.assert_close(torch.compile(losses, backend=backend)(x), losses(x))


def test_a_margin_loss_of_one_row_is_eagers() -> None:
    torch._dynamo.reset()
    module = torch.nn.MultiLabelMarginLoss()
    compiled = torch.compile(module, backend=backend)
    x, target = torch.ones(4), torch.tensor([0, 1, -1, 2])
    assert compiled(x, target).item() == module(x, target).item() == 1.0
    with pytest.raises(RuntimeError):
        compiled(x, torch.tensor([0, 4, -1, 2]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_margin_loss_of_one_label_has_no_dimension(reduction: str) -> None:
    """Losses of labels without a dimension have none."""
    torch._dynamo.reset()

    def losses(x: Tensor, row: Tensor, rows: Tensor, label: Tensor) -> list[Tensor]:
        return [
            functional.multi_margin_loss(row, label, p=2, reduction=reduction),
            functional.multi_margin_loss(rows, label, weight=row.square(), reduction=reduction),
            functional.multi_margin_loss(x, label, reduction=reduction),
            functional.multilabel_margin_loss(x, label, reduction=reduction),
            torch.ops.aten.multi_margin_loss(row, label, reduction=0),
        ]

    row = torch.randn(5)
    given = (torch.tensor(0.5), row, row[None] + 1, torch.tensor(0))
    found, wanted = torch.compile(losses, backend=backend)(*given), losses(*given)
    assert [one.shape for one in found] == [one.shape for one in wanted]
    torch.testing.assert_close(found, wanted)


SHAPES = {
    "linear": (2, 3, 9),
    "bilinear": (2, 3, 6, 5),
    "bicubic": (2, 3, 6, 5),
    "trilinear": (2, 3, 4, 5, 3),
}


def resized(**how: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.interpolate(x, **how)


def operators(function: Callable[[Tensor], Tensor], x: Tensor, *, dynamic: bool = False) -> list[str]:
    """What the backward graph of `function` calls."""
    called: list[str] = []

    def forward(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        assert not [node for node in gm.graph.nodes if "upsample" in str(node.target)]
        return make_boxed_func(gm.forward)

    def backward(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        called.extend(str(node.target) for node in gm.graph.nodes if node.op == "call_function")
        return make_boxed_func(gm.forward)

    def compiler(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        keep_resize_operators(gm)
        return compile_with_aot_autograd(
            gm,
            inputs,
            forward=forward,
            backward=backward,
            inference=forward,
            decompositions=decompositions(),
            partition=partition,
        )

    torch._dynamo.reset()
    x = x.detach().requires_grad_()
    torch.compile(function, backend=compiler, dynamic=dynamic)(x).sum().backward()
    return called


def assert_as_eager(function: Callable[[Tensor], Tensor], x: Tensor, *, dynamic: bool | None = False) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic, options={"strict": True})
    mine, its = x.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
    got, wanted = compiled(mine), function(its)
    torch.testing.assert_close(got, wanted)
    factor = torch.randn_like(wanted)
    (got * factor).sum().backward()
    (wanted * factor).sum().backward()
    torch.testing.assert_close(mine.grad, its.grad)
    assert mine.grad is not None and its.grad is not None
    assert mine.grad.stride() == its.grad.stride()


@pytest.mark.parametrize("mode", SHAPES)
def test_the_gradient_is_one_operator(mode: str) -> None:
    x = torch.randn(SHAPES[mode])
    called = operators(resized(scale_factor=2, mode=mode), x)
    assert [name for name in called if "upsample" in name or "index" in name] == [
        f"aten.upsample_{mode}{x.dim() - 2}d_backward.default"
    ]


@pytest.mark.parametrize("how", [{"size": 13}, {"scale_factor": 2, "align_corners": True}])
def test_vectors_of_cpus_with_computed_weights_are_summed_up_by_position(how: dict[str, Any]) -> None:
    called = operators(resized(mode="linear", **how), torch.randn(2, 3, 9))
    assert not [name for name in called if "upsample" in name]


def test_open_sizes_are_summed_up_by_position() -> None:
    called = operators(resized(scale_factor=2, mode="bilinear"), torch.randn(2, 3, 6, 5), dynamic=True)
    assert not [name for name in called if "upsample" in name]


HOWS: dict[str, dict[str, Any]] = {
    "factor": {"scale_factor": 2},
    "factors": {"scale_factor": 1.7, "align_corners": True},
    "recomputed": {"scale_factor": 1.7, "recompute_scale_factor": True},
    "smaller": {"scale_factor": 0.6},
    "size": {"size": 13, "align_corners": True},
    "sizes": {"size": 11},
}


@pytest.mark.parametrize("how", HOWS)
def test_resizing_as_eager(how: str) -> None:
    for mode, shape in SHAPES.items():
        assert_as_eager(resized(mode=mode, **HOWS[how]), torch.randn(shape, dtype=torch.float64))


def test_open_sizes_are_as_eager() -> None:
    x = torch.randn(SHAPES["bilinear"], dtype=torch.float64)
    assert_as_eager(resized(mode="bilinear", scale_factor=2), x, dynamic=True)


def test_each_dimension_in_its_way() -> None:
    x = torch.randn(2, 3, 6, 5, dtype=torch.float64)
    assert_as_eager(lambda x: functional.interpolate(x, (9, 4), mode="bilinear"), x)
    assert_as_eager(lambda x: functional.interpolate(x, None, (0.5, 3), "bicubic"), x)
    assert_as_eager(
        lambda x: functional.interpolate(input=x, size=[9, 4], mode="bilinear", antialias=True), x
    )
    assert_as_eager(lambda x: functional.interpolate(x, scale_factor=2, mode="nearest"), x)


def test_resized_images_channels_last_are_those_of_eager() -> None:
    x = torch.randn(2, 3, 6, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
    assert_as_eager(resized(scale_factor=2, mode="bilinear"), x)


def test_resizing_among_other_operators_is_eagers() -> None:
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64)

    def block(x: Tensor) -> Tensor:
        larger = functional.interpolate(functional.conv2d(x, weight).relu(), scale_factor=2, mode="bilinear")
        return functional.interpolate(larger.sigmoid(), size=(5, 7), mode="bicubic")

    x = torch.randn(2, 3, 6, 5, dtype=torch.float64)
    assert_as_eager(block, x)
    assert_as_eager(lambda x: checkpoint(block, x, use_reentrant=False), x)


def test_resizing_without_gradients_is_eagers() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3, 6, 5)
    compiled = torch.compile(resized(scale_factor=2, mode="bilinear"), backend=backend)
    torch.testing.assert_close(compiled(x), functional.interpolate(x, scale_factor=2, mode="bilinear"))


def test_resizing_within_transforms_is_eagers() -> None:
    def loss(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2, mode="bilinear").square().sum()

    x = torch.randn(2, 1, 3, 4, 5)
    for function in (torch.func.vmap(torch.func.grad(loss)), torch.func.vmap(loss)):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))


def test_in_16_bits() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3, 6, 5)
    function = resized(scale_factor=2, mode="bilinear")

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(x)

    assert_as_eager(cast, x)
    half = x.bfloat16().requires_grad_()
    (got,) = torch.autograd.grad(torch.compile(function, backend=backend)(half).sum(), half)
    torch.testing.assert_close(got, torch.full_like(got, 4))


@pytest.mark.parametrize("how", [{"size": 5, "scale_factor": 2}, {"size": (5,)}, {}])
def test_what_eager_refuses(how: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 6, 5, requires_grad=True)
    function = resized(mode="bilinear", **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in (function, torch.compile(function, backend=backend)):
            torch._dynamo.reset()
            with pytest.raises((ValueError, RuntimeError)):
                one(x)


INDEXED: dict[str, Callable[..., Tensor]] = {
    "rows": lambda x, n, m, i, b: x[n],
    "columns": lambda x, n, m, i, b: x[:, n],
    "behind positions": lambda x, n, m, i, b: x[i, n],
    "far behind positions": lambda x, n, m, i, b: x[i, :, n],
    "around a slice": lambda x, n, m, i, b: x[n, 1::2, i],
    "behind a mask": lambda x, n, m, i, b: x[b, n],
    "behind an ellipsis": lambda x, n, m, i, b: x[..., n, None, 1] + x[m],
    "read by the program": lambda x, n, m, i, b: x[:, n.item()] + x[n.item(), 1] + x[0, 1:, n.item()].sum(),
    "read and changed": lambda x, n, m, i, b: x[..., m.item() + 1, 0] + x[n, m.item()],
}


def operands(n: int) -> tuple[Tensor, ...]:
    return (
        torch.arange(64.0).view(4, 4, 4),
        torch.tensor(n),
        torch.tensor(1),
        torch.tensor([3, 0]),
        torch.arange(16).view(4, 4) % 3 == 0,
    )


def stored(x: Tensor, n: Tensor, m: Tensor, i: Tensor, b: Tensor) -> Tensor:
    x = x.clone()
    x[n] = 5
    x[m].add_(10)
    x[..., n].mul_(2)
    x[i, n] = 1.5
    x[0, n.item()] = 7
    x[:, m.item(), n] += 2
    return x


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, fullgraph=True, options={"strict": True})


@pytest.mark.parametrize("form", INDEXED)
def test_reads_at_positions_from_data_are_those_of_eager(form: str) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        ours = compiled(INDEXED[form])
        for n in (-4, 3):
            torch.testing.assert_close(ours(*operands(n)), INDEXED[form](*operands(n)))
        with pytest.raises((RuntimeError, IndexError)):
            ours(*operands(4))


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
def test_numbers_that_a_transform_goes_over(axes: tuple[int | None, int | None]) -> None:
    def chosen(x: Tensor, n: Tensor) -> Tensor:
        return x[n[0]] * 2 + x[0, n[1]]

    x, numbers = torch.arange(48.0).view(3, 4, 4), torch.tensor([[0, 1], [3, 2], [1, -1]])
    given = x if axes[0] is not None else x[0], numbers if axes[1] is not None else numbers[1]
    function = torch.vmap(chosen, in_dims=axes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.compile(function, backend=backend)(*given)
    torch.testing.assert_close(found, function(*given))


def test_writes_at_positions_from_data_are_those_of_eager() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        ours = compiled(stored)
        for n in (-2, 0, 3):
            torch.testing.assert_close(ours(*operands(n)), stored(*operands(n)))
        with pytest.raises((RuntimeError, IndexError)):
            ours(*operands(-5))
