"""Values that only reach memory rounded to 16 bits or fewer: cheaper functions do for them.

A function of f32 that is off by a few units of f32 is far below what the rounding to bf16 or f16 takes away,
which is 2^-9 or 2^-12 of the result. In "fast" kernels such values are computed with the hardware's
approximations, which take a fraction of the instructions; results of 32 bits keep the accurate ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Const, Op, Reduce, Scalar
from coilwork_triton.facts.kernel_analysis import Users

# What passes a relative error of an operand on without enlarging it, but for sums of opposite signs: those
# lose no more of the result than rounding each operand to 16 bits, as eager does, would.
_PASSING: Final = frozenset(
    {"add", "sub", "mul", "div", "fma", "neg", "abs", "minimum", "maximum", "where", "sigmoid", "tanh", "erf"}
)  # fmt: skip


def only_rounded(order: Sequence[Scalar], roots: Sequence[Scalar], users: Users) -> frozenset[Scalar]:
    """Return those f32 values among `order`, all scalars of a kernel, operands first, that every use rounds
    to 16 bits or fewer.

    Comparisons, reductions and indices keep full values.
    """
    stored = frozenset(roots)
    found: set[Scalar] = set()
    for node in reversed(order):
        if node.dtype is DType.F32 and node not in stored and users[node]:
            if all(_rounds(user) or (user in found and _passes(user, node)) for user in users[node]):
                found.add(node)
    return frozenset(found)


def one_plus(rounded: Iterable[Scalar], users: Users) -> Mapping[Scalar, Op]:
    """Return those among the values `rounded` that add 1 to a tanh or erf which nothing else uses, and that
    function.
    """
    found: dict[Scalar, Op] = {}
    for node in rounded:
        if isinstance(node, Op) and node.op == "add":
            for function, one in (node.operands, node.operands[::-1]):
                if isinstance(one, Const) and one.value == 1 and _is_function(function, users):
                    assert isinstance(function, Op)
                    found[node] = function
    return found


def factors(values: Iterable[Scalar], users: Users) -> frozenset[Scalar]:
    """Return those among `values` that are rounded, or multiplied with others, at once."""
    return frozenset(
        value for value in values if all(_rounds(user) or _is_product(user, value) for user in users[value])
    )


def _is_product(user: Scalar, value: Scalar) -> bool:
    return isinstance(user, Op) and user.op == "mul" and sum(o is value for o in user.operands) == 1


def softmax_numerators(values: Iterable[Scalar]) -> frozenset[Scalar]:
    """Return those among `values` that are exponentials of distances from a reduction's result."""
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
