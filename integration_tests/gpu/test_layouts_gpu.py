"""Layouts that the scheduler chooses, on a GPU: values and visible strides are eager's, and libraries convert
nothing any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.layout_tables import WindowStream
from coilwork.backend import backend
from integration_tests.model_checks import no_fallback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

CONVERSIONS = re.compile(r"nchwToNhwc|nhwcToNchw", re.IGNORECASE)


def stack() -> nn.Module:
    """Convolutions of several kinds, with activations between them."""
    layers: list[nn.Module] = [
        nn.Conv2d(64, 64, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(64, 96, 3, stride=2),
        nn.SiLU(),
    ]
    layers += [nn.Conv2d(96, 96, 7, padding=3, groups=96), nn.GELU(), nn.Conv2d(96, 64, 1), nn.SiLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 32, 2, 2), nn.Tanh())


def patches() -> nn.Module:
    """Convolutions that are products of patches, with norms over channels between them."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2, 1), nn.GroupNorm(4, 64), nn.SiLU()]
    layers += [nn.Conv2d(64, 96, 2, 2), nn.GroupNorm(4, 96), nn.SiLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(96, 32, 2, 2), nn.Tanh())


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "stack": (stack, (8, 64, 57, 57)),
    "patches": (patches, (8, 3, 64, 64)),
    "one image": (stack, (1, 64, 57, 57)),
    "stream": (WindowStream, (8, 64, 28, 28)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_and_strides_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    make, shape = CASES[name]
    module, x = make().cuda().eval(), torch.randn(shape, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=dtype), no_fallback():
        found, wanted = torch.compile(module, backend=backend)(x), module(x)
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)
    assert found.stride() == wanted.stride()


def test_a_step_with_patches_is_the_same_in_every_call() -> None:
    """Its gradients are near those of `f64`, as eager's are, and lie as parameters do."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, x = patches().cuda(), torch.randn(8, 3, 64, 64, device="cuda")
    upstream = torch.randn(8, 32, 32, 32, device="cuda").bfloat16()

    def step(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        module.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            result = call(x)
        result.backward(upstream)
        return [each.grad.clone() for each in module.parameters() if each.grad is not None]

    with no_fallback():
        compiled = torch.compile(module, backend=backend)
        found, again, rounded = step(compiled), step(compiled), step(module)
    module.double()
    module.zero_grad()
    module(x.double()).backward(upstream.double())
    exact = [each.grad for each in module.parameters() if each.grad is not None]
    for one, other, near, wide in zip(found, again, rounded, exact, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == wide.stride()
        error, allowed = (float((each.double() - wide).norm()) for each in (one, near))
        assert error <= 2 * allowed + 1e-3 * float(wide.norm())


def test_a_stack_in_16_bits_converts_nothing_around_its_convolutions() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, x = stack().cuda().eval(), torch.randn(8, 64, 57, 57, device="cuda")
    compiled = torch.compile(module, backend=backend)

    def call() -> Tensor:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            found: Tensor = compiled(x)
        return found

    for _ in range(3):
        call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events() or () if event.device_type.name == "CUDA"]
    assert names and not [name for name in names if CONVERSIONS.search(name)]
