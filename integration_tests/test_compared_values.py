"""Values of 16 bits that are compared: one value is the same number in whichever kernel, and on either side
of a comparison.

Fused operators keep what they compute in `f32`, and what goes through memory is rounded. Where both meet in a
comparison, a value must still equal itself: otherwise it is larger than its own maximum, equals no median of
its row, and a filter of the k largest keeps k - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coilwork.backend import backend

pytestmark = pytest.mark.usefixtures("own_caches", "_every_truth_is_compiled")


@pytest.fixture
def _every_truth_is_compiled() -> Iterator[None]:
    with torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        yield


# What must hold of any rows, wherever a value is stored, found again or computed twice.
TRUTHS: dict[str, Callable[[Tensor], Tensor]] = {
    "no larger than the largest": lambda y: y <= y.amax(0),
    "the largest is there": lambda y: (y == y.amax(0)).any(0),
    "the largest of all is there": lambda y: (y == y.max()).any(),
    "the largest is where it is said to be": lambda y: y.gather(0, y.argmax(0, keepdim=True))[0] == y.amax(0),
    "the median is there": lambda y: (y == y.median(0).values).any(0),
    "the k largest are kept": lambda y: (y >= y.topk(3, 0).values[-1]).sum(0) >= 3,
    "the k smallest are kept": lambda y: (y <= y.kthvalue(3, 0).values).sum(0) >= 3,
    "running maxima are there": lambda y: (y == y.cummax(0).values)[0],
    "maxima of windows are no less": lambda y: functional.max_pool2d(y[None], 3, 1, 1)[0] >= y,
    "the largest is there in f32": lambda y: (y.float() == y.float().amax(0)).any(0),
    "running maxima are there in f32": lambda y: (y.float() == y.float().cummax(0).values)[0],
    "sorted values are there in f32": lambda y: y.float().sort(0).values[-1] == y.float().amax(0),
    "sorted values are there": lambda y: y.sort(0).values[-1] == y.amax(0),
    "the median is there in f32": lambda y: (y.float() == y.float().median(0).values).any(0),
    "the kth is there in f32": lambda y: (y.float() == y.float().kthvalue(3, 0).values).any(0),
    "the median differs from one by nothing": lambda y: (y - y.median(0).values == 0).any(0),
    "the kth differs from one by nothing": lambda y: ((y - y.kthvalue(3, 0).values).abs() <= 0).any(0),
    "the sorted differ by nothing": lambda y: (y - y.sort(0).values[5] == 0).any(0),
    "the most frequent is there in f32": lambda y: (y.float() == y.float().mode(0).values).any(0),
    "what is said to be the largest is there in f32": lambda y: (y.float() == _first_by_index(y.float())).any(
        0
    ),
}


def _first_by_index(y: Tensor) -> Tensor:
    return y.gather(0, y.argmax(0, keepdim=True))


MAKE: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda x: x * 1.1 + 1,
    "function": lambda x: x.exp() * 1.7,
    "norm": lambda x: functional.layer_norm(x, x.shape[1:]) * 1.3,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", MAKE)
def test_a_value_equals_itself(make: str, dtype: torch.dtype) -> None:
    """With the value on its way also returned, so that some kernels find it in memory."""
    x = torch.randn(70, 90, generator=torch.Generator().manual_seed(11)).to(dtype)

    def function(x: Tensor, truth: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        inner = MAKE[make](x)
        return truth(inner * 1.3).all(), inner

    call = torch.compile(function, backend=backend, options={"strict": True, "verify": True})
    for name, truth in TRUTHS.items():
        assert function(x, truth)[0], name
        assert call(x, truth)[0], name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", MAKE)
def test_gradients_of_extremes_of_16_bits_are_finite(make: str, dtype: torch.dtype) -> None:
    """A gradient goes to the elements that equal the extreme: to none of them, and it would be 0 / 0."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made = MAKE[make](x)
        return (x + y).max(), (x + 1).amax(0), (y + 1).amin(1), made.amax(0), (made * 1.3).amin(), made

    call = torch.compile(function, backend=backend, options={"strict": True, "verify": True})
    for seed in (5, 11, 12):
        generator = torch.Generator().manual_seed(seed)
        found = []
        for run in (function, call):
            leaves = [
                torch.randn(8, 9, generator=generator.manual_seed(seed)).to(dtype).requires_grad_()
                for _ in "xy"
            ]
            torch.stack([one.sum() for one in run(*leaves)]).sum().backward()
            found.append([leaf.grad for leaf in leaves])
        torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-2)


def test_a_zero_tensor_of_autograd_times_infinity_is_zero() -> None:
    """The derivative of a sign is a zero without memory, and stays zero whatever it is multiplied by."""

    def function(x: Tensor) -> Tensor:
        return torch.sgn(x * float("inf"))

    x = torch.linspace(-2, 2, 6).requires_grad_()
    call = torch.compile(function, backend=backend, options={"strict": True, "verify": True})
    call(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.7], ids=["widened", "computed on"])
def test_a_widened_value_equals_itself(scale: float, dtype: torch.dtype) -> None:
    """Nothing of 16 bits is stored: what torch's operators and kernels read is the widened value."""
    x = torch.randn(70, 90, generator=torch.Generator().manual_seed(11)).to(dtype)

    def function(x: Tensor, truth: Callable[[Tensor], Tensor]) -> Tensor:
        return truth((x.exp() * 1.7 * 1.3).float() * scale)

    call = torch.compile(function, backend=backend, options={"strict": True, "verify": True})
    for name, truth in TRUTHS.items():
        assert call(x, truth).all(), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_frequent_values_are_counted_after_rounding(dtype: torch.dtype) -> None:
    """Unrounded, hardly two of them would be equal."""
    x = torch.randn(70, 90, generator=torch.Generator().manual_seed(11)).to(dtype)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        wide = (x * 1.1 * 1.3).float()
        return wide.mode(0).values, wide.unique()

    call = torch.compile(function, backend=backend, options={"strict": True, "verify": True})
    for got, expected in zip(call(x), function(x), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_selected_widened_values_have_gradients(dtype: torch.dtype) -> None:
    """The backward rounds before it widens and compares; so must the forward, which compares nothing."""
    x = torch.randn(70, 90, generator=torch.Generator().manual_seed(11)).to(dtype).requires_grad_()
    chains: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: (x * 1.1).float(),
        lambda x: (x.exp() * 1.7 * 1.3).float(),
    )
    selections: tuple[Callable[[Tensor], Tensor], ...] = (
        torch.median,
        torch.nanmedian,
        torch.amax,
        lambda z: torch.linalg.vector_norm(z, float("inf")),
    )

    def function(x: Tensor, chain: int, selection: int) -> Tensor:
        return selections[selection](chains[chain](x))

    call = torch.compile(function, backend=backend, options={"strict": True, "verify": True})
    for chain in range(len(chains)):
        for selection in range(len(selections)):
            (got,) = torch.autograd.grad(call(x, chain, selection), x)
            (expected,) = torch.autograd.grad(function(x, chain, selection), x)
            assert torch.equal(got != 0, expected != 0), (chain, selection)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_gradients_of_the_largest_magnitude_are_finite(dtype: torch.dtype) -> None:
    """Torch's kernel finds it, and the backward looks for it among magnitudes, which have to end in the same
    bit.
    """

    def largest(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, float("inf"), 1)

    x = torch.randn(2000, 5, dtype=dtype, generator=torch.Generator().manual_seed(3), requires_grad=True)
    (wanted,) = torch.autograd.grad(largest(x).sum(), x)
    (found,) = torch.autograd.grad(torch.compile(largest, backend=backend)(x).sum(), x)
    assert found.isfinite().all()
    torch.testing.assert_close(found, wanted)
