"""A template computes what torch captured, from a function through lowering to a kernel with a core.

One class claims whatever a kernel can have as its core. The kernels run in the interpreter of kernel IR; the
results are eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern
from coilwork_ir.target import TARGETS, Capabilities, Target, Targets
from coilwork_lowering import LoweringOptions, decompositions, lower
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote
from coilwork_scheduler.contractions.registry import REGISTRY, CoreNode

aten = torch.ops.aten
CORES = frozenset({"convolution", "attention", "attention-gradient"})


@dataclass(frozen=True, slots=True)
class Anything:
    """A template that takes every node, with every neighbour."""

    around: ImplementationContext

    def claims(self, node: CoreNode, target: Target) -> str | None:
        return None

    def quote(self, node: CoreNode, target: Target) -> Quote:
        return Quote(us=0.0, reason="always")

    def least_gain_us(self, node: CoreNode, rival: Quote) -> float:
        return 0.0


def scheduled(function: Callable[..., Any], given: list[Tensor], numerics: str = "fast") -> Schedule:
    gm = make_fx(function, decomposition_table=decompositions(LoweringOptions()))(*given)
    target = TARGETS["x86-64-avx512"]
    made = schedule(
        lower(gm, name="graph").graph,
        Targets(main=target, declared=((target.name, Capabilities(cores=CORES)),)),
        ScheduleOptions(numerics=numerics),
        registry=replace(REGISTRY, templates=(Anything,)),
    )
    verify_schedule(made)
    return made


def kinds(made: Schedule) -> list[str]:
    """What each kernel is, in order."""
    by_name = {kernel.name: kernel for kernel in made.kernels}
    called = [by_name[step.kernel] for step in made.steps if isinstance(step, KernelCall)]
    return ["loops" if kernel.core is None else kernel.core.kind for kernel in called]


def draw(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def residual_block(x: Tensor, w: Tensor, b: Tensor, e: Tensor) -> Tensor:
    return F.relu(F.conv2d(x.tanh() * 2, w, b, stride=(2, 1), padding=1, groups=2) + e)


def norm_behind(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    # batch norm in inference: a scale and a shift of every channel
    return F.silu(F.conv1d(x, w, dilation=2) * s[0][:, None] + s[1][:, None])


def upsample(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv_transpose2d(F.gelu(x), w, b, stride=2, padding=1, output_padding=1).sigmoid()


def gated_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q.tanh(), k, v, is_causal=True) * g.sigmoid()


def biased_attention(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=b * 2 + 1, scale=0.3) + 1


def attention_in_training(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    o, s = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    gradient = g * 2
    grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, q, k, v, o, s, 0.0, True, scale=None
    )
    return o, *grads


def convolution_in_training(x: Tensor, w: Tensor, g: Tensor) -> Any:
    y = F.conv2d(x, w, stride=2, padding=1, groups=2)
    shape = ([2, 2], [1, 1], [1, 1], False, [0, 0], 2, [True, True, False])
    of_x, of_w, _ = aten.convolution_backward(g * (y > 0), x, w, None, *shape)
    return y, of_x, of_w


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], list[str]]] = {
    "residual block": (residual_block, [(2, 4, 9, 8), (6, 2, 3, 3), (6,), (2, 6, 5, 8)], ["convolution"]),
    "norm behind": (norm_behind, [(2, 3, 11), (5, 3, 3), (2, 5)], ["convolution"]),
    "upsample": (upsample, [(2, 3, 4, 5), (3, 4, 3, 3), (4,)], ["convolution"]),
    "convolution in training": (
        convolution_in_training,
        [(2, 4, 8, 7), (6, 2, 3, 3), (2, 6, 4, 4)],
        ["convolution", "convolution", "convolution"],
    ),
    "gated attention": (
        gated_attention,
        [(2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)],
        ["attention"],
    ),
    "biased attention": (
        biased_attention,
        [(2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 8), (2, 4, 6, 7)],
        ["attention"],
    ),
    "attention in training": (
        attention_in_training,
        [(2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 8), (2, 4, 6, 8)],
        ["attention", "attention-gradient"],
    ),
}


@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_core_templates_agree_with_eager(name: str, dtype: torch.dtype, numerics: str) -> None:
    function, shapes, wanted = CASES[name]
    given = draw(*shapes, dtype=dtype)
    made = scheduled(function, given, numerics)
    assert not [step for step in made.steps if isinstance(step, Extern)]
    assert kinds(made) == wanted
    found = interpret_schedule(made, [value.clone() for value in given])
    eager = function(*given)
    eager = eager if isinstance(eager, tuple) else (eager,)
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    for ours, theirs in zip(found, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
