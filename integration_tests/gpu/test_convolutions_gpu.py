"""Convolutions and their gradients that the native executor hands to cuDNN: as right as eager's, in every
form, and in graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork.backend import backend
from coilwork_runtime import NativeProgram, load_native
from coilwork_runtime.executor import choice
from integration_tests.model_checks import no_fallback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

Convolve = Callable[..., Tensor]
# function, shape of the image, shape of the weight, further arguments
FORMS: Mapping[str, tuple[Convolve, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": (F.conv2d, (4, 32, 28, 28), (64, 32, 3, 3), {"padding": 1}),
    "1x1": (F.conv2d, (4, 64, 14, 14), (32, 64, 1, 1), {}),
    "strided": (F.conv2d, (3, 16, 29, 31), (24, 16, 5, 3), {"stride": (2, 3), "padding": (2, 0)}),
    "dilated": (F.conv2d, (2, 16, 28, 28), (16, 16, 3, 3), {"dilation": (2, 3), "padding": 4}),
    "grouped": (F.conv2d, (2, 32, 14, 14), (64, 8, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise": (F.conv2d, (2, 32, 14, 14), (32, 1, 3, 3), {"groups": 32, "padding": 1}),
    "depthwise, more": (F.conv2d, (2, 32, 15, 14), (64, 1, 5, 5), {"groups": 32, "padding": 2, "stride": 2}),
    "depthwise line": (F.conv1d, (2, 48, 100), (48, 1, 4), {"groups": 48, "padding": 3}),
    "odd channels": (F.conv2d, (2, 3, 30, 30), (10, 3, 7, 7), {"stride": 2, "padding": 3}),
    "pixel": (F.conv2d, (1, 1, 1, 1), (1, 1, 1, 1), {}),
    "line": (F.conv1d, (3, 24, 100), (32, 24, 5), {"stride": 2, "padding": 2, "dilation": 2}),
    "volume": (F.conv3d, (2, 8, 9, 10, 11), (16, 8, 3, 3, 2), {"stride": (1, 2, 1), "padding": (1, 0, 1)}),
    "transposed": (F.conv_transpose2d, (3, 32, 9, 9), (32, 16, 4, 4), {"stride": 2, "padding": 1}),
    "transposed, more": (
        F.conv_transpose2d,
        (2, 16, 9, 9),
        (16, 8, 3, 3),
        {"stride": 3, "output_padding": 2, "groups": 2, "dilation": 2},
    ),
    "transposed line": (F.conv_transpose1d, (3, 16, 40), (16, 8, 4), {"stride": 2}),
}


@contextmanager
def programs() -> Iterator[list[NativeProgram]]:
    """The native programs that are loaded meanwhile."""
    found: list[NativeProgram] = []

    def remembering(data: bytes, **rest: Any) -> NativeProgram:
        found.append(load_native(data, **rest))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "load_native", remembering)
        yield found


def done(found: list[NativeProgram]) -> tuple[int, int]:
    counters = [program.counters() for program in found]
    return sum(c["convolutions"] for c in counters), sum(c["refused_convolutions"] for c in counters)


def gradients(function: Convolve, inputs: tuple[Tensor, ...], direction: Tensor) -> list[Tensor]:
    given = [value.detach().requires_grad_() for value in inputs]
    result = function(*given)
    result.backward(direction.to(result.dtype))
    return [result.detach(), *(value.grad for value in given if value.grad is not None)]


def judge(found: list[Tensor], eager: list[Tensor], exact: list[Tensor]) -> None:
    for one, theirs, true in zip(found, eager, exact, strict=True):
        allowed = 2 * (theirs.double() - true).norm() + 1e-6 * true.norm()
        assert (one.double() - true).norm() <= allowed
        assert one.stride() == theirs.stride()


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_convolutions_of_each_form_and_layout_are_right(form: str, dtype: torch.dtype, layout: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    function, shape, weight_shape, more = FORMS[form]
    x = torch.randn(shape, device="cuda")
    w = torch.randn(weight_shape, device="cuda") / weight_shape[1] ** 0.5
    last = {4: torch.channels_last, 5: torch.channels_last_3d}
    if layout == "last" and x.dim() in last:
        x, w = (value.to(memory_format=last[x.dim()]) for value in (x, w))

    def call(x: Tensor, w: Tensor) -> Tensor:
        return function(x, w, **more)

    exact_x, exact_w = x.to(dtype).double(), w.to(dtype).double()
    direction = torch.randn_like(call(exact_x, exact_w)).to(dtype)
    inputs = (x.to(dtype), w.to(dtype))
    exact = gradients(call, (exact_x, exact_w), direction)
    eager = gradients(call, inputs, direction)
    with programs() as found, no_fallback():
        compiled = torch.compile(call, backend=backend, options={"convolutions": "cudnn", "strict": True})
        results = gradients(compiled, inputs, direction)
        again = gradients(compiled, inputs, direction)
    judge(results, eager, exact)
    by_cudnn, refused = done(found)
    if form.startswith("depthwise") or dtype is torch.float32:
        # ATen's, whose gradients may differ in bits from call to call
        assert by_cudnn == 0
        return
    assert all(torch.equal(one, other) for one, other in zip(results, again, strict=True))
    if refused == 0:
        assert by_cudnn == 4
    if form not in ("grouped", "pixel") and layout == "last":
        assert refused == 0


def test_sizes_that_change() -> None:
    torch._dynamo.reset()
    w = torch.randn(32, 16, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    with programs() as found, torch.no_grad(), no_fallback():
        compiled = torch.compile(
            lambda x: F.conv2d(x, w, stride=2).relu(), backend=backend, dynamic=True, options={"strict": True}
        )
        for _ in range(2):
            for side in (12, 17, 33, 12):
                x = torch.randn(side, 16, side, 2 * side, device="cuda", dtype=torch.bfloat16)
                x = x.to(memory_format=torch.channels_last)
                exact = F.conv2d(x.double(), w.double(), stride=2).relu()
                torch.testing.assert_close(compiled(x).double(), exact, rtol=0.02, atol=0.02)
    assert done(found)[0] == 8


def test_what_torch_says_is_heard() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 8, 16, 16, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    w = torch.randn(8, 8, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    cudnn = torch.backends.cudnn
    expected = F.conv2d(x, w)
    with programs() as found, torch.no_grad(), no_fallback():
        compiled = torch.compile(lambda x, w: F.conv2d(x, w), backend=backend, options={"strict": True})
        for flags, by_cudnn in (
            ({}, 1),
            ({"deterministic": True}, 2),
            ({"benchmark": True}, 2),
            ({"enabled": False}, 2),
        ):
            with cudnn.flags(**({"enabled": True} | flags)):
                torch.testing.assert_close(compiled(x, w), expected, rtol=0.02, atol=0.02)
            assert done(found)[0] == by_cudnn


def test_streams_and_captured_graphs() -> None:
    torch._dynamo.reset()
    x = torch.randn(8, 32, 28, 28, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = (
        torch.randn(32, 32, 3, 3, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
        / 16
    )

    def twice(x: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, w, padding=1).relu(), w, padding=1)

    with programs() as found, torch.no_grad(), no_fallback():
        compiled = torch.compile(twice, backend=backend, options={"strict": True})
        expected = twice(x.double().to(memory_format=torch.channels_last).half())
        side = torch.cuda.Stream()
        for stream in (torch.cuda.current_stream(), side, side):
            with torch.cuda.stream(stream):
                torch.testing.assert_close(compiled(x), expected, rtol=0.02, atol=0.02)
        torch.cuda.synchronize()
        assert done(found) == (6, 0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(x)
        x.normal_()
        graph.replay()
        torch.testing.assert_close(result, twice(x), rtol=0.02, atol=0.02)
