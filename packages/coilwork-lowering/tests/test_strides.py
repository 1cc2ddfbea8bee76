"""Decomposed results lie in memory as eager's kernels lay them out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from aot_compilers import TracingMode
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions
from coilwork_lowering.decompositions.strides import predict_elementwise_strides

SIZES = (2, 3, 4)
ORDERS = list(itertools.permutations(range(3)))


def laid_out(order: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers from 1 on, of `SIZES`, whose dimensions lie in memory in `order`."""
    dense = torch.arange(1, 25).to(dtype).view([SIZES[k] for k in order])
    return dense.permute([order.index(k) for k in range(3)])


@pytest.mark.parametrize("function", [torch.copysign, torch.floor_divide])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.float32, torch.int64),
        (torch.int64, torch.float32),
        (torch.float64, torch.float32),
        (torch.int32, torch.int64),
        (torch.int32, torch.int32),
        (torch.float32, torch.float32),
    ],
)
def test_unlike_types_and_layouts(
    function: Callable[..., torch.Tensor], left: torch.dtype, right: torch.dtype
) -> None:
    pairs = list(itertools.product(ORDERS, ORDERS))
    operands = [(laid_out(one, left), laid_out(other, right)) for one, other in pairs]
    assert_layouts(function, operands)


def assert_layouts(function: Callable[..., Tensor], operands: Sequence[tuple[Any, ...]]) -> None:
    """One graph, in which `function` is called with all of `operands` in turn, promises eager's types and
    strides, and has eager's results.
    """

    def every(calls: Sequence[tuple[Any, ...]]) -> list[Tensor]:
        return [function(*call) for call in calls]

    gm = make_fx(every, tracing_mode="fake", decomposition_table=decompositions())(operands)
    (output,) = gm.graph.find_nodes(op="output")
    for call, node, found, wanted in zip(
        operands, output.args[0], gm(operands), every(operands), strict=True
    ):
        fake = node.meta["val"]
        assert (fake.dtype, fake.stride()) == (wanted.dtype, wanted.stride()), [x.stride() for x in call]
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_gradients_of_losses_are_contiguous(loss: str) -> None:
    function = getattr(torch.ops.aten, f"{loss}_backward").default
    further = (0,) if loss == "mse_loss" else (0, 1.0)

    def gradient(*given: torch.Tensor) -> Any:
        return function(*given, *further)

    pairs = list(itertools.product(ORDERS, ORDERS))
    operands = [tuple(laid_out(order, torch.float32) for order in (one, one, other)) for one, other in pairs]
    assert_layouts(gradient, operands)


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss"])
@pytest.mark.parametrize("own", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_of_losses_have_their_operands_type(loss: str, own: torch.dtype) -> None:
    """Torch's meta functions say the promoted type; eager's kernels fill a tensor like the operand."""
    function = getattr(torch.ops.aten, f"{loss}_backward").default
    further = (0,) if loss == "mse_loss" else (0, 1.0)
    table = decompositions()
    for incoming, other in itertools.product((torch.float32, torch.float16), (torch.float32, torch.bfloat16)):
        operands = tuple(
            torch.full((2, 3), n, dtype=t) for n, t in ((1.0, incoming), (0.5, own), (2.0, other))
        )

        def gradient(*given: torch.Tensor) -> Any:
            return function(*given, *further)

        gm = make_fx(gradient, tracing_mode="fake", decomposition_table=table)(*operands)
        assert not any("loss_backward" in str(node.target) for node in gm.graph.nodes)
        torch.testing.assert_close(gm(*operands), gradient(*operands))


@pytest.mark.parametrize(
    ("left", "right"),
    [(torch.bfloat16, torch.int32), (torch.float16, torch.float16), (torch.int64, torch.float16)],
)
def test_signs_of_16_bits(left: torch.dtype, right: torch.dtype) -> None:
    test_unlike_types_and_layouts(torch.copysign, left, right)


BACKWARD: dict[str, Callable[..., Any]] = {
    "elu": lambda g, x: torch.ops.aten.elu_backward.default(g, 1.5, 1.0, 0.5, False, x),
    "softplus": lambda g, x: torch.ops.aten.softplus_backward.default(g, x, 1.0, 20.0),
    "hardtanh": lambda g, x: torch.ops.aten.hardtanh_backward.default(g, x, 0.1, 0.9),
    "hardswish": lambda g, x: torch.ops.aten.hardswish_backward.default(g, x),
    "logit": lambda g, x: torch.ops.aten.logit_backward.default(g, x),
    "log_softmax": lambda g, x: torch.ops.aten._log_softmax_backward_data.default(g, x, 1, torch.float32),
    "glu": lambda g, x: torch.ops.aten.glu_backward.default(g, torch.cat([x, x.square()], 1), 1),
    "cross entropy": lambda g, x: torch.ops.aten.binary_cross_entropy_backward.default(g, x, x.square()),
    "cross entropy forward": lambda g, x: torch.ops.aten.binary_cross_entropy.default(x, g, None, 0),
    "huber": lambda g, x: torch.ops.aten.huber_loss.default(g, x, 0, 1.0),
    "threshold": lambda g, x: torch.ops.aten.threshold_backward.default(g, x, 0.5),
    "leaky_relu": lambda g, x: torch.ops.aten.leaky_relu_backward.default(g, x, 0.1, False),
    "hardsigmoid": lambda g, x: torch.ops.aten.hardsigmoid_backward.default(g, x),
    "log_sigmoid": lambda g, x: torch.ops.aten.log_sigmoid_backward.default(g, x, (-x.abs()).exp()),
    "prelu": lambda g, x: torch.ops.aten._prelu_kernel_backward.default(g, x, torch.full((1, 3, 1), 0.25)),
    "heaviside": torch.heaviside,
    "logical_and": lambda g, x: torch.logical_and(g.round(), x.round()),
    "taken": lambda g, x: torch.ops.aten.take.default(x, (g * 20).long()),
}
EXPANDED = (torch.rand(1, 3, 4), torch.rand(2, 3, 1), torch.rand(()), torch.rand(1, 1, 4))


@pytest.mark.parametrize("name", BACKWARD)
def test_of_two_tensors_that_lie_differently(name: str) -> None:
    layouts = [laid_out(order, torch.float32) / 25 for order in ORDERS]
    layouts += [value.expand(SIZES) for value in EXPANDED]
    assert_strides_of_all(BACKWARD[name], list(itertools.product(layouts, layouts)))


def assert_strides(function: Callable[..., Any], *operands: torch.Tensor) -> None:
    """A graph of `function` promises eager's strides, along dimensions of more than one element, and has
    eager's results.
    """
    assert_strides_of_all(function, [operands])


def assert_strides_of_all(function: Callable[..., Any], operands: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """Do as `assert_strides`, for calls with all of `operands`, which are in one graph."""

    def every(calls: Sequence[tuple[torch.Tensor, ...]]) -> list[Any]:
        return [function(*call) for call in calls]

    found = every(operands)
    gm = make_fx(every, tracing_mode="fake", decomposition_table=decompositions())(operands)
    (output,) = gm.graph.find_nodes(op="output")
    results = [
        (call, one)
        for call, wanted in zip(operands, found, strict=True)
        for one in (wanted if isinstance(wanted, tuple) else (wanted,))
    ]
    for node, (call, wanted) in zip(output.args[0], results, strict=True):
        steps = zip(wanted.shape, node.meta["val"].stride(), wanted.stride(), strict=True)
        wrong = [(ours, theirs) for size, ours, theirs in steps if size != 1 and ours != theirs]
        assert wrong == [], [value.stride() for value in call]
    torch.testing.assert_close(gm(operands), found)


@pytest.mark.parametrize("function", [torch.copysign, torch.heaviside, torch.logical_or, torch.xlogy])
def test_operands_that_are_broadcast(function: Callable[..., Any]) -> None:
    whole = torch.rand(5, 5)
    others = (torch.rand(1, 5), torch.rand(5, 1), torch.rand(5), torch.rand(()), torch.rand(1, 1))
    wholes = (whole, whole.t(), whole[:, ::2].repeat_interleave(2, 1)[:, :5])
    pairs = [*itertools.product(wholes, others), *itertools.product(others, wholes)]
    assert_strides_of_all(function, pairs)


def test_operands_of_fewer_dimensions() -> None:
    first = torch.rand(3, 1, 2, 1).as_strided((3, 1, 2, 1), (1, 1, 3, 1))
    second = torch.arange(1, 9).view(4, 2).t()
    assert torch.copysign(first, second).stride() == (4, 1, 12, 1)
    assert_strides(torch.copysign, first, second)
    assert_strides(torch.copysign, first, second.float())
    assert_strides(torch.xlogy, first, second.float())


def test_losses_of_labels_are_contiguous() -> None:
    scores = torch.rand(2, 5, 3, 4)
    for order in ORDERS:
        labels = laid_out(order, torch.int64).remainder(5)
        assert_strides(lambda x, k: torch.ops.aten.nll_loss2d_forward(x, k, None, 0, -100)[0], scores, labels)
    every_other = torch.arange(6)[::2]
    assert_strides(
        lambda x, k: torch.ops.aten.nll_loss_forward(x, k, None, 0, 1)[0], torch.rand(3, 5), every_other
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_rows_that_are_repeated_are_contiguous(mode: TracingMode) -> None:
    for order in ORDERS:
        assert_strides(
            lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode=mode),
            laid_out(order, torch.float32),
        )


def test_powers_of_a_number_in_lists() -> None:
    exponents = [torch.rand(3, 4).t(), torch.rand(2)]
    gm = make_fx(
        lambda given: torch._foreach_pow(2.5, given),
        tracing_mode="fake",
        decomposition_table=decompositions(),
    )(exponents)
    (output,) = gm.graph.find_nodes(op="output")
    wanted = torch._foreach_pow(2.5, exponents)
    assert [node.meta["val"].stride() for node in output.args[0]] == [one.stride() for one in wanted]


@pytest.mark.parametrize("shape", [(0, 6, 2, 2), (2, 6, 0), (0, 6, 2)])
def test_shuffled_channels_of_nothing(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    gm = make_fx(
        lambda x: torch.channel_shuffle(x, 3), tracing_mode="fake", decomposition_table=decompositions()
    )(x)
    assert gm(x).shape == x.shape


LAST = torch.channels_last
ROLLED: dict[str, torch.Tensor] = {
    "channels-last": torch.rand(2, 3, 4, 5).contiguous(memory_format=LAST),
    "with gaps": torch.rand(2, 3, 8, 10).contiguous(memory_format=LAST)[:, :, ::2, ::2],
    "one image": torch.rand(1, 3, 4, 5).contiguous(memory_format=LAST),
    "volumes": torch.rand(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),
    "rows across": torch.rand(2, 3, 5, 4).transpose(2, 3),
    "rows": torch.rand(2, 3, 4, 5),
}
ROLLS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "along one": ((1,), (1,)),
    "along several": ((1, -2, 1), (2, -1, 1)),
    "along one again": ((1, 1), (2, 2)),
    "by the size": ((1, 4), (1, 2)),
    "by nothing": ((0,), (2,)),
    "as a line": ((3,), ()),
}


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("roll", ROLLS)
def test_rolled_images_lie_as_eager_lays_them_out(roll: str, mode: TracingMode) -> None:
    def rolled(x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x, *ROLLS[roll])

    for x in ROLLED.values():
        gm = make_fx(rolled, tracing_mode=mode, decomposition_table=decompositions())(x)
        (output,) = gm.graph.find_nodes(op="output")
        wanted = rolled(x)
        assert [int(step) for step in output.args[0].meta["val"].stride()] == list(wanted.stride())
        assert torch.equal(gm(x), wanted)


def operand(shape: Sequence[int], draw: random.Random) -> Tensor:
    """Broadcast along some dimensions of `shape`, without some of the first ones, in any order, with gaps or
    expanded.
    """
    missing = draw.choice([0, 0, 0, 1, 2])
    sizes = [size if draw.random() < 0.7 else 1 for size in shape][missing:]
    order = draw.sample(range(len(sizes)), len(sizes))
    strides, step = [0] * len(sizes), 1
    for dim in order:
        strides[dim] = step if sizes[dim] > 1 or draw.random() < 0.7 else draw.choice([1, 7, step])
        step *= sizes[dim] * draw.choice([1, 1, 1, 2])
    value = torch.empty(3 * step + 50).as_strided(sizes, strides)
    return value.expand(shape[missing:]) if draw.random() < 0.15 else value


KERNELS: dict[int, Callable[..., Tensor]] = {1: torch.sin, 2: torch.add, 3: torch.addcmul}


@pytest.mark.parametrize("count", KERNELS)
def test_operands_at_random(count: int) -> None:
    draw = random.Random(count)
    for _ in range(1000):
        shape = [draw.choice([1, 1, 2, 3, 5, 5]) for _ in range(draw.choice([1, 2, 3, 4, 4, 5]))]
        operands = [operand(shape, draw) for _ in range(count)]
        result = KERNELS[count](*operands)
        found = predict_elementwise_strides(result.shape, *operands)
        assert found is not None
        assert tuple(found) == result.stride(), [(value.shape, value.stride()) for value in operands]
