"""How wrong may a compiled model be? At most twice as wrong as eager, against a float64 reference.

Two correct float32 programs differ in the order of their additions, so comparing compiled to eager needs a
tolerance that somebody has to guess. Comparing both to the same computation in float64 needs none: eager's
own distance from it says how much rounding the model suffers, and a correct compiler's distance is about as
large.

    reference = float64_copy(module)(*to_float64(inputs))
    compare("logits", compiled=..., eager=..., reference=...).check()

Two distances are judged, because each hides what the other shows: the largest absolute error (one wrong
element) and the relative L2 error (every element a little wrong). Each may reach `FACTOR` times eager's plus
a floor. The floor is a few units in the last place of the result: eager's error is sometimes zero or tiny by
luck (a single-element bias gradient, say), and twice nothing is nothing.

Gradients through ReLU or max pooling jump where an activation crosses zero or two maxima are equal, so that
the last bit of an activation decides elements of a gradient: eager's distance is then one draw of a scattered
quantity. A member of a group that fails is judged again beside more eager runs, if the caller has any
(`benchmarks.eager_spread` makes them).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

FACTOR = 2.0
# A single member of a group (one of a hundred gradients) gets more room: eager's own error there is one draw
# of a scattered quantity. The group as a whole is held to FACTOR.
MEMBER_FACTOR = 4.0
# Beside the worst of several eager runs less is left to luck, and the relative error of a member is held to
# FACTOR. Its largest element gets a little more: single ones move by up to fourteen times between valid runs
# (`branch_flips`). Where a model is smooth, all runs err alike, and this is stricter than MEMBER_FACTOR of
# one.
SPREAD_MAX_ABS_FACTOR = 3.0
# Units in the last place of the result's largest element. A float32 dot product over n terms is off by about
# sqrt(n) of them, and n is in the hundreds for every model here; bfloat16 results are rounded from float32
# sums.
FLOOR_ULPS = {torch.float64: 64.0, torch.float32: 16.0, torch.bfloat16: 1.0, torch.float16: 2.0}


class AccuracyError(AssertionError):
    """A compiled result is further from the float64 reference than eager's error allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a result lies from its reference; both figures are inf where a NaN or infinity is
    out of place.
    """

    max_abs: float
    relative_l2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One result of the compiled program beside eager's, with the factors and floors that apply to it.

    `eager` holds the larger of each figure over `eager_runs` runs.
    """

    name: str
    compiled: Distance
    eager: Distance
    max_abs_floor: float
    relative_l2_floor: float
    max_abs_factor: float = FACTOR
    relative_l2_factor: float = FACTOR
    eager_runs: int = 1

    @property
    def ok(self) -> bool:
        """Tell if both distances are within their factor times eager's plus the floor."""
        max_abs_limit = self.max_abs_factor * self.eager.max_abs + self.max_abs_floor
        relative_l2_limit = self.relative_l2_factor * self.eager.relative_l2 + self.relative_l2_floor
        return self.compiled.max_abs <= max_abs_limit and self.compiled.relative_l2 <= relative_l2_limit

    def check(self) -> None:
        """Raise AccuracyError, with both programs' distances, unless `ok`."""
        if not self.ok:
            raise AccuracyError(str(self))

    def compare_runs(self, runs: Sequence[Distance]) -> Comparison:
        """The same result judged beside further eager runs: by the worst of all of them, with less room for
        luck.
        """
        eager = Distance(
            max_abs=max(run.max_abs for run in (self.eager, *runs)),
            relative_l2=max(run.relative_l2 for run in (self.eager, *runs)),
        )
        return replace(
            self,
            eager=eager,
            max_abs_factor=SPREAD_MAX_ABS_FACTOR,
            relative_l2_factor=FACTOR,
            eager_runs=self.eager_runs + len(runs),
        )

    def __str__(self) -> str:
        eager = "eager" if self.eager_runs == 1 else f"worst of {self.eager_runs} eager runs"
        return (
            f"{self.name}: max abs error {self.compiled.max_abs:.3g} ({eager} {self.eager.max_abs:.3g}, "
            f"floor {self.max_abs_floor:.3g}), relative L2 {self.compiled.relative_l2:.3g} "
            f"({eager} {self.eager.relative_l2:.3g}, floor {self.relative_l2_floor:.3g})"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitude:
    """How large the finite elements of a tensor are; zeros where there are none."""

    largest: float
    l2: float
    elements: int

    @property
    def root_mean_square(self) -> float:
        return self.l2 / math.sqrt(self.elements) if self.elements else 0.0


def magnitude(reference: Tensor) -> Magnitude:
    """The magnitude of a floating-point tensor, computed in float64."""
    values = reference.detach().double()
    if values.numel():
        least, most = (bound.item() for bound in torch.aminmax(values))
        if math.isfinite(
            most - least
        ):  # the usual case, without a mask and a copy: there may be gigabytes of gradients
            return Magnitude(largest=max(-least, most), l2=values.norm().item(), elements=values.numel())
        values = values[torch.isfinite(values)]
    if not values.numel():
        return Magnitude(largest=0.0, l2=0.0, elements=0)
    return Magnitude(largest=values.abs().max().item(), l2=values.norm().item(), elements=values.numel())


def distance(result: Tensor, reference: Tensor) -> Distance:
    """Distance of `result` from `reference` (same shape; computed in float64).

    Infinities and NaNs must stand where the reference has them, with the same sign; they count as exact
    there.
    """
    if result.shape != reference.shape:
        raise AccuracyError(f"shape {tuple(result.shape)} where the reference has {tuple(reference.shape)}")
    return _distance(result, reference, magnitude(reference).l2)


def _distance(result: Tensor, reference: Tensor, reference_l2: float) -> Distance:
    result, reference = result.detach().to(reference.device), reference.detach().double()
    if reference.numel() == 0:
        return Distance(max_abs=0.0, relative_l2=0.0)
    difference = (result - reference).abs_()
    largest = difference.max().item()
    if not math.isfinite(largest):  # NaN too, as infinity less infinity is
        finite = torch.isfinite(reference)
        apart = not torch.allclose(result[~finite].double(), reference[~finite], equal_nan=True)
        if apart or not torch.isfinite(difference[finite]).all():
            return Distance(max_abs=float("inf"), relative_l2=float("inf"))
        difference = difference[finite]
        largest = difference.max().item() if difference.numel() else 0.0
    norm = difference.norm().item()
    return Distance(max_abs=largest, relative_l2=norm / reference_l2 if reference_l2 > 0 else norm)


def together(distances: Sequence[Distance], references: Sequence[Magnitude]) -> Distance:
    """The distance of several tensors, taken as one vector, from their references."""
    weights = [reference.l2 if reference.l2 > 0 else 1.0 for reference in references]
    norm = math.hypot(*(d.relative_l2 * weight for d, weight in zip(distances, weights, strict=True)))
    scale = math.hypot(*(reference.l2 for reference in references))
    return Distance(
        max_abs=max((d.max_abs for d in distances), default=0.0),
        relative_l2=norm / scale if scale > 0 else norm,
    )


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
    if eager.shape != reference.shape:
        raise AccuracyError(f"{name}: {tuple(eager.shape)} where the reference has {tuple(reference.shape)}")
    size = magnitude(reference)
    unit, typical = FLOOR_ULPS[eager.dtype] * torch.finfo(eager.dtype).eps, size.root_mean_square
    return Comparison(
        name=name,
        compiled=_distance(compiled, reference, size.l2),
        eager=_distance(eager, reference, size.l2),
        max_abs_floor=unit * max(size.largest, scale),
        relative_l2_floor=unit * max(1.0, scale / typical if typical > 0 else 1.0),
    )


def compare_group(
    names: Sequence[str],
    *,
    compiled: Sequence[Tensor],
    eager: Sequence[Tensor],
    reference: Sequence[Tensor],
    more_eager: Callable[[], Iterable[Sequence[Tensor]]] | None = None,
) -> tuple[Comparison, ...]:
    """Judge tensors that belong together, such as all gradients of a model: each one, and all of them as one
    vector.

    Some gradients are zero in exact arithmetic (the key projection's bias under softmax, a convolution's bias
    before batch norm): what any program computes there is rounding of sums of much larger terms, and its size
    is luck. A tenth of the group's typical (median) magnitude therefore serves as scale to all its members.

    `more_eager` makes further, equally valid eager runs' tensors. It is called only if something fails, which
    is then judged beside those runs, too.
    """
    if not len(names) == len(compiled) == len(eager) == len(reference):
        raise AccuracyError(
            f"{len(compiled)} compiled and {len(reference)} reference tensors for {len(names)} names"
        )
    sizes = [magnitude(value) for value in reference]
    largest = sorted(size.largest for size in sizes if size.elements)
    scale = 0.1 * largest[len(largest) // 2] if largest else 0.0
    members = [
        replace(
            compare(name, compiled=c, eager=e, reference=r, scale=scale),
            max_abs_factor=MEMBER_FACTOR,
            relative_l2_factor=MEMBER_FACTOR,
        )
        for name, c, e, r in zip(names, compiled, eager, reference, strict=True)
    ]
    floats = [index for index, value in enumerate(eager) if value.is_floating_point()]
    if len({eager[index].dtype for index in floats}) != 1:
        return tuple(members)
    float_sizes = [sizes[index] for index in floats]
    unit = FLOOR_ULPS[eager[floats[0]].dtype] * torch.finfo(eager[floats[0]].dtype).eps
    whole = Comparison(
        name=f"all of {names[0]} ... {names[-1]}",
        compiled=together([members[index].compiled for index in floats], float_sizes),
        eager=together([members[index].eager for index in floats], float_sizes),
        max_abs_floor=unit * max(size.largest for size in float_sizes),
        relative_l2_floor=unit,
    )
    if more_eager is None or all(comparison.ok for comparison in (*members, whole)):
        return (*members, whole)
    runs = [
        [_distance(run[index], reference[index], sizes[index].l2) for index in floats] for run in more_eager()
    ]
    for position, index in enumerate(floats):
        if not members[index].ok:
            members[index] = members[index].compare_runs([run[position] for run in runs])
    if not whole.ok:
        whole = whole.compare_runs([together(run, float_sizes) for run in runs])
    return (*members, whole)


def check_all(comparisons: Iterable[Comparison]) -> None:
    """Raise one AccuracyError that lists every comparison out of bounds, worst first."""
    wrong = sorted(
        (comparison for comparison in comparisons if not comparison.ok),
        key=lambda comparison: -comparison.compiled.relative_l2,
    )
    if wrong:
        raise AccuracyError("\n".join([f"{len(wrong)} results are wrong:", *map(str, wrong[:10])]))
