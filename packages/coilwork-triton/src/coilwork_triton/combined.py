"""Several computations of one kind in one launch.

Each has as many programs as it would have alone. A program finds out which one it belongs to by halving the list of
first programs, takes that one's pointers and sizes, and goes on with the body, which is there once:

    at = tl.program_id(0)
    if at < 4:
        first = 0
        n0 = 256
        in0 = m0_in0
    else:
        first = 4
        ...
    own = at - first

Where numbers of programs are known, so are the firsts, because there is one configuration: to measure several would mean
copies of all that the launch updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, as_int, product, provably_le, substitute, symbol, total
from coilwork_ir.kernel_source import SearchSpace
from coilwork_ir.kernels import Combined, Kernel, Member
from coilwork_ir.target import Target
from coilwork_triton.configs import UNKNOWN_EXTENT
from coilwork_triton.index_printer import IndexPrinter
from coilwork_triton.options import TritonOptions
from coilwork_triton.shape import Shape
from coilwork_triton.tree import (
    Assign,
    Binary,
    Expression,
    If,
    List,
    Name,
    Number,
    Statement,
    tl,
)
from coilwork_triton.types import triton_type
from coilwork_triton.written import Written, write_part

_INT32_MAX: Final = 2**31 - 1
_AT, _FIRST, _OWN = "at", "first", "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A member, with what is the same for all of its programs."""

    first: Expression
    sizes: tuple[Expression, ...]
    args: tuple[str, ...]


def write_combined(
    kernel: Kernel, combined: Combined, target: Target, options: TritonOptions, library: set[str]
) -> Written:
    """`kernel`, which is `combined`. Device functions that it uses are added to `library`.

    Raises:
        EmitError: the body holds something Triton lacks, or the kernel's names are the body's.
    """
    body = replace(combined.body, numerics=kernel.numerics)
    formal = {a.name for a in body.args} | {s.name for s in body.sizes}
    taken = formal & ({a.name for a in kernel.args} | {s.name for s in kernel.sizes})
    if taken:
        raise EmitError("combined-names", f"{min(taken)} of {kernel.name} is a name of its body too")
    narrow = options.index_dtype != "auto" or all(provably_le(s, _INT32_MAX) for s in kernel.sizes)
    one = replace(options, max_configs=1, index_dtype=options.index_dtype if narrow else "i64")
    points = sum(_points(body, member) for member in combined.members)
    shape, inside = write_part(body, target, one, library, points=points, program=_OWN)
    programs = [_programs(shape, body, member) for member in combined.members]
    lines: list[Statement] = []
    printer = IndexPrinter({}, lambda s: Name(s.name), library)
    firsts = _firsts(programs, printer, lines)
    leaves = [
        _Leaf(
            first=firsts[number],
            sizes=tuple(_typed(size, printer, shape.index_dtype) for size in member.sizes),
            args=member.args,
        )
        for number, member in enumerate(combined.members)
    ]
    # what all members pass is passed as it is
    shared = [k for k in range(len(body.args)) if len({leaf.args[k] for leaf in leaves}) == 1]
    lines.append(Assign((_AT,), tl("program_id", Number(0))))
    lines += [Assign((body.args[k].name,), Name(leaves[0].args[k])) for k in shared]
    lines += _choice(leaves, body, frozenset(shared))
    lines.append(Assign((_OWN,), Binary("-", Name(_AT), Name(_FIRST))))
    return Written(
        body=(*lines, *inside),
        grid=(total(programs),),
        configs=shape.configs,
        # the text holds how many programs each member has
        space=SearchSpace(),
        index_dtype=shape.index_dtype,
        neighbourly=shape.neighbourly,
    )


def _points(body: Kernel, member: Member) -> int:
    values = dict(zip(body.sizes, member.sizes, strict=True))
    count = 1
    for entry in body.ranges:
        if entry.symbol.extent is not None and entry.kind == "parallel":
            known = as_int(substitute(entry.symbol.extent, values))
            count *= UNKNOWN_EXTENT if known is None else known
    return count


def _programs(shape: Shape, body: Kernel, member: Member) -> Expr:
    blocks = {symbol(name, lo=1): as_expr(value) for name, value in shape.configs[0].meta}
    values = dict(zip(body.sizes, member.sizes, strict=True))
    return substitute(product(shape.programs(tile) for tile in shape.parallel), {**blocks, **values})


def _firsts(programs: list[Expr], printer: IndexPrinter, lines: list[Statement]) -> list[Expression]:
    """The first program of each member; what is not known is computed by `lines`."""
    found: list[Expression] = []
    known, before = 0, None
    for number, count in enumerate(programs):
        found.append(Number(known) if before is None else before)
        exact = as_int(count)
        if exact is not None and before is None:
            known += exact
        elif number + 1 < len(programs):
            name = f"{_FIRST}{number + 1}"
            # as wide as the literals that it meets in one variable
            first = _scalar(Binary("+", found[-1], printer.text(count)), DType.I32)
            lines.append(Assign((name,), first))
            before = Name(name)
    return found


def _typed(size: Expr, printer: IndexPrinter, dtype: DType) -> Expression:
    """A member's size. All members' have one type, for they meet in one variable."""
    if dtype is DType.I32:
        return printer.text(size)
    known = as_int(size)
    return _scalar(printer.text(size) if known is None else Number(known), DType.I64)


def _scalar(value: Expression, dtype: DType) -> Expression:
    """`value` as a `dtype`. It has no methods where Triton takes an argument of 1 for a constant."""
    return tl("full", List(()), value, triton_type(dtype))


def _choice(leaves: list[_Leaf], body: Kernel, shared: frozenset[int]) -> list[Statement]:
    if len(leaves) > 1:
        half = len(leaves) // 2
        later = leaves[half:]
        return [
            If(
                Binary("<", Name(_AT), later[0].first),
                tuple(_choice(leaves[:half], body, shared)),
                tuple(_choice(later, body, shared)),
            )
        ]
    (leaf,) = leaves
    found: list[Statement] = [Assign((_FIRST,), leaf.first)]
    found += [Assign((s.name,), value) for s, value in zip(body.sizes, leaf.sizes, strict=True)]
    for k, formal in enumerate(body.args):
        if k not in shared:
            found.append(Assign((formal.name,), Name(leaf.args[k])))
    return found
