"""Programs whose streams eager stores across their rows: results, gradients and visible strides are eager's,
streams lie along their rows.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.convolution_layouts import (
    Count,
    count,
    list_convolutions,
    makes_channels_last,
)
from benchmarks.layout_tables import page
from benchmarks.planner import Planner
from coilwork.backend import backend
from coilwork.compile_options import CompileOptions
from coilwork_lowering.aten_layouts import convolution_layout


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions that products of patches would compute are a library's, whose layouts a test judges."""
    monkeypatch.setattr(convolution_layout, "multiply_patches", lambda gm, options: (gm, 0))


class Vit(nn.Module):
    """A patch embedding with a token in front, positions, attention by heads, and a stream that
    norms read.
    """

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 16, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        batch, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (parts[0] @ parts[1].transpose(-1, -2) / 3).softmax(-1) @ parts[2]
        x = x + self.out(scores.transpose(1, 2).reshape(batch, tokens, width))
        x = x + F.gelu(self.mlp(self.norms[1](x)))
        return self.norms[2](x)


class Swin(nn.Module):
    """A patch embedding, windows of its image, and norms inside them."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 2, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x)
        batch, width, high, wide = x.shape
        x = x.flatten(2).transpose(1, 2)
        kept = x
        x = self.norms[0](x).view(batch, high // 4, 4, wide // 4, 4, width)
        windows = torch.roll(x, (-1, -1), (2, 4)).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, width)
        windows = self.layer(windows).view(batch, high // 4, wide // 4, 4, 4, width)
        x = kept + windows.permute(0, 1, 3, 2, 4, 5).reshape(batch, high * wide, width)
        return (x + self.norms[1](x)).mean(1)


class ConvNext(nn.Module):
    """A stem whose norm is over channels, which come last for it and first for the convolution behind it."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.norms[1](self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)


class TimeFirst(nn.Module):
    """A recurrence that wants time first between layers that want the batch first."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.given(x).transpose(0, 1).contiguous()
        state = torch.zeros_like(steps[0])
        seen = []
        for step in steps:
            state = torch.tanh(step + self.kept(state))
            seen.append(state)
        y = torch.stack(seen).transpose(0, 1) + x
        return self.norm(y) + y.softmax(-1)


class Transposed(nn.Module):
    """Returns a stream that lies across its rows, as eager does, beside what is made of it."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.norm = nn.LayerNorm(width)
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.patch(x).flatten(2).transpose(1, 2).exp()
        y = x + self.layer(self.norm(x))
        return y, self.norm(y)


CASES: tuple[tuple[Callable[[], nn.Module], tuple[int, ...]], ...] = (
    (Vit, (2, 3, 16, 16)),
    (Swin, (2, 3, 16, 16)),
    (ConvNext, (2, 3, 16, 16)),
    (TimeFirst, (3, 5, 16)),
    (Transposed, (2, 3, 16, 16)),
)


def leaves(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def step(module: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    module.zero_grad()
    sum(value.square().sum() for value in leaves(call(x))).backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("made, shape", CASES, ids=[made.__name__ for made, _ in CASES])
def test_programs_agree_with_eager(made: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager, x = made(), torch.randn(shape)
    module = copy.deepcopy(eager)
    options = {"conv_layout": "captured", "strict": True, "cache": False, "verify": True}
    call = torch.compile(module, backend=backend, options=options)
    with torch.no_grad():
        for found, wanted in zip(leaves(call(x)), leaves(eager(x)), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            assert found.stride() == wanted.stride()
    for found, wanted in zip(leaves(call(x)), leaves(eager(x)), strict=True):
        assert found.stride() == wanted.stride()
    torch.testing.assert_close(step(module, call, x), step(eager, eager, x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("training", [False, True])
def test_norms_of_a_stream_write_along_rows(tmp_path: Path, training: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, x = Vit(), torch.randn(2, 3, 16, 16)
    options = {"conv_layout": "captured", "strict": True, "cache": False, "trace": str(tmp_path)}
    call = torch.compile(module, backend=backend, options=options)
    with torch.set_grad_enabled(training):
        value = call(x)
    if training:
        value.sum().backward()
    rows = [p.read_text() for p in tmp_path.rglob("*.kernel.txt") if " reduction" in p.read_text()]
    # 16 tokens: what lies along them has a step of 16 from one element of a row to the next
    across = [text for text in rows if re.search(r"store %out\d+\[16\*r0", text)]
    assert rows and not across
    decisions = "".join(p.read_text() for p in tmp_path.rglob("*.decisions.txt"))
    assert re.search(r"^yes +layout +%add", decisions, re.MULTILINE)


def test_convolutions_of_small_graphs_run_channels_last_in_16_bits(tmp_path: Path) -> None:
    """Lowering leaves them as captured, since not the whole graph gains."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layers = [
        nn.Conv2d(3, 32, 3),
        nn.SiLU(),
        nn.Conv2d(32, 32, 3),
        nn.SiLU(),
        nn.ConvTranspose2d(32, 16, 2, 2),
        nn.SiLU(),
    ]
    module, x = nn.Sequential(*layers).bfloat16().eval(), torch.randn(4, 3, 24, 24, dtype=torch.bfloat16)
    options = {"strict": True, "cache": False, "verify": True, "trace": str(tmp_path)}
    with torch.no_grad():
        found, wanted = torch.compile(module, backend=backend, options=options)(x), module(x)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert found.stride() == wanted.stride()
    (table,) = (path.read_text() for path in tmp_path.rglob("*.layouts.txt"))
    assert table.splitlines()[0].split() == ["buffer", "shape", "strides", "layout", "why"]
    results = [line for line in table.splitlines() if line.startswith("%convolution")]
    assert len(results) >= 3
    # its runner-up is the captured layout, which costs more
    assert all(re.search(r" moved +then \{.*, 1\}: \d+ bytes", line) for line in results[1:3])


class Residual(nn.Module):
    """A stem and two residual blocks, as ResNet's."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, 3 if k % 2 else 1, padding=k % 2, bias=False) for k in range(4)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norms[4](self.stem(x))), 3, 2, 1)
        for k in (0, 2):
            held = F.relu(self.norms[k](self.convolutions[k](x)))
            x = F.relu(self.norms[k + 1](self.convolutions[k + 1](held)) + x)
        return x.mean((2, 3))


@pytest.mark.usefixtures("no_patches")
def test_inference_in_channels_last_has_no_conversions() -> None:
    """Of a residual network on a GPU: every call, and no kernel that only copies but those of the image and
    of weights.
    """
    torch.manual_seed(0)
    model, planner = Residual().to(torch.bfloat16).eval(), Planner(target="sm_90")
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=planner)(torch.zeros(16, 3, 224, 224, dtype=torch.bfloat16))
    found = count(planner.programs, 0.0)
    assert found.channels_last == found.calls == 5
    assert found.converted_mb == 0 and found.copies <= 3


def test_the_page_shows_the_decisions() -> None:
    text = page()
    written = Path(__file__).parent.parent.joinpath("docs", "layouts.md").read_text()
    stream, stack = text.split("## ")[1:]
    for part in (stream, stack):
        assert re.search(r"^%convolution\S* .* moved ", part, re.MULTILINE)
    assert text.split("## ")[0] == written.split("## ")[0]


# Training: forward and backward


class Neighbours(nn.Module):
    """A small U-Net: group norms, a step down, a step up, and a concatenation of both sides."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.up = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width * k) for k in (1, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        y = self.down(F.silu(self.norms[0](x)))
        y = self.up(F.silu(self.norms[1](y)))
        y = self.join(F.silu(self.norms[2](torch.cat((x, y), 1))))
        return self.leave(y) * 2


class Waves(nn.Module):
    """Convolutions over time, one of which is dilated, and one transposed, behind a residual."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(8, width, 7, padding=3), nn.Conv1d(width // 2, 1, 5, padding=2)
        self.dilated = nn.Conv1d(width, width, 3, padding=3, dilation=3)
        self.up = nn.ConvTranspose1d(width, width // 2, 8, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.dilated(F.leaky_relu(x, 0.1))
        return torch.tanh(self.leave(F.leaky_relu(self.up(F.leaky_relu(x, 0.1)))))


TRAINED: tuple[tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]], ...] = (
    (Residual, (2, 3, 32, 32), (16, 3, 224, 224)),
    (Neighbours, (2, 3, 16, 16), (16, 3, 128, 128)),
    (ConvNext, (2, 3, 16, 16), (16, 3, 224, 224)),
    (Vit, (2, 3, 16, 16), (64, 3, 16, 16)),
    (Waves, (2, 8, 64), (16, 8, 8192)),
)


@pytest.mark.parametrize("made, shape, _", TRAINED, ids=[made.__name__ for made, *_ in TRAINED])
def test_training_steps_agree_with_eager(
    made: Callable[[], nn.Module], shape: tuple[int, ...], _: object
) -> None:
    """Where the pass lays both graphs out, gradients are eager's and lie as parameters do."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager, x = made().bfloat16(), torch.randn(shape, dtype=torch.bfloat16)
    module = copy.deepcopy(eager)
    call = torch.compile(module, backend=backend, options={"strict": True, "cache": False, "verify": True})
    found, rounded = step(module, call, x), step(eager, eager, x)
    exact = step(eager.float(), eager, x.float())
    for gradient, narrow, wide in zip(found, rounded, exact, strict=True):
        assert gradient.stride() == wide.stride()
        error, allowed = (float((each.float() - wide).norm()) for each in (gradient, narrow))
        assert error <= 2 * allowed + 0.02 * float(wide.norm())


@pytest.mark.parametrize("made, shape, _", TRAINED, ids=[made.__name__ for made, *_ in TRAINED])
def test_f32_training_steps_agree_with_eager(
    made: Callable[[], nn.Module], shape: tuple[int, ...], _: object
) -> None:
    """With images that outweigh the weights, so that CPUs compute in channels-last."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager, x = made(), torch.randn(4 * shape[0], *shape[1:])
    module = copy.deepcopy(eager)
    call = torch.compile(module, backend=backend, options={"strict": True, "cache": False, "verify": True})
    found, wanted = step(module, call, x), step(eager, eager, x)
    for gradient, exact in zip(found, wanted, strict=True):
        assert gradient.stride() == exact.stride()
        assert float((gradient - exact).norm()) <= 1e-3 * float(exact.norm()) + 1e-3


def plan_step(made: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype | None) -> Count:
    """A training step with parameters of `dtype`, or under autocast, whose products are library calls."""
    torch.manual_seed(0)
    options = CompileOptions(strict=True, contractions="aten")
    model, planner = made().train().to(dtype or torch.float32), Planner(target="sm_90", options=options)
    torch._dynamo.reset()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is None):
        found = torch.compile(model, backend=planner)(torch.zeros(shape, dtype=dtype or torch.float32))
    found.sum().backward()
    return count(planner.programs, 0.0)


# Calls in channels-last, and megabytes that kernels move where one layout is chosen for a whole graph, beside
# the sums for gradients of biases.
REWRITTEN = {Residual: (10, 569.92), Neighbours: (10, 295.63), ConvNext: (1, 85.82), Vit: (0, 5.32)}


@pytest.mark.usefixtures("no_patches")
@pytest.mark.parametrize("made, _, shape", TRAINED[:4], ids=[made.__name__ for made, *_ in TRAINED[:4]])
def test_training_moves_no_more_bytes_than_with_one_layout_for_all(
    made: Callable[[], nn.Module], _: object, shape: tuple[int, ...]
) -> None:
    """As many calls in channels-last, and bytes within half a percent."""
    found = plan_step(made, shape, None)
    calls, moved_mb = REWRITTEN[made]
    assert found.channels_last >= calls
    assert found.moved_mb <= 1.005 * moved_mb


def test_waves_train_in_channels_last() -> None:
    """All but the last convolution, which has one channel: of it strides tell no layout."""
    found = plan_step(Waves, (16, 8, 8192), None)
    assert (found.calls, found.channels_last) == (8, 6)


@pytest.mark.usefixtures("no_patches")
@pytest.mark.parametrize("dtype, moved_mb", [(torch.bfloat16, 564.67), (torch.float32, 1101.63)])
def test_one_copy_of_a_weight_serves_both_halves(dtype: torch.dtype, moved_mb: float) -> None:
    """The image alone is copied twice: each half copies for itself what it is given, but for weights."""
    found = plan_step(Residual, (16, 3, 224, 224), dtype)
    assert found.channels_last == 10 and found.copies <= 7
    image = 2 * 16 * 3 * 224 * 224 * dtype.itemsize / 1e6
    assert found.moved_mb <= 1.001 * (moved_mb + image)


@pytest.mark.usefixtures("no_patches")
@pytest.mark.parametrize("opened", [(0,), (2, 3), (0, 2, 3)], ids=["batch", "sides", "all"])
def test_dynamic_training_saves_activations_channels_last(opened: tuple[int, ...]) -> None:
    """Autograd is told strides as numbers, as those of channels-last are if the batch alone is open; of open
    sides the backward graph is told the order.
    """
    torch.manual_seed(0)
    model, planner, x = Neighbours().train(), Planner(target="sm_90"), torch.zeros(16, 3, 128, 128)
    torch._dynamo.reset()
    for side in opened:
        torch._dynamo.mark_dynamic(x, side)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.compile(model, backend=planner)(x)
    found.sum().backward()
    calls = list_convolutions(planner.programs)
    assert len(calls) == 10 and all(map(makes_channels_last, calls))
