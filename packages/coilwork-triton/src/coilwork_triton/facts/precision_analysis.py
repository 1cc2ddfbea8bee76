"""Find which values of a kernel need less precision or width than their types have.

Values that only reach memory rounded to 16 bits can come from the hardware's approximations. Exponentials
that are only added to a term of 1 may flush denormal numbers, and so may functions whose operands are none.
Positions that are only compared, or become floats, fit 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import find_bounds
from coilwork_ir.scalar import Const, IndexValue, Op, Reduce, Scalar, iterate_postorder
from coilwork_triton.facts.kernel_analysis import Users

# Exponentials that may flush denormals


def find_denormal_tolerant_exps(
    order: Sequence[Scalar], roots: Sequence[Scalar], users: Users
) -> frozenset[Scalar]:
    """Return the f32 exponentials among `order`, all scalars of a kernel, that only sums with a term of 1
    use.

    The sum of a softmax has a term exp(0). Terms below 2^-126, which f32 holds as denormal numbers, are
    nothing beside it, so they may be 0: the hardware's exponential flushes them, and takes three instructions
    less where it may. The kernel stores and checks `roots`.
    """
    stored = frozenset(roots)
    found: set[Scalar] = set()
    for node in order:
        if isinstance(node, Op) and node.op == "exp" and node.dtype is DType.F32 and node not in stored:
            axes = _axes_of_distance(node.operands[0])
            if axes is not None and users[node] and all(_sums_along(user, axes) for user in users[node]):
                found.add(node)
    return frozenset(found)


def _axes_of_distance(distance: Scalar) -> frozenset[object] | None:
    """Return the axes along which `distance` is one from the largest value; None if it is none."""
    if not isinstance(distance, Op) or distance.op != "sub":
        return None
    value, largest = distance.operands
    if isinstance(largest, Reduce) and largest.kind == "max" and largest.operands == (value,):
        return frozenset(largest.axes)
    return None


def _sums_along(user: Scalar, axes: frozenset[object]) -> bool:
    return isinstance(user, Reduce) and user.kind == "sum" and frozenset(user.axes) == axes


# Functions that may flush denormals


# A sum with a number of at least this magnitude is 0 or no denormal number: where it cancels, the sum, also
# with a product that is not rounded, is a multiple of the last of 48 bits of that number.
_FAR_FROM_DENORMAL: Final = 2.0**-64
_ABSORBED: Final = frozenset({"sin", "erf"})
_WITHOUT_DENORMALS: Final = frozenset({DType.F16, DType.F8E4M3, DType.F8E5M2})


def find_functions_of_normals(
    order: Sequence[Scalar], roots: Sequence[Scalar], users: Users
) -> frozenset[Scalar]:
    """Return the f32 functions among `order`, all scalars of a kernel, that may take denormal numbers for 0.

    Their operand is none: a sum with a constant, as of a variance and epsilon, an integer, or a float of 16
    bits whose own denormal numbers f32 holds as normal ones. Or they are only added to a constant, as erf is
    in GELU, beside which a denormal number is nothing. The kernel stores and checks `roots`.
    """
    stored = frozenset(roots)
    return frozenset(
        node
        for node in order
        if isinstance(node, Op)
        and node.dtype is DType.F32
        and len(node.operands) == 1
        and (_is_never_denormal(node.operands[0]) or (node not in stored and _is_absorbed(node, users[node])))
    )


def _is_absorbed(node: Op, users: Iterable[Scalar]) -> bool:
    return node.op in _ABSORBED and all(_adds_constant(user) for user in users)


def _is_never_denormal(value: Scalar) -> bool:
    if isinstance(value, Op) and value.op == "cast":
        source = value.operands[0].dtype
        return not source.is_float or source in _WITHOUT_DENORMALS
    return _adds_constant(value)


def _adds_constant(value: Scalar) -> bool:
    if not isinstance(value, Op) or value.op not in ("add", "sub"):
        return False
    return any(
        isinstance(o, Const) and _FAR_FROM_DENORMAL <= abs(float(o.value)) < math.inf for o in value.operands
    )


# Positions of 32 bits


_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_FLOATS: Final = frozenset({DType.F32, DType.F64})
# Far enough from 2^31 that the roundings on the way do not matter.
_LIMIT: Final = 2.0**30
Interval: TypeAlias = tuple[float, float]


def find_narrow_positions(order: Sequence[Scalar], roots: Sequence[Scalar]) -> frozenset[IndexValue]:
    """Return the index values among `order`, all scalars of a kernel, whose width nothing depends on.

    A comparison with a position or a constant is the same in whatever width holds both, and an integer
    becomes the same float. Anything else, wrapping arithmetic above all, wants 64 bits.
    """
    found = {node for node in order if isinstance(node, IndexValue)}
    found.difference_update(root for root in roots if isinstance(root, IndexValue))
    for node in order:
        if not _ignores_width(node):
            found.difference_update(o for o in node.operands if isinstance(o, IndexValue))
    return frozenset(found)


def _ignores_width(node: Scalar) -> bool:
    if not isinstance(node, Op):
        return False
    if node.op == "cast":
        return node.dtype in _FLOATS
    return node.op in _COMPARISONS and all(isinstance(o, IndexValue | Const) for o in node.operands)


def find_short_casts(order: Sequence[Scalar], roots: Sequence[Scalar], users: Users) -> frozenset[Scalar]:
    """Casts of floats to 64-bit integers among `order` whose results fit 32 bits and only become floats
    again.

    Results are known to fit where they are computed from positions, as the weights of an upsampling are.
    Conversions from and to 64 bits take several times as long.
    """
    known: dict[Scalar, Interval] = {}
    found: set[Scalar] = set()
    for node in order:
        interval = _interval(node, known)
        if interval is not None and interval[0] > -_LIMIT and interval[1] < _LIMIT:
            known[node] = interval
            if _is_whole(node) and all(_ignores_width(user) for user in users[node]):
                found.add(node)
    return frozenset(found.difference(roots))


def find_redundant_bounds(order: Sequence[Scalar]) -> Mapping[Scalar, Scalar]:
    """Minima and maxima among `order` that clamp a fraction to 0 and 1, which changes nothing; and the
    fraction.
    """
    fractions: set[Scalar] = set()
    found: dict[Scalar, Scalar] = {}
    for node in order:
        if _is_fraction(node):
            fractions.add(node)
        elif isinstance(node, Op) and node.op in ("minimum", "maximum"):
            value, bound = node.operands
            outside = isinstance(bound, Const) and (
                bound.value >= 1 if node.op == "minimum" else bound.value <= 0
            )
            if outside and value in fractions:
                fractions.add(node)
                found[node] = found.get(value, value)
    return found


def _is_fraction(node: Scalar) -> bool:
    match node:
        case Op(
            op="sub",
            operands=(value, Op(op="cast", operands=(Op(op="cast", operands=(same,), dtype=whole),))),
        ):
            # a value that may be infinite has no fraction
            return same is value and whole.is_integer and _is_from_positions(value)
        case _:
            return False


def _is_from_positions(node: Scalar) -> bool:
    """`node` is a finite number of at least 0, for it comes from positions."""
    match node:
        case Op(op="maximum", operands=(value, Const() as least)):
            known: dict[Scalar, Interval] = {}
            for part in iterate_postorder((value,)):
                interval = _interval(part, known)
                if interval is not None:
                    known[part] = interval
            return least.value >= 0 and value in known
        case _:
            return False


def _is_whole(node: Scalar) -> bool:
    return (
        isinstance(node, Op)
        and node.op == "cast"
        and node.dtype is DType.I64
        and node.operands[0].dtype in _FLOATS
    )


def _interval(node: Scalar, known: Mapping[Scalar, Interval]) -> Interval | None:
    """Return the interval of the finite values of `node`, from those of its operands; None if not known."""
    match node:
        case Const() if not node.dtype.is_bool and math.isfinite(node.value):
            return float(node.value), float(node.value)
        case IndexValue(operands=()):
            interval = find_bounds(node.expr)
            if interval.lo is None or interval.hi is None:
                return None
            return float(interval.lo), float(interval.hi)
        case Op() if all(operand in known for operand in node.operands):
            return _combine_intervals(node.op, [known[operand] for operand in node.operands])
        case _:
            return None


def _combine_intervals(name: str, operands: Sequence[Interval]) -> Interval | None:
    match name, operands:
        case "cast", [(lo, hi)]:
            return lo - 1, hi + 1
        case "add", [(a, b), (c, d)]:
            return a + c, b + d
        case "sub", [(a, b), (c, d)]:
            return a - d, b - c
        case "mul", [(a, b), (c, d)]:
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        case "minimum", [(a, b), (c, d)]:
            return min(a, c), min(b, d)
        case "maximum", [(a, b), (c, d)]:
            return max(a, c), max(b, d)
        case _:
            return None


# Values that are rounded to 16 bits


# What passes a relative error of an operand on without enlarging it, but for sums of opposite signs: those
# lose no more of the result than rounding each operand to 16 bits, as eager does, would.
_PASSING: Final = frozenset(
    {"add", "sub", "mul", "div", "fma", "neg", "abs", "minimum", "maximum", "where", "sigmoid", "tanh", "erf"}
)  # fmt: skip


def find_rounded_values(order: Sequence[Scalar], roots: Sequence[Scalar], users: Users) -> frozenset[Scalar]:
    """Return the f32 values among `order`, all scalars of a kernel, that every use rounds to 16 bits or
    fewer.

    Comparisons, reductions and indices keep full values.
    """
    stored = frozenset(roots)
    found: set[Scalar] = set()
    for node in reversed(order):
        if node.dtype is DType.F32 and node not in stored and users[node]:
            if all(_rounds(user) or (user in found and _passes(user, node)) for user in users[node]):
                found.add(node)
    return frozenset(found)


def find_one_plus(rounded: Iterable[Scalar], users: Users) -> Mapping[Scalar, Op]:
    """Return the `rounded` values that add 1 to a tanh or erf which nothing else uses; and that function."""
    found: dict[Scalar, Op] = {}
    for node in rounded:
        if isinstance(node, Op) and node.op == "add":
            for function, one in (node.operands, node.operands[::-1]):
                if isinstance(one, Const) and one.value == 1 and _is_function(function, users):
                    assert isinstance(function, Op)
                    found[node] = function
    return found


def find_rounded_factors(values: Iterable[Scalar], users: Users) -> frozenset[Scalar]:
    """Return the `values` that are only rounded, or multiplied with others, before anything is added."""
    return frozenset(
        value for value in values if all(_rounds(user) or _is_product(user, value) for user in users[value])
    )


def _is_product(user: Scalar, value: Scalar) -> bool:
    return isinstance(user, Op) and user.op == "mul" and sum(o is value for o in user.operands) == 1


def find_softmax_numerators(values: Iterable[Scalar]) -> frozenset[Scalar]:
    """Return the `values` that are exponentials of distances from a reduction's result."""
    return frozenset(
        value
        for value in values
        if isinstance(value, Op)
        and value.op == "exp"
        and any(isinstance(operand, Reduce) for operand in value.operands[0].operands)
    )


def _is_function(node: Scalar, users: Users) -> bool:
    return isinstance(node, Op) and node.op in ("tanh", "erf") and len(users[node]) == 1


def _rounds(user: Scalar) -> bool:
    return isinstance(user, Op) and user.op == "cast" and user.dtype.is_float and user.dtype.itemsize <= 2


def _passes(user: Scalar, operand: Scalar) -> bool:
    return (
        isinstance(user, Op)
        and user.op in _PASSING
        and not (user.op == "where" and user.operands[0] is operand)
    )
