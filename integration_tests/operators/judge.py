"""Is a compiled result the same as eager's: structure, dtype, shape, strides, and values within rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from integration_tests.fuzz.zeros import compare_zero_signs, has_other_zeros

Verdict = Literal["ok", "marginal", "wrong", "dtype", "shape", "strides"]
# Worst last.
ORDER: tuple[Verdict, ...] = ("ok", "marginal", "strides", "shape", "dtype", "wrong")

FACTOR = 2.0
MARGINAL_FACTOR = 10.0
FLOOR_ULPS = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict and, unless it is "ok", what differs."""

    verdict: Verdict
    detail: str = ""


def judge(
    compiled: Any,
    eager: Any,
    reference: Callable[[], Any],
    *,
    values: bool = True,
    tolerance: tuple[float, float] | None = None,
    nearby: Callable[[], Sequence[Any]] | None = None,
    zeros: Callable[[], Sequence[Any]] | None = None,
) -> Judgement:
    """The worst verdict over all leaves of two nested results.

    `reference` computes the same in float64, or raises where that is impossible; it is asked only where the
    two differ by more than rounding usually does: than `tolerance`, relative and absolute, or torch's default
    for the type. `values=False` leaves out values, for random results. `nearby` gives eager's results for
    inputs that are off by their last bits, which are as good as eager's own where a rounding decides a
    branch, or an integer; it is asked only where all else says "wrong". `zeros` gives eager's results with
    other signs of zeros wherever these are open; it is asked only where such a sign differs.
    """
    ours, ours_spec = pytree.tree_flatten(compiled)
    theirs, theirs_spec = pytree.tree_flatten(eager)
    if len(ours) != len(theirs):
        return Judgement(verdict="wrong", detail=f"structure {ours_spec} instead of {theirs_spec}")
    wide: list[Any] | None = None
    others: list[list[Any]] | None = None
    worst = Judgement(verdict="ok")
    for position, (one, other) in enumerate(zip(ours, theirs)):
        found = _leaf(one, other, values=values, tolerance=tolerance)
        if found.verdict == "wrong" and isinstance(other, Tensor) and _rounds(other):
            if wide is None:
                wide = _reference_leaves(reference, len(theirs))
            if wide:
                found = _against_reference(one, [other], wide[position], found.detail)
                if found.verdict == "wrong" and nearby is not None:
                    if others is None:
                        others = [pytree.tree_leaves(result) for result in nearby()]
                    equals = [other, *(leaves[position] for leaves in others)]
                    found = _against_reference(one, equals, wide[position], found.detail)
        elif found.verdict == "wrong" and nearby is not None and _are_alike(one, other):
            if others is None:
                others = [pytree.tree_leaves(result) for result in nearby()]
            if _is_between(one, [other, *(leaves[position] for leaves in others)]):
                found = Judgement(verdict="ok")
        if values and zeros is not None and found.verdict == "ok" and has_other_zeros(one, other):
            if wide is None:
                wide = _reference_leaves(reference, len(theirs))
            reruns = [pytree.tree_leaves(result)[position] for result in zeros()] if wide else []
            detail = compare_zero_signs(one, other, wide[position], reruns) if wide else ""
            if detail:
                found = Judgement(verdict="wrong", detail=detail)
        if ORDER.index(found.verdict) > ORDER.index(worst.verdict):
            worst = Judgement(verdict=found.verdict, detail=f"result {position}: {found.detail}")
    return worst


def _are_alike(one: Any, other: Any) -> bool:
    """Tell whether two results are tensors of one shape and type, and differ in nothing but their values."""
    tensors = isinstance(one, Tensor) and isinstance(other, Tensor)
    return tensors and (one.shape, one.dtype, one.layout) == (other.shape, other.dtype, other.layout)


def _is_between(one: Tensor, runs: Sequence[Tensor]) -> bool:
    """Tell whether each element of `one` lies between the least and the greatest that eager's `runs` give."""
    if any(not _are_alike(one, run) for run in runs):
        return False
    numbers = torch.stack([run.to(torch.int64) for run in runs])
    mine = one.to(torch.int64)
    return bool(((numbers.amin(0) <= mine) & (mine <= numbers.amax(0))).all())


def _reference_leaves(reference: Callable[[], Any], count: int) -> list[Any]:
    try:
        leaves = pytree.tree_leaves(reference())
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError):
        return []
    return leaves if len(leaves) == count else []


def _rounds(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _leaf(one: Any, other: Any, *, values: bool, tolerance: tuple[float, float] | None) -> Judgement:
    if not isinstance(other, Tensor):
        same = type(one) is type(other) and (not values or one == other or (one != one and other != other))
        return Judgement(verdict="ok" if same else "wrong", detail=f"{one!r} instead of {other!r}")
    if not isinstance(one, Tensor):
        return Judgement(verdict="wrong", detail=f"{one!r} instead of a tensor")
    if one.dtype != other.dtype:
        return Judgement(verdict="dtype", detail=f"{one.dtype} instead of {other.dtype}")
    if one.shape != other.shape:
        return Judgement(verdict="shape", detail=f"{tuple(one.shape)} instead of {tuple(other.shape)}")
    if one.device != other.device or one.layout != other.layout:
        return Judgement(
            verdict="wrong", detail=f"{one.device} {one.layout} instead of {other.device} {other.layout}"
        )
    if values:
        try:
            _assert_close(one, other, tolerance)
        except AssertionError as error:
            return Judgement(verdict="wrong", detail=" ".join(str(error).split())[:400])
    if other.layout is torch.strided and _strides(one) != _strides(other):
        return Judgement(
            verdict="strides", detail=f"{one.stride()} instead of {other.stride()} of {tuple(other.shape)}"
        )
    return Judgement(verdict="ok")


def _assert_close(one: Tensor, other: Tensor, tolerance: tuple[float, float] | None) -> None:
    if tolerance is None or not _rounds(other):
        torch.testing.assert_close(one, other, equal_nan=True, check_stride=False)
        return
    relative, absolute = torch.testing._comparison.default_tolerances(other)
    torch.testing.assert_close(
        one,
        other,
        rtol=max(relative, tolerance[0]),
        atol=max(absolute, tolerance[1]),
        equal_nan=True,
        check_stride=False,
    )


def _strides(value: Tensor) -> tuple[int, ...]:
    """Strides that matter: of dimensions of more than one element, in tensors that have elements."""
    if value.numel() == 0:
        return ()
    return tuple(stride for stride, size in zip(value.stride(), value.shape) if size > 1)


def _against_reference(one: Tensor, equals: Sequence[Tensor], wide: Any, detail: str) -> Judgement:
    """How far `one` lies from `wide`, beside the farthest of `equals`, of which the first is eager's."""
    other = equals[0]
    if not isinstance(wide, Tensor) or wide.shape != other.shape or wide.layout is not torch.strided:
        return Judgement(verdict="wrong", detail=detail)
    dtype = torch.complex128 if other.is_complex() else torch.float64
    wide = wide.to(dtype)
    rounded = wide.to(other.dtype)
    finite = torch.isfinite(other) & torch.isfinite(wide)
    # Where rounding itself overflows, eager and the reference differ: each element may be either's. Where it
    # overflows on the way to a number, what is left is no number; which of them it is says nothing.
    lost = (~torch.isfinite(other) & torch.isfinite(wide) & ~torch.isfinite(one))[~finite]
    kinds = _special(one)[~finite]
    if not torch.all(lost | (kinds == _special(other)[~finite]) | (kinds == _special(rounded)[~finite])):
        return Judgement(verdict="wrong", detail=f"infinities or NaN: {detail}")
    if not finite.any():
        return Judgement(verdict="ok")
    ours = (one.to(dtype) - wide)[finite].abs()
    theirs = max((each.to(dtype) - wide)[finite].abs().nan_to_num(0.0).max().item() for each in equals)
    floor = FLOOR_ULPS * torch.finfo(other.dtype).eps * wide[finite].abs().max().item()
    text = f"error {ours.max().item():.3g}, eager's {theirs:.3g}; {detail}"
    for verdict, factor in (("ok", FACTOR), ("marginal", MARGINAL_FACTOR)):
        if ours.max().item() <= factor * theirs + floor:
            return Judgement(verdict=verdict, detail=text)
    return Judgement(verdict="wrong", detail=text)


def _special(value: Tensor) -> Tensor:
    """0 for numbers, else 1, 2, 3 for NaN and the two infinities."""
    if value.is_complex():
        # A lazily conjugated or negated view has no memory that holds its numbers.
        return _special(torch.view_as_real(value.resolve_conj().resolve_neg())).sum(-1)
    return value.isnan().int() + 2 * value.isposinf().int() + 3 * value.isneginf().int()
