"""Is a value of a compiled program right: integers and booleans exactly, floats beside a run in float64.

Eager's own distance from float64 is the measure. One run of eager is one draw, and it may be exact by luck;
where a value seems wrong, eager runs again several times with every rounding made up to an ulp worse, and the
largest distance of these runs counts: it knows which sums cancel and which quotients blow up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from integration_tests.fuzz.draw import default_dtype, same_numbers
from integration_tests.fuzz.zeros import compare_zero_signs, has_other_zeros

FACTOR = 2.0
SPREAD_FACTOR = 4.0
FLOOR_ULPS = 32.0
# Nothing is wider than float64: its error is that of another order of terms, of which there are thousands.
FLOOR_ULPS_FLOAT64 = 512.0
FLOOR_FLOAT64 = 1e-12
# Inside of these a mean is rounded, or not: equal numbers may be apart by that, where eager's recurrence
# finds nothing.
# Norms divide that by the root of their `eps` alone. So is the sum inside of a logarithm of it, which may be
# anything near 0.
SPREADS = (
    *("aten::std", "aten::var", "aten::std_mean", "aten::var_mean"),
    *("aten::native_layer_norm", "aten::native_group_norm"),
    *("aten::logaddexp", "aten::logaddexp2", "aten::logsumexp", "aten::logcumsumexp"),
)
# Means beside a spread are added up in another order, or from differences: off by an ulp of what is added,
# which may cancel.
MEANS = ("aten::std_mean", "aten::var_mean")
# Eager's kernels of these names on these devices multiply float64 by a sixth in float32: 0.375000011 for
# 0.375. The float64 run does, too.
COARSE = (("aten::hardsigmoid", "cuda"), ("aten::hardswish", "cuda"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a tensor is, but for its values and shape."""

    dtype: torch.dtype
    stride: tuple[int, ...]


def difference(
    ours: Tensor,
    eager: Tensor,
    wide: Tensor,
    spread: Callable[[float], Sequence[Tensor]],
    promised: Form | None = None,
    zeros: Callable[[], Sequence[Tensor]] | None = None,
) -> str:
    """What is wrong with `ours`; empty if nothing is.

    `spread` gives the value in rerun eager programs whose roundings are off by so many ulps; `promised` is a
    form that is right beside eager's. `zeros` gives it in reruns in which zeros have other signs wherever
    eager leaves these open; without, no sign of a zero counts.
    """
    form = promised or Form(dtype=eager.dtype, stride=tuple(eager.stride()))
    if ours.dtype != eager.dtype:
        if ours.dtype == form.dtype:
            return difference(
                ours.to(eager.dtype), eager, wide, spread, replace(form, stride=tuple(ours.stride())), zeros
            )
        return f"dtype {ours.dtype} instead of {eager.dtype}"
    if ours.shape != eager.shape:
        return f"shape {tuple(ours.shape)} instead of {tuple(eager.shape)}"
    allowed = {_strides(eager.shape, eager.stride()), _strides(eager.shape, form.stride)}
    if _strides(ours.shape, ours.stride()) not in allowed:
        return f"strides {ours.stride()} instead of {eager.stride()}, shape {tuple(eager.shape)}"
    if not eager.is_floating_point():
        if torch.equal(ours, eager):
            return ""
        at = (ours != eager).nonzero()
        first = tuple(at[0].tolist())
        return (
            f"{len(at)} of {ours.numel()} differ, first at {first}: {ours[first]} instead of {eager[first]}"
        )
    if zeros is not None and has_other_zeros(ours, eager):
        if found := compare_zero_signs(ours, eager, wide, zeros()):
            return found
    return _distance(ours, eager, wide, spread)


def _distance(ours: Tensor, eager: Tensor, wide: Tensor, spread: Callable[[float], Sequence[Tensor]]) -> str:
    """What is wrong with floats of the form that they should have."""
    # most values are eager's to the bit, and need no reference
    if eager.numel() == 0 or bool(((ours == eager) | (ours.isnan() & eager.isnan())).all()):
        return ""
    error = _error(ours, eager, wide)
    ulps = FLOOR_ULPS_FLOAT64 if eager.dtype is torch.float64 else FLOOR_ULPS
    floor = ulps * torch.finfo(eager.dtype).eps * _largest(wide) + torch.finfo(eager.dtype).tiny
    if eager.dtype is torch.float64:
        # No wider run knows what of it is left when terms of the size of 1 cancel.
        floor = max(floor, FLOOR_FLOAT64)
    limit = FACTOR * _error(eager, eager, wide) + floor
    if error <= limit:
        return ""
    # Where an error is raised to a power, as in variances of equal numbers, the factor belongs to the
    # rounding.
    for factor, ulps in ((SPREAD_FACTOR, 1.0), (1.0, SPREAD_FACTOR)):
        limit = max(limit, *(factor * _error(other, eager, wide) + floor for other in spread(ulps)))
        if error <= limit:
            return ""
    worst = (ours.double() - wide).abs().nan_to_num(0.0).flatten().argmax().item()
    values = ", ".join(f"{v.flatten()[worst].item():.9g}" for v in (ours, eager, wide))
    return f"error {error:.3g} where {limit:.3g} is allowed; element {worst}: ours, eager, float64 {values}"


def _strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides that matter."""
    if 0 in shape:
        return ()
    return tuple(stride for stride, size in zip(strides, shape) if size > 1)


def _largest(wide: Tensor) -> float:
    finite = wide[torch.isfinite(wide)]
    return finite.abs().max().item() if finite.numel() else 0.0


def _error(value: Tensor, eager: Tensor, wide: Tensor) -> float:
    """Largest distance from float64; infinite if infinities and NaN are neither where eager nor where float64
    has them.

    Where eager has others than float64, a product or sum went beyond its type on the way: the order of the
    terms says where.
    """
    finite = torch.isfinite(value)
    if not (finite.all() and torch.isfinite(eager).all()):
        odd, theirs, right = (_odd(v) for v in (value, eager, wide.to(value.dtype)))
        if torch.equal(theirs, right) and not torch.equal(odd, theirs):
            return float("inf")
    finite &= torch.isfinite(wide)
    distances = (value.double() - wide)[finite].abs()
    return distances.max().item() if distances.numel() else 0.0


def _odd(value: Tensor) -> Tensor:
    return value.isnan().int() + 2 * value.isposinf().int() + 3 * value.isneginf().int()


class Jitter(TorchDispatchMode):
    """Within it, what an operation has rounded is off by up to another `ulps`; so is what spreads are taken
    of.

    In float64, results of the `coarse` operators and devices are off by as much as if they were rounded to
    float32.
    """

    def __init__(self, seed: int, ulps: float = 1.0, coarse: Sequence[tuple[str, str]] = COARSE) -> None:
        super().__init__()
        self._ulps = ulps
        self._coarse = coarse
        self._cancels = seed % 2 == 0
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        fresh = not func._schema.is_mutable and not any(r.alias_info for r in func._schema.returns)
        before = _memory((args, kwargs))
        wide = None
        if fresh:
            try:
                with default_dtype(torch.float64):
                    wide = func(*tree_map(_widen, args), **tree_map(_widen, kwargs))
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                wide = None
        if func._schema.name in SPREADS and args[0].is_floating_point():
            args = (self._moved(args[0]), *args[1:])
        result = func(*args, **kwargs)
        if func._schema.name in MEANS and args[0].is_floating_point():
            self._move_means(result[1], _largest(args[0]))
        if isinstance(result, Tensor) and self._is_coarse(func._schema.name.rstrip("_"), result):
            result.copy_(self._moved(result, torch.finfo(torch.float32).eps))
        if not fresh:
            return result
        points = max((x.numel() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), default=0)
        ours = result if isinstance(result, tuple) else (result,)
        theirs = wide if isinstance(wide, tuple) else (wide,) * len(ours)
        for one, other in zip(ours, theirs):
            if isinstance(one, Tensor) and one.is_floating_point() and one.numel():
                # autograd's zeros have no memory
                if not one._is_zerotensor() and one.untyped_storage().data_ptr() not in before:
                    self._disturb(one, other, points / one.numel())
        return result

    def _move_means(self, means: Tensor, largest: float) -> None:
        """Every other run finds that what is added has cancelled, where it all but does: 0 is where roots and
        signs jump.
        """
        added = torch.full_like(means, largest)
        cancelled = means.abs() <= self._ulps * torch.finfo(means.dtype).eps * largest
        means.add_(self._moved(added) - added)
        if self._cancels:
            means.masked_fill_(cancelled, 0.0)

    def _is_coarse(self, name: str, value: Tensor) -> bool:
        return value.dtype is torch.float64 and (name, value.device.type) in self._coarse

    def _moved(self, value: Tensor, eps: float | None = None, roundings: float = 1.0) -> Tensor:
        noise = (
            torch.rand(value.shape, generator=self._generator, dtype=torch.float64).to(value.device) * 2 - 1
        )
        step = self._ulps * roundings * (eps or torch.finfo(value.dtype).eps)
        return (value.double() * (1 + noise * step)).to(value.dtype)

    def _disturb(self, value: Tensor, wide: object, terms: float) -> None:
        """Of so many `terms` each element was made: sums of pairs of pairs round as often as that can be
        halved, half of them each way.
        """
        moved = self._moved(value, roundings=max(1.0, math.log2(max(terms, 1.0)) / 2))
        if isinstance(wide, Tensor) and wide.shape == value.shape:
            if same_numbers(value, wide):
                return
            moved = torch.where(value.double() == wide, value, moved)
        value.copy_(moved)


def _memory(arguments: object) -> set[int]:
    found: set[int] = set()

    def note(leaf: object) -> object:
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided and not leaf._is_zerotensor():
            found.add(leaf.untyped_storage().data_ptr())
        return leaf

    tree_map(note, arguments)
    return found


def _widen(leaf: object) -> object:
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return leaf.double()
    if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
        return torch.float64
    return leaf
