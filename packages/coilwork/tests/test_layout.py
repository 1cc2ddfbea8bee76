"""Convolutions in channels-last through the whole compiler, and what decides whether they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.compile_options import CompileOptions
from coilwork.job import Job, open_job
from coilwork.package_options import make_layout_options
from coilwork_frontend.calling_convention.convention import Role
from coilwork_lowering import LayoutOptions

Compile = Callable[..., Callable[..., Any]]


@pytest.fixture
def full_precision() -> Iterator[None]:
    """Convolutions may not round to TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def net() -> nn.Module:
    """Every kind of convolution's neighbour: norm, activation, pooling, a shared shape, and a layer that
    flattens.
    """
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 3),
    )


def test_inference_in_channels_last(strictly: Compile, tmp_path: Path) -> None:
    model = net().eval()
    x = torch.randn(2, 3, 10, 10)
    with torch.no_grad():
        result = strictly(model, conv_layout="channels_last", trace=str(tmp_path), cache=False)(x)
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
    assert result.is_contiguous()
    (reason,) = tmp_path.glob("*/layout.txt")
    assert reason.read_text().startswith("2 convolutions in channels-last: asked for")
    (graph,) = tmp_path.glob("*/aten.laid_out.txt")
    assert "memory_format = torch.channels_last" in graph.read_text()


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_in_channels_last(strictly: Compile, dynamic: bool) -> None:
    model = net()
    x = torch.randn(2, 3, 10, 10)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    gradients: list[list[torch.Tensor]] = []
    for function in (strictly(model, conv_layout="channels_last"), model):
        model.zero_grad()
        function(x).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    assert [g.stride() for g in gradients[0]] == [p.stride() for p in model.parameters()]


def test_the_options_decide() -> None:
    # kernels store rows of any length, unless they are not to multiply
    assert make_layout_options(CompileOptions()) == LayoutOptions(by_rows=False)
    assert make_layout_options(CompileOptions(contractions="aten")) == LayoutOptions()
    assert make_layout_options(CompileOptions(conv_layout="captured")).layout == "captured"
    assert make_layout_options(CompileOptions(numerics="strict")).layout == "captured"
    asked = CompileOptions(numerics="strict", conv_layout="channels_last")
    assert make_layout_options(asked).layout == "channels_last"


@pytest.mark.usefixtures("full_precision")
def test_torch_decides_about_tf32() -> None:
    assert not make_layout_options(CompileOptions()).tf32_convolutions


def test_convolutions_are_the_schedulers() -> None:
    joined = make_layout_options(CompileOptions(), joins_scheduler=True)
    assert (
        joined.scheduled_devices == ("cuda", "cpu")
        and make_layout_options(CompileOptions()).scheduled_devices == ()
    )


def test_layouts_do_not_depend_on_the_batch_where_results_may_not() -> None:
    assert make_layout_options(CompileOptions(batch_invariant=True)).layout == "captured"


def job(role: Role) -> Job:
    gm = make_fx(lambda x: x.sin(), tracing_mode="fake")(torch.randn(3))
    return open_job(gm, [torch.randn(3)], role=role, options=CompileOptions())


def test_what_decides_layouts_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = job("inference")
    monkeypatch.setattr("coilwork.package_options.convolutions_use_tf32", lambda: False)
    exact = job("inference")
    assert rounded.key_text != exact.key_text
    assert rounded.graph_id != exact.graph_id


def test_graphs_of_a_training_step_come_with_their_layouts() -> None:
    assert job("forward").layout.layout == job("backward").layout.layout == "captured"
