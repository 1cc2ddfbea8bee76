"""Convolutions in channels-last through the whole compiler, and what decides whether they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from coilwork.compile_options import CompileOptions
from coilwork.job import Job, open_job
from coilwork.stage_settings import make_layout_options
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


class Net(nn.Module):
    """Every kind of convolution's neighbour: grouped, depthwise and transposed ones, over one, two and three
    dimensions, norms, pools, a step up and a concatenation, a residual, and a layer that flattens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.group_norm, self.up = nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 8, 4, 2, 1)
        self.volumes, self.waves = nn.Conv3d(4, 8, 3, padding=1), nn.Conv1d(8, 4, 3, padding=1)
        self.last = nn.Linear(4 * 100, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.silu(self.norm(self.enter(x))), 2)
        y = self.depthwise(F.relu(self.grouped(x))) + x
        y = torch.cat((self.up(F.silu(self.group_norm(y))), F.interpolate(x, scale_factor=2.0)), 1)
        z = self.volumes(y.unflatten(1, (4, 4))).mean(2)
        found: Tensor = self.last(self.waves(z.flatten(2)).flatten(1))
        return found


def net() -> nn.Module:
    """A few convolutions, of which one is grouped."""
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
    torch.manual_seed(0)
    model = Net().eval()
    x = torch.randn(2, 3, 10, 10)
    with torch.no_grad():
        asked = {"conv_layout": "channels_last", "verify": True, "cache": False}
        result = strictly(model, trace=str(tmp_path), **asked)(x)
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
    assert result.is_contiguous()
    (program,) = (path.read_text() for path in tmp_path.rglob("*.program.txt"))
    made = r'extern "aten.convolution.default".*?defines \(%\w+: \w+\[[^\]]*\]\{\w+, (\w+)'
    # four over two dimensions, one over three, one over one
    assert re.findall(made, program) == ["1"] * 6


def test_visible_strides_are_eagers(strictly: Compile) -> None:
    """What the caller sees, a written input among it, lies as captured; what shares memory does."""

    def function(x: Tensor, w: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
        y = torch.conv2d(x, w)
        kept.copy_(y)
        strided = torch.as_strided(torch.conv2d(x, w), (2, 3), (128, 1), 2) + 1
        return y.relu(), y.transpose(2, 3).clone(), strided, torch.cat((x[..., :4, :4], y), 1)

    inputs = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3)
    kept, expected = torch.zeros(2, 8, 4, 4), torch.zeros(2, 8, 4, 4)
    with torch.no_grad():
        found = strictly(function, conv_layout="channels_last", verify=True, cache=False)(*inputs, kept)
        wanted = function(*inputs, expected)
    assert [t.stride() for t in (*found, kept)] == [t.stride() for t in (*wanted, expected)]
    torch.testing.assert_close((*found, kept), (*wanted, expected), rtol=1e-4, atol=1e-5)


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
    for kept in (CompileOptions(numerics="strict"), CompileOptions(batch_invariant=True)):
        assert not make_layout_options(kept).multiplies_patches
    asked = CompileOptions(numerics="strict", conv_layout="channels_last")
    assert make_layout_options(asked).layout == "channels_last"


@pytest.mark.usefixtures("full_precision")
def test_torch_decides_about_tf32() -> None:
    assert not make_layout_options(CompileOptions()).tf32_convolutions


def test_weights_are_copied_for_both_halves_where_the_copy_may_lie_otherwise() -> None:
    assert make_layout_options(CompileOptions()).scheduled_devices == ("cuda", "cpu")
    assert make_layout_options(CompileOptions(), saves_captured=True).scheduled_devices == ()


def test_layouts_do_not_depend_on_the_batch_where_results_may_not() -> None:
    assert make_layout_options(CompileOptions(batch_invariant=True)).layout == "captured"


def job(role: Role) -> Job:
    gm = make_fx(lambda x: x.sin(), tracing_mode="fake")(torch.randn(3))
    return open_job(gm, [torch.randn(3)], role=role, options=CompileOptions())


def test_what_decides_layouts_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = job("inference")
    monkeypatch.setattr("coilwork.stage_settings.can_convolve_in_tf32", lambda: False)
    exact = job("inference")
    assert rounded.key_text != exact.key_text
    assert rounded.graph_id != exact.graph_id


def test_graphs_of_a_training_step_come_with_their_layouts() -> None:
    assert job("forward").layout.layout == job("backward").layout.layout == "captured"
