"""Whether a compiled case is right: against eager and float64, by the case's own check, and the same run to
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.accuracy import AccuracyError, compare
from benchmarks.memory_bound.case import Arguments, Case, call_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`wrong` says what is, or nothing; `repeatable` whether two calls gave the same bits (None if they need
    not).
    """

    wrong: str = ""
    repeatable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What eager and float64 say of one case on some inputs.

    Attributes:
        case: what is judged.
        inputs: its arguments, never changed.
        upstream: the gradient of the result that all use, in training.
        expected: eager's results.
        exact: those in float64; none where the case has a check of its own.
    """

    case: Case
    inputs: Arguments
    upstream: list[Tensor]
    expected: tuple[Tensor, ...]
    exact: tuple[Tensor, ...]

    @staticmethod
    def for_case(case: Case, inputs: Arguments) -> Judge:
        """Run `case` in eager mode and in float64."""
        upstream: list[Tensor] = []
        expected = tuple(call_of(case, case.function, fresh(case, inputs), upstream)())
        exact: tuple[Tensor, ...] = ()
        if case.check is None:
            wide = pytree.tree_map_only(Tensor, widen, inputs)
            exact = tuple(call_of(case, case.function, wide, [widen(g) for g in upstream])())
        return Judge(case=case, inputs=inputs, upstream=upstream, expected=expected, exact=exact)

    def verdict(self, function: Any) -> Verdict:
        """Judge a compiled form of the case, which it calls twice."""
        found, again = (
            call_of(self.case, function, fresh(self.case, self.inputs), self.upstream)() for _ in range(2)
        )
        return Verdict(
            wrong=self._wrong(found),
            repeatable=None if self.case.random else all(map(same_bits, found, again)),
        )

    def _wrong(self, found: Sequence[Tensor]) -> str:
        if len(found) != len(self.expected):
            return f"{len(found)} results where eager has {len(self.expected)}"
        for number, (one, other) in enumerate(zip(found, self.expected, strict=True)):
            if one.dtype != other.dtype or one.shape != other.shape:
                return (
                    f"result {number} is {one.dtype} {tuple(one.shape)}, not {other.dtype} "
                    f"{tuple(other.shape)}"
                )
            # Another layout is other work. That of a gradient is free.
            if (number == 0 or not self.case.train) and strides(one) != strides(other):
                return f"result {number} has strides {one.stride()}, not {other.stride()}"
        if self.case.check is not None:
            return self.case.check(self.inputs, found)
        try:
            for number, (one, other) in enumerate(zip(found, self.expected, strict=True)):
                if other.is_floating_point():
                    reference = self.exact[number]
                    compare(f"result {number}", compiled=one, eager=other, reference=reference).check()
                elif not torch.equal(one, other):
                    return f"result {number} is not eager's in {(one != other).sum().item()} places"
        except AccuracyError as error:
            return str(error)
        return ""


def fresh(case: Case, inputs: Arguments) -> Arguments:
    """Inputs that a call may change."""
    copied: Arguments = pytree.tree_map_only(Tensor, torch.clone, inputs) if case.mutates else inputs
    return copied


def widen(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def strides(value: Tensor) -> list[int]:
    """Return those that matter."""
    return [stride for extent, stride in zip(value.shape, value.stride(), strict=True) if extent > 1]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """True if both hold the same bytes; NaNs count by theirs."""
    return torch.equal(view_bytes(one), view_bytes(other))


def view_bytes(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)
