"""Checks of random numbers, made in generated kernels: by C++ where this is imported, by Triton's interpreter
where it is a process.

`test_random_numbers.py` does both. The process prints one line of JSON: what is wrong with each check, empty
if all is well.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from coilwork.backend import backend

COUNT: Final = 4096


def compiled(function: Callable[..., Any], random: str = "generated") -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options={"strict": True, "random": random})


def dropped(x: Tensor) -> Tensor:
    return functional.dropout(x, 0.3) * 2


def uniform() -> None:
    """Moments, a test of Kolmogorov and Smirnov, and neighbours at several distances, within five standard
    deviations.
    """
    torch.manual_seed(0)
    found = compiled(torch.rand_like)(torch.empty(COUNT)).double()
    assert found.min() >= 0 and found.max() < 1
    assert abs(found.mean() - 0.5) < 5 / math.sqrt(12 * COUNT)
    assert abs(found.var() - 1 / 12) < 5 / math.sqrt(180 * COUNT)
    ranks = torch.arange(1, COUNT + 1, dtype=torch.float64) / COUNT
    assert (found.sort().values - ranks).abs().max() < 2.0 / math.sqrt(COUNT)
    for distance in (1, 2, 255, 256, 257, 512, 1024):
        pair = torch.stack([found[distance:], found[:-distance]])
        assert abs(torch.corrcoef(pair)[0, 1]) < 5 / math.sqrt(COUNT - distance), distance
    assert found.unique().numel() > COUNT - 10


def kept_and_dropped() -> None:
    torch.manual_seed(0)
    x = torch.ones(COUNT)
    found = compiled(dropped)(x)
    kept = found != 0
    assert abs(kept.double().mean() - 0.7) < 5 * math.sqrt(0.21 / COUNT)
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 2 / 0.7))
    # 64 pieces of 64: their counts spread as those of independent trials do
    counts = kept.view(64, 64).sum(1).double()
    assert 0.4 < counts.var() / (64 * 0.21) < 1.9


def same_seed_same_numbers() -> None:
    call, x = compiled(dropped), torch.ones(COUNT)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append((call(x), call(x)))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1]) and not torch.equal(found[0][0], found[2][0])


def states_are_kept_and_restored() -> None:
    call, x = compiled(dropped), torch.ones(COUNT)
    torch.manual_seed(4)
    state = torch.get_rng_state()
    first = call(x)
    torch.set_rng_state(state)
    with torch.random.fork_rng(devices=[]):
        assert torch.equal(call(x), first)
    assert torch.equal(call(x), first)
    assert not torch.equal(call(x), first)


def the_number_of_draws_does_not_depend_on_the_size() -> None:
    """One seed per call: what is drawn afterwards, by eager, is the same after a small and a large tensor."""
    found = []
    for count in (10, COUNT):
        call = compiled(dropped)
        torch.manual_seed(9)
        call(torch.ones(count))
        found.append(torch.rand(3))
    assert torch.equal(found[0], found[1])


def backward_agrees() -> None:
    """The gradient tells which elements were kept; they are those of the forward, also of two droppings in a
    row.
    """

    def function(x: Tensor) -> Tensor:
        return functional.dropout(functional.dropout(x.sin(), 0.5) + 1, 0.25)

    torch.manual_seed(2)
    x = torch.linspace(0.1, 1, COUNT, requires_grad=True)
    result = compiled(function)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    inner = (result.detach() - 1 / 0.75).abs() > 1e-6
    outer = result.detach() != 0
    wanted = torch.where(inner & outer, x.detach().cos() * 2 / 0.75, 0.0)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def no_mask_is_saved() -> None:
    """The backward draws masks again; what the forward keeps of them is one seed, whatever the sizes."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return functional.dropout(x * 2, 0.5) + functional.dropout(y, 0.25)

    for dynamic in (False, True):
        torch._dynamo.reset()
        call = torch.compile(
            function, backend=backend, dynamic=dynamic, options={"strict": True, "random": "generated"}
        )
        for rows in (COUNT // 8, 33):
            x, y = (torch.ones(rows, 8, requires_grad=True) for _ in range(2))
            result = call(x, y)
            made_by: Any = result.grad_fn
            assert [one.shape for one in made_by.saved_tensors if one.numel() > 1] == []
            of_x, of_y = torch.autograd.grad(result.sum(), (x, y))
            torch.testing.assert_close(of_x + of_y, result.detach())
            assert set(of_x.unique().tolist()) == {0.0, 4.0}


def training_and_inference_draw_alike() -> None:
    """Also beside other numbers: a checkpoint calls the same function first without and then with
    gradients.
    """

    def function(x: Tensor) -> Tensor:
        return functional.dropout(x + torch.rand_like(x), 0.5) + functional.dropout(torch.rand_like(x), 0.25)

    call, x, found = compiled(function), torch.ones(COUNT), []
    for needs_gradient in (False, True):
        torch.manual_seed(8)
        found.append(call(x.clone().requires_grad_(needs_gradient)).detach())
    assert torch.equal(found[0], found[1])


def _checkpointed(reentrant: bool, within: bool) -> None:
    def part(x: Tensor) -> Tensor:
        return functional.dropout(x.sin(), 0.5) * x

    def around(x: Tensor) -> Tensor:
        found: Tensor = checkpoint(part, x.exp(), use_reentrant=reentrant)
        return found

    torch.manual_seed(6)
    x = torch.linspace(0.1, 1, COUNT, requires_grad=True)
    if within:
        result = compiled(around)(x)
    else:
        result = checkpoint(compiled(part), x.exp(), use_reentrant=reentrant)
    result.sum().backward()
    y = x.detach().exp()
    kept = result.detach() != 0
    assert 0.4 < kept.double().mean() < 0.6
    wanted = torch.where(kept, (y.cos() * y + y.sin()) * 2 * y, 0.0)
    torch.testing.assert_close(x.grad, wanted, rtol=1e-3, atol=1e-4)


def checkpoints_within() -> None:
    for reentrant in (False, True):
        _checkpointed(reentrant, within=True)


def checkpoints_around() -> None:
    """The compiled part is called again under the generator's state of its first call."""
    for reentrant in (False, True):
        _checkpointed(reentrant, within=False)


def eager_exact() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (
            functional.dropout(x, 0.3),
            torch.rand_like(x) + x,
            torch.bernoulli(x * 0.5),
            torch.randn(5),
            torch.randint(0, 9, (7,)),
            torch.randperm(11),
        )

    call, x = compiled(function, "eager"), torch.rand(500)
    for seed in (1, 2):
        torch.manual_seed(seed)
        wanted = function(x)
        after = torch.rand(1)
        torch.manual_seed(seed)
        torch.testing.assert_close(call(x), wanted)
        assert torch.equal(torch.rand(1), after)


CHECKS: Final[Mapping[str, Callable[[], None]]] = {
    check.__name__: check
    for check in (
        uniform,
        kept_and_dropped,
        same_seed_same_numbers,
        states_are_kept_and_restored,
        the_number_of_draws_does_not_depend_on_the_size,
        backward_agrees,
        no_mask_is_saved,
        training_and_inference_draw_alike,
        checkpoints_within,
        checkpoints_around,
        eager_exact,
    )
}


def wrong(check: Callable[[], None]) -> str:
    """What is wrong, empty if all is well."""
    try:
        check()
    except Exception:  # noqa: BLE001  whatever it raises is the answer
        return traceback.format_exc(limit=-4)
    return ""


if __name__ == "__main__":
    print(json.dumps({name: wrong(check) for name, check in CHECKS.items()}))
