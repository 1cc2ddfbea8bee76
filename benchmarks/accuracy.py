"""How wrong may a compiled model be? At most twice as wrong as eager, against a float64 reference.

Two correct float32 programs differ in the order of their additions, so comparing compiled to eager needs a tolerance
that somebody has to guess. Comparing both to the same computation in float64 needs none: eager's own distance from it
says how much rounding the model suffers, and a correct compiler's distance is about as large.

    reference = float64_copy(module)(*to_float64(inputs))
    compare("logits", compiled=..., eager=..., reference=...).check()

Two distances are judged, because each hides what the other shows: the largest absolute error (one wrong element) and
the relative L2 error (every element a little wrong). Each may reach `FACTOR` times eager's plus a floor. The floor is
a few units in the last place of the result: eager's error is sometimes zero or tiny by luck (a single-element bias
gradient, say), and twice nothing is nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

FACTOR = 2.0
# A single member of a group (one of a hundred gradients) gets more room: eager's own error there is one draw of a
# scattered quantity. The group as a whole is held to FACTOR.
MEMBER_FACTOR = 4.0
# Units in the last place of the result's largest element. A float32 dot product over n terms is off by about
# sqrt(n) of them, and n is in the hundreds for every model here; bfloat16 results are rounded from float32 sums.
FLOOR_ULPS = {torch.float64: 64.0, torch.float32: 16.0, torch.bfloat16: 1.0, torch.float16: 2.0}


class AccuracyError(AssertionError):
    """A compiled result is further from the float64 reference than eager's error allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a result lies from its reference; both figures are inf where a NaN or infinity is out of place."""

    max_abs: float
    relative_l2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One result of the compiled program beside eager's, with the floors that apply to it."""

    name: str
    compiled: Distance
    eager: Distance
    max_abs_floor: float
    relative_l2_floor: float
    factor: float = FACTOR

    @property
    def ok(self) -> bool:
        """Whether both distances are within `factor` times eager's plus the floor."""
        return (
            self.compiled.max_abs <= self.factor * self.eager.max_abs + self.max_abs_floor
            and self.compiled.relative_l2 <= self.factor * self.eager.relative_l2 + self.relative_l2_floor
        )

    def check(self) -> None:
        """Raise AccuracyError, with both programs' distances, unless `ok`."""
        if not self.ok:
            raise AccuracyError(str(self))

    def __str__(self) -> str:
        return (
            f"{self.name}: max abs error {self.compiled.max_abs:.3g} (eager {self.eager.max_abs:.3g}, "
            f"floor {self.max_abs_floor:.3g}), relative L2 {self.compiled.relative_l2:.3g} "
            f"(eager {self.eager.relative_l2:.3g}, floor {self.relative_l2_floor:.3g})"
        )


def float64_copy(module: nn.Module) -> nn.Module:
    """A deep copy of `module` in float64, same weights, same training flag."""
    return copy.deepcopy(module).double()


def to_float64(values: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Floating-point tensors as float64, others as they are."""
    return tuple(value.double() if value.is_floating_point() else value for value in values)


def tensors_of(output: object) -> tuple[Tensor, ...]:
    """Every tensor in a nested result (tuples, dicts, registered dataclasses), in pytree order."""
    return tuple(leaf.detach() for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))


def distance(result: Tensor, reference: Tensor) -> Distance:
    """Distance of `result` from `reference` (same shape; computed in float64).

    Infinities and NaNs must stand where the reference has them, with the same sign; they count as exact there.
    """
    result = result.detach().to(device=reference.device, dtype=torch.float64)
    reference = reference.detach().double()
    if result.shape != reference.shape:
        raise AccuracyError(f"shape {tuple(result.shape)} where the reference has {tuple(reference.shape)}")
    finite = torch.isfinite(reference)
    if not torch.allclose(result[~finite], reference[~finite], equal_nan=True):
        return Distance(max_abs=float("inf"), relative_l2=float("inf"))
    difference = (result[finite] - reference[finite]).abs()
    if difference.numel() == 0:
        return Distance(max_abs=0.0, relative_l2=0.0)
    largest, norm = difference.max().item(), difference.norm().item()
    if not torch.isfinite(difference).all():
        return Distance(max_abs=float("inf"), relative_l2=float("inf"))
    scale = reference[finite].norm().item()
    return Distance(max_abs=largest, relative_l2=norm / scale if scale > 0 else norm)


def compare(
    name: str, *, compiled: Tensor, eager: Tensor, reference: Tensor, scale: float = 0.0
) -> Comparison:
    """Judge one tensor. Dtype, shape and device must be eager's.

    `scale` is a magnitude below which this tensor's values count as rounding of something larger; see
    `compare_group`. The floors are relative to the larger of it and the reference's largest element.
    """
    if compiled.dtype != eager.dtype or compiled.shape != eager.shape or compiled.device != eager.device:
        raise AccuracyError(
            f"{name}: compiled gives {compiled.dtype} {tuple(compiled.shape)} on {compiled.device}, "
            f"eager {eager.dtype} {tuple(eager.shape)} on {eager.device}"
        )
    if not eager.is_floating_point():
        exact = Distance(max_abs=0.0, relative_l2=0.0)
        return Comparison(
            name=name,
            compiled=distance(compiled, eager),
            eager=exact,
            max_abs_floor=0.0,
            relative_l2_floor=0.0,
        )
    finite = reference[torch.isfinite(reference)].double()
    largest = max(finite.abs().max().item() if finite.numel() else 0.0, scale)
    root_mean_square = finite.square().mean().sqrt().item() if finite.numel() else 0.0
    unit = FLOOR_ULPS[eager.dtype] * torch.finfo(eager.dtype).eps
    return Comparison(
        name=name,
        compiled=distance(compiled, reference),
        eager=distance(eager, reference),
        max_abs_floor=unit * largest,
        relative_l2_floor=unit * max(1.0, scale / root_mean_square if root_mean_square > 0 else 1.0),
    )


def compare_group(
    names: Sequence[str], *, compiled: Sequence[Tensor], eager: Sequence[Tensor], reference: Sequence[Tensor]
) -> tuple[Comparison, ...]:
    """Judge tensors that belong together, such as all gradients of a model: each one, and all of them as one vector.

    Some gradients are zero in exact arithmetic (the key projection's bias under softmax, a convolution's bias before
    batch norm): what any program computes there is rounding of sums of much larger terms, and its size is luck. A
    tenth of the group's typical (median) magnitude therefore serves as scale to all its members.
    """
    if not len(names) == len(compiled) == len(eager) == len(reference):
        raise AccuracyError(
            f"{len(compiled)} compiled and {len(reference)} reference tensors for {len(names)} names"
        )
    magnitudes = sorted(value.detach().abs().max().item() for value in reference if value.numel())
    scale = 0.1 * magnitudes[len(magnitudes) // 2] if magnitudes else 0.0
    members = [
        replace(compare(name, compiled=c, eager=e, reference=r, scale=scale), factor=MEMBER_FACTOR)
        for name, c, e, r in zip(names, compiled, eager, reference, strict=True)
    ]
    floats = [index for index, value in enumerate(eager) if value.is_floating_point()]
    if len({eager[index].dtype for index in floats}) == 1:
        whole = compare(
            f"all of {names[0]} ... {names[-1]}",
            compiled=torch.cat([compiled[index].detach().flatten() for index in floats]),
            eager=torch.cat([eager[index].detach().flatten() for index in floats]),
            reference=torch.cat([reference[index].detach().flatten() for index in floats]),
        )
        members.append(whole)
    return tuple(members)


def check_all(comparisons: Iterable[Comparison]) -> None:
    """Raise one AccuracyError that lists every comparison out of bounds, worst first."""
    wrong = sorted(
        (comparison for comparison in comparisons if not comparison.ok),
        key=lambda comparison: -comparison.compiled.relative_l2,
    )
    if wrong:
        raise AccuracyError("\n".join([f"{len(wrong)} results are wrong:", *map(str, wrong[:10])]))
