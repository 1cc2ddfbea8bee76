"""Selections between loads, as joining tensors makes them, as one load through a selected pointer.

A join reads each of its tensors under a mask, and selects. Where the places of the joints and the rows of all
tensors are whole vectors of 16 bytes, so is what a thread reads, from one tensor: then one address is chosen
per vector, not one value per element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, bounds, provably_divisible, stride_of, substitute
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Scalar
from coilwork_triton.facts.kernel_analysis import Users
from coilwork_triton.facts.vectorization import Access, wide_in_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A chain of selections.

    Attributes:
        choices: a condition and what is loaded where it holds and none before it does.
        last: what is loaded where none holds.
    """

    choices: tuple[tuple[Op, Load], ...]
    last: Load

    @property
    def loads(self) -> tuple[Load, ...]:
        """All loads, in order."""
        return (*(load for _, load in self.choices), self.last)


def joined_loads(kernel: Kernel, order: Sequence[Scalar], users: Users) -> Mapping[Scalar, Joined]:
    """The selections among `order`, all scalars of a pointwise `kernel`, that can be one load each."""
    if any(r.kind != "parallel" for r in kernel.ranges):
        return {}
    found: dict[Scalar, Joined] = {}
    inner: set[Scalar] = set()
    for node in reversed(order):
        if node not in inner:
            joined = _chain(node, users)
            if joined is not None and _fits(joined, kernel):
                found[node] = joined
                inner.update(_links(node))
    return found


def absorbed_by(joined: Mapping[Scalar, Joined], order: Sequence[Scalar], users: Users) -> frozenset[Scalar]:
    """Return what is not written on its own: inner selections, their loads, and the masks that only these
    have.
    """
    gone: set[Scalar] = set()
    for node, one in joined.items():
        gone.update(_links(node))
        gone.update(one.loads)
    kept = {condition for one in joined.values() for condition, _ in one.choices}
    for node in reversed(order):
        if users[node] and node not in kept and node not in joined and all(u in gone for u in users[node]):
            gone.add(node)
    return frozenset(gone)


def _chain(node: Scalar, users: Users) -> Joined | None:
    choices: list[tuple[Op, Load]] = []
    rest = node
    while isinstance(rest, Op) and rest.op == "where":
        condition, chosen, otherwise = rest.operands
        if not isinstance(condition, Op) or not isinstance(chosen, Load):
            return None
        if rest is not node and len(users[rest]) != 1:
            return None
        choices.append((condition, chosen))
        rest = otherwise
    if not choices or not isinstance(rest, Load):
        return None
    joined = Joined(choices=tuple(choices), last=rest)
    return joined if all(len(users[load]) == 1 for load in joined.loads) and _masks_hold(joined) else None


def _links(node: Scalar) -> Iterator[Scalar]:
    """The selections within the selection `node`."""
    rest = node.operands[2]
    while isinstance(rest, Op) and rest.op == "where":
        yield rest
        rest = rest.operands[2]


def _masks_hold(joined: Joined) -> bool:
    """Every load's mask holds wherever the load is chosen."""
    false: list[Op] = []
    for condition, load in joined.choices:
        if not all(_holds(part, [condition], false) for part in _parts(load.mask)):
            return False
        false.append(condition)
    return all(_holds(part, [], false) for part in _parts(joined.last.mask))


def _parts(mask: Scalar | None) -> Iterable[Scalar]:
    if mask is None:
        return ()
    if isinstance(mask, Op) and mask.op == "bitwise_and":
        return (*_parts(mask.operands[0]), *_parts(mask.operands[1]))
    return (mask,)


def _holds(part: Scalar, true: Sequence[Scalar], false: Sequence[Op]) -> bool:
    if part in true:
        return True
    if not isinstance(part, Op):
        return False
    if part.op == "ge" and any(other.op == "lt" and other.operands == part.operands for other in false):
        return True
    if part.op != "lt":
        return False
    at, end = part.operands
    if not isinstance(at, IndexValue) or at.operands or not isinstance(end, Const):
        return False
    most = bounds(at.expr).hi
    return most is not None and most < end.value


def _fits(joined: Joined, kernel: Kernel) -> bool:
    """All loads are of one type and as wide as each other, and the joints lie between vectors."""
    first = joined.last
    if (
        any(load.dtype is not first.dtype or load.indirect for load in joined.loads)
        or first.dtype is DType.BOOL
    ):
        return False
    accesses = [Access(index=load.index[0], itemsize=load.dtype.itemsize) for load in joined.loads]
    if not wide_in_rows(kernel.ranges, accesses):
        return False
    inner = kernel.ranges[-1].symbol
    lanes = accesses[0].lanes
    for condition, _ in joined.choices:
        at, end = condition.operands[0], condition.operands[-1]
        if (
            condition.op != "lt"
            or not isinstance(at, IndexValue)
            or at.operands
            or not isinstance(end, Const)
        ):
            return False
        if inner in at.expr.free_symbols:
            start = substitute(at.expr, {inner: as_expr(0)})
            even = provably_divisible(start, lanes) and int(end.value) % lanes == 0
            if not even or stride_of(at.expr, inner) is not as_expr(1):
                return False
    return True
