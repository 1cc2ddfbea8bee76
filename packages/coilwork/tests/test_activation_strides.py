"""Saved tensors have the strides that kernels like, and backward graphs are compiled for them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import coilwork.compile_graph as compiling
from coilwork.backend import backend
from coilwork.compile_graph import GraphAttempt
from coilwork.errors import CoilworkFallbackWarning
from coilwork_frontend.calling_convention.activation_strides import (
    list_captured_strides,
    make_stride_input_roles,
    make_stride_result_roles,
)
from coilwork_frontend.calling_convention.operator_call import make_operator_call
from coilwork_ir.calling_convention import CallingConvention
from coilwork_runtime import bind_roles
from coilwork_tools.op_fallback.retries import build_with_retries


class Stream(nn.Module):
    """A patch embedding, and norms of the stream behind it."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 64, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x.mean(1)


class Images(nn.Module):
    """Convolutions of images, whose sides may be open."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 16, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return self.last(self.second(x).relu() + x).mean((2, 3))


def gradients(module: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    module.zero_grad()
    call(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def image() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 3, 32, 32)


def open_image(height: int = 40, width: int = 48) -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(2, 3, height, width)
    for side in (2, 3):
        torch._dynamo.mark_dynamic(x, side)
    return x


def compiled(module: nn.Module, folder: Path, **options: Any) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    made: Callable[[Tensor], Tensor] = torch.compile(
        module, backend=backend, options={"conv_layout": "captured", "trace": str(folder), **options}
    )
    return made


def saved_in(folder: Path) -> list[Any]:
    found: list[Any] = []
    for path in folder.glob("forward_*/report.json"):
        found += json.loads(path.read_text())["saved_strides"]
    return found


def check(module: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> None:
    eager = copy.deepcopy(module)
    torch.testing.assert_close(gradients(module, call, x), gradients(eager, eager, x), rtol=1e-4, atol=1e-4)


def test_backward_graphs_get_what_the_forward_graph_chose(tmp_path: Path) -> None:
    module = Stream()
    check(module, compiled(module, tmp_path, strict=True, verify=True, cache=False), image())
    assert [3072, 48, 1] in [strides for _, strides in saved_in(tmp_path)]
    (loops,) = tmp_path.glob("backward_*/*.loops.txt")
    assert "f32[2, 64, 48]{3072, 1, 64} = " in loops.read_text(), "the stream was not captured transposed"
    inputs = [line for line in loops.read_text().splitlines() if line.startswith("  input %mul")]
    assert inputs and not any("{3072, 1, 64}" in line for line in inputs)


def test_a_graph_from_the_cache_tells_it_as_well(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Stream()
    for folder in ("first", "second"):
        call = compiled(module, tmp_path / folder, strict=True, cache_dir=str(tmp_path / "cache"))
        check(module, call, image())
    assert saved_in(tmp_path / "first") == saved_in(tmp_path / "second") != []
    (report,) = (tmp_path / "second").glob("forward_*/report.json")
    assert json.loads(report.read_text())["cache_hit"]


class Watching(TorchDispatchMode):
    """Sees every operator, so that a graph's own operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def test_operators_of_a_backward_graph_take_what_kernels_saved(tmp_path: Path) -> None:
    module = Stream()
    eager = copy.deepcopy(module)
    call, x = compiled(module, tmp_path, strict=True, cache=False), image()
    value = call(x).square().sum()
    with Watching() as mode:
        value.backward()
    assert mode.products and saved_in(tmp_path)
    found = [parameter.grad for parameter in module.parameters()]
    torch.testing.assert_close(found, gradients(eager, eager, x), rtol=1e-4, atol=1e-4)


def test_a_backward_graph_that_cannot_be_compiled_gets_them_as_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(attempted: GraphAttempt, *rest: Any) -> Any:
        if attempted.job.role == "backward":
            raise RuntimeError("on purpose")
        return build_with_retries(attempted, *rest)

    monkeypatch.setattr(compiling, "build_with_retries", failing)
    module = Stream()
    call = compiled(module, tmp_path, cache=False)
    with pytest.warns(CoilworkFallbackWarning, match="on purpose"):
        check(module, call, image())
    assert saved_in(tmp_path)


class AsStrided(torch.autograd.Function):
    """Multiplies by a saved value, whose memory the gradient reads as it lies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.transpose(1, 2).exp()
        ctx.save_for_backward(y)
        return (y - y.sum(-1, keepdim=True)).square()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        flat = y.as_strided((y.numel(),), (1,)).view(y.shape[0], y.shape[2], y.shape[1])
        return grad.transpose(1, 2) * flat


def test_what_the_backward_graph_reads_by_strides_stays(tmp_path: Path) -> None:
    x = torch.randn(2, 48, 64)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    torch._dynamo.reset()
    call = torch.compile(
        AsStrided.apply, backend=backend, options={"strict": True, "cache": False, "trace": str(tmp_path)}
    )
    for function, leaf in zip((AsStrided.apply, call), leaves, strict=True):
        function(leaf).sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    assert saved_in(tmp_path) == []


def test_checks_keep_captured_strides(tmp_path: Path) -> None:
    module = Stream()
    check(module, compiled(module, tmp_path / "check", check=True, cache=False), image())
    assert saved_in(tmp_path / "check") == []


def test_strides_are_chosen_where_they_are_numbers_though_the_batch_is_open(tmp_path: Path) -> None:
    module = Stream()
    call, x = compiled(module, tmp_path / "open", strict=True, cache=False), image()
    torch._dynamo.mark_dynamic(x, 0)
    check(module, call, x)
    check(module, call, torch.randn(3, 3, 32, 32))
    assert [3072, 48, 1] in [strides for _, strides in saved_in(tmp_path / "open")]


def test_captured_operators_get_operands_as_captured() -> None:
    graph = torch.fx.Graph()
    moved, same = graph.placeholder("moved"), graph.placeholder("same")
    for node in (moved, same):
        node.meta["val"] = torch.empty(2, 3, 4)
    flat = [graph.call_function(torch.ops.aten.view.default, (node, [6, 4])) for node in (moved, same)]
    graph.output(flat)
    gm = torch.fx.GraphModule({}, graph)
    given = [torch.randn(3, 2, 4).transpose(0, 1), torch.randn(2, 3, 4)]
    strides = list_captured_strides(gm, given)
    assert strides == {0: (12, 4, 1)}
    roles = CallingConvention(takes=2, rows=make_stride_input_roles(strides))
    call = bind_roles(make_operator_call(gm), str(roles), {}).call
    for wanted, found in zip(given, call(list(given)), strict=True):
        torch.testing.assert_close(found, wanted.reshape(6, 4), rtol=0, atol=0)


def test_operators_give_results_as_kernels_do() -> None:
    value = torch.randn(2, 3, 4)
    roles = CallingConvention(takes=1, rows=make_stride_result_roles({0: (12, 1, 3)}))
    found, other = bind_roles(lambda args: [args[0] * 2, None], str(roles), {}).call([value])
    assert found.stride() == (12, 1, 3) and other is None
    torch.testing.assert_close(found, value * 2, rtol=0, atol=0)


# ---- Open sides of images ----


# channels innermost, then columns, rows, images
_CHANNELS_LAST = [-4, -1, -3, -2]


def test_images_of_open_sides_are_saved_channels_last(tmp_path: Path) -> None:
    module = Images().train()
    call = compiled(module, tmp_path, strict=True, verify=True, cache=False, conv_layout="auto")
    check(module, call, open_image())
    check(module, call, open_image(33, 56))
    found = [strides for _, strides in saved_in(tmp_path)]
    assert len(found) >= 3 and all(strides == _CHANNELS_LAST for strides in found)
    (loops,) = tmp_path.glob("backward_*/*.loops.txt")
    (relu,) = (line for line in loops.read_text().splitlines() if line.startswith("  input %relu:"))
    assert re.search(r"\{32\*\w+\*\w+, 1, 32\*\w+, 32\}", relu), relu


def test_a_graph_of_open_sides_from_the_cache_tells_it_as_well(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Images().train()
    for folder in ("first", "second"):
        options = {"conv_layout": "auto", "cache_dir": str(tmp_path / "cache")}
        check(module, compiled(module, tmp_path / folder, strict=True, **options), open_image())
    assert saved_in(tmp_path / "first") == saved_in(tmp_path / "second") != []
    (report,) = (tmp_path / "second").glob("forward_*/report.json")
    assert json.loads(report.read_text())["cache_hit"]


def test_operators_of_a_backward_graph_take_images_of_open_sides(tmp_path: Path) -> None:
    module = Images().train()
    eager = copy.deepcopy(module)
    call, x = compiled(module, tmp_path, strict=True, cache=False, conv_layout="auto"), open_image()
    value = call(x).square().sum()
    with Watching():
        value.backward()
    assert saved_in(tmp_path)
    found = [parameter.grad for parameter in module.parameters()]
    torch.testing.assert_close(found, gradients(eager, eager, x), rtol=1e-4, atol=1e-4)


def test_captured_operators_get_operands_of_open_sides_as_captured() -> None:
    value = torch.arange(24.0).view(2, 3, 4)
    roles = CallingConvention(takes=1, rows=make_stride_input_roles({0: (-3, -2, -1)}))
    call = bind_roles(lambda args: [args[0].view(6, 4)], str(roles), {}).call
    (found,) = call([value.permute(0, 2, 1).contiguous().permute(0, 2, 1)])
    torch.testing.assert_close(found, value.view(6, 4), rtol=0, atol=0)
