"""Scalar values: what one point of an iteration domain computes.

A body is a directed acyclic graph of five kinds of node. Nodes are immutable and interned: two equal values
are the same object, so `is` compares, hashing is O(1), and common subexpressions exist once. Build them with
the functions in `coilwork_ir.scalar` only.

Loop IR uses `Const`, `IndexValue`, `Load` and `Op`; its reductions are graph nodes. Kernel IR adds `Reduce`,
`Contraction`, `Scan` and `Sort`, whose axes are reduction ranges of the kernel; a value below a `Reduce` or a
`Contraction` varies along its axes, the node itself not.

A `Combine` is a function of scalars, made of `Const`, `Op` and its own `Parameter` nodes: how a scan combines
what has no name. The epilogue of a contraction is a body that is given the sum as its only `Parameter`.

A `Check` is a condition over scalars that loop nodes and kernels hold, and the error that a run ends with
where it fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.intern_table import InternTable
from coilwork_ir.ops import ReduceKind, ScanKind

Literal_: TypeAlias = bool | int | float


class Scalar:
    """Base of the scalar nodes. `dtype` is the type of the value; `operands` are the nodes it reads."""

    __slots__ = ("__weakref__", "dtype", "operands")

    # compared and hashed by identity, as `object` does it: walks look up a node several times for each user
    dtype: DType
    operands: tuple[Scalar, ...]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("scalar nodes are interned: send their text form, not a pickle")


class Const(Scalar):
    """A literal. `value` is a bool, int or float of `dtype`'s class; -0.0, inf and nan are
    distinct values.
    """

    __slots__ = ("value",)
    value: Literal_


class IndexValue(Scalar):
    """The value of an index expression, as an integer (`i64`).

    `operands[k]` stands for the symbol `placeholder(k)` in `expr`, as in `Load`.
    """

    __slots__ = ("expr",)
    expr: Expr


class Load(Scalar):
    """The element of `buffer` at `index`.

    `index` has one expression per dimension in loop IR and a single flat offset, in elements, in kernel IR.
    `indirect[k]`, an integer value, stands for the symbol `placeholder(k)` in `index`. Where `mask` (bool) is
    false, memory is not touched and the value is `other`. `operands` is `indirect` plus `mask` if there is
    one.
    """

    __slots__ = ("buffer", "index", "indirect", "mask", "other")
    buffer: str
    index: tuple[Expr, ...]
    indirect: tuple[Scalar, ...]
    mask: Scalar | None
    other: Literal_


class Op(Scalar):
    """A row of the op table applied to `operands`; `dtype` follows the row's rule."""

    __slots__ = ("op",)
    op: str


class Parameter(Scalar):
    """Number `position` of what a function is given: a `Combine`, or the epilogue of a contraction of the
    loop IR.
    """

    __slots__ = ("position",)
    position: int


@dataclass(frozen=True, slots=True)
class Combine:
    """An associative function of two tuples of as many values, which gives one more such tuple.

    Of `count` values, parameter k of the `results` is number k of the first tuple, and parameter `count + k`
    number k of the second, which comes later along the axis. Number k has one type in all three. Made by
    `coilwork_ir.scalar.combine`.
    """

    results: tuple[Scalar, ...]

    @property
    def count(self) -> int:
        """The number of values of a tuple."""
        return len(self.results)


Combining: TypeAlias = ScanKind | Combine
"""How a scan combines values: in a way that has a name, or by a function."""


class Reduce(Scalar):
    """Result number `output` of combining `operands` with `kind` along the range symbols `axes`.

    With `operands[1]`, if present, a bool: elements where it is false take no part.
    """

    __slots__ = ("axes", "kind", "output")
    kind: ReduceKind
    axes: tuple[Expr, ...]
    output: int


class Contraction(Scalar):
    """The sum of `left * right` along the range symbols `axes`: what matrix units compute, block by block.

    Both factors have one type of floats; products and sums are in the node's own, which has every product of
    two factors of 16 bits. In a kernel the left factor alone varies along rows, the right one alone along
    columns, both along the axes and a batch: `coilwork_ir.scalar.analysis`.
    """

    __slots__ = ("axes",)
    axes: tuple[Expr, ...]

    @property
    def left(self) -> Scalar:
        """The factor of the rows."""
        return self.operands[0]

    @property
    def right(self) -> Scalar:
        """The factor of the columns."""
        return self.operands[1]


class Scan(Scalar):
    """The inclusive running combination of `operands` with `kind` along the range symbol `axis`.

    `output` 1 of `min` and `max` is the `i64` position of the running extreme (the last one among equals, as
    torch.cummax gives). A `Combine` combines the tuples of all `operands`, and `output` counts its results.
    """

    __slots__ = ("axis", "kind", "output", "reverse")
    kind: Combining
    axis: Expr
    output: int
    reverse: bool


class Sort(Scalar):
    """The operand's values along the range symbol `axis`, in ascending or `descending` order.

    At position p of the axis, output 0 is the value that is number p in that order and output 1 the `i64`
    position that it has in the operand. Equal values keep their order, also if `descending`; -0.0 and 0.0 are
    equal, NaN is greater than all numbers (as torch.sort(stable=True) has it). A NaN may come out with other
    bits.

    If `topk` is not 0, equal values come as `torch.topk` of `topk` elements has them on CPUs, and nothing is
    said of what lies behind these elements.
    """

    __slots__ = ("axis", "descending", "output", "topk")
    axis: Expr
    descending: bool
    output: int
    topk: int


Key: TypeAlias = tuple[object, ...]

# One table for all kinds: the key starts with the class.
SCALARS: Final[InternTable[Key, Scalar]] = InternTable()


CheckError: TypeAlias = Literal["IndexError", "RuntimeError", "ZeroDivisionError"]
"""Exceptions that failed checks are raised as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A run-time check: for every point of the domain `condition` (bool) holds, else `message` is raised as
    `error`."""

    condition: Scalar
    message: str
    error: CheckError = "RuntimeError"

    @property
    def text(self) -> str:
        """`error: message`, the form of `KernelSource.checks`."""
        return f"{self.error}: {self.message}"
