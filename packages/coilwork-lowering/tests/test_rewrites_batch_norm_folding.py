"""Batch norms into the layer in front of them, where parameters are frozen and nothing else would see the
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from coilwork_lowering.rewrites import FROZEN, CapturedVocabulary, apply_rewrites
from coilwork_lowering.rewrites.batch_norm_folding import FOLDING


class Capture:
    """A back end that marks parameters as frozen, folds, and runs the graph as it is then."""

    def __init__(self, *, frozen: bool = True) -> None:
        self.frozen = frozen
        self.count = 0

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        for node, given in zip((n for n in gm.graph.nodes if n.op == "placeholder"), inputs):
            if self.frozen and (isinstance(given, nn.Parameter) or "buffers" in node.name):
                node.meta[FROZEN] = True
        fired = apply_rewrites(gm, FOLDING, vocabulary=CapturedVocabulary())
        self.count = sum(item.count for item in fired)
        forward: Callable[..., Any] = gm.forward
        return forward


def folded(model: nn.Module, x: Tensor, **how: Any) -> int:
    """How many norms were folded; results are eager's."""
    torch._dynamo.reset()
    capture = Capture(**how)
    with torch.no_grad():
        found, wanted = torch.compile(model, backend=capture)(x), model(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, check_stride=True)
    return capture.count


def seen(norm: nn.Module) -> nn.Module:
    """The norm, with statistics and parameters that are not the initial ones."""
    with torch.no_grad():
        for name, tensor in (*norm.named_parameters(), *norm.named_buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + (0.5 if "var" in name else -0.3))
    return norm.eval()


FIRES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), seen(nn.BatchNorm2d(6))), (2, 3, 8, 8)),
    "no bias": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), seen(nn.BatchNorm2d(6))), (2, 3, 8, 8)),
    "not affine": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), seen(nn.BatchNorm2d(6, affine=False))),
        (2, 3, 8, 8),
    ),
    "groups": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4), seen(nn.BatchNorm2d(8, eps=0.1))
        ),
        (2, 4, 9, 9),
    ),
    "signals": (lambda: nn.Sequential(nn.Conv1d(3, 6, 3), seen(nn.BatchNorm1d(6))), (2, 3, 8)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2), seen(nn.BatchNorm3d(3))), (1, 2, 4, 4, 4)),
    "vectors": (lambda: nn.Sequential(nn.Linear(5, 6), seen(nn.BatchNorm1d(6))), (4, 5)),
}


@pytest.mark.parametrize("case", FIRES)
def test_a_batch_norm_behind_a_product_is_folded(case: str) -> None:
    make, shape = FIRES[case]
    torch.manual_seed(0)
    assert folded(make(), torch.randn(shape)) == 1


class Branches(nn.Module):
    """The convolution's result has another reader."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3)
        self.norm = seen(nn.BatchNorm2d(6))

    def forward(self, x: Tensor) -> Tensor:
        made = self.convolution(x)
        found: Tensor = self.norm(made) + made
        return found


def test_not_where_the_result_has_another_reader() -> None:
    assert folded(Branches(), torch.randn(2, 3, 8, 8)) == 0


def test_not_where_parameters_may_change() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), seen(nn.BatchNorm2d(6)))
    assert folded(model, torch.randn(2, 3, 8, 8), frozen=False) == 0


def test_not_with_the_statistics_of_the_batch() -> None:
    norm = nn.BatchNorm2d(6, track_running_stats=False).eval()
    assert folded(nn.Sequential(nn.Conv2d(3, 6, 3), norm), torch.randn(2, 3, 8, 8)) == 0


def test_not_with_rows_of_vectors() -> None:
    # of (batch, rows, channels), a norm takes the rows for channels
    assert folded(nn.Sequential(nn.Linear(5, 6), seen(nn.BatchNorm1d(3))), torch.randn(4, 3, 5)) == 0


def test_not_with_several_types() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 6, 3).bfloat16()
            self.norm = seen(nn.BatchNorm2d(6))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.norm(self.convolution(x))
            return found

    torch._dynamo.reset()
    capture = Capture()
    with torch.no_grad():
        torch.compile(Mixed(), backend=capture)(torch.randn(2, 3, 8, 8).bfloat16())
    assert capture.count == 0
