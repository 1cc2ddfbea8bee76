"""Several computations of one kind in one launch.

Each has as many programs as it would have alone. A program finds out which one it belongs to by halving the
list of first programs, and calls the body, a function of its own, with that one's pointers and sizes:

    at = tl.program_id(0)
    if at < 4:
        foreach_add_part(m0_in0, tl.full([], 256, tl.int32), at, XBLOCK)
    else:
        foreach_add_part(m1_in0, tl.full([], 4096, tl.int32), at - 4, XBLOCK)

The function is not inlined: of copies LLVM makes one, fetches the pointers of all members before it decides,
and keeps them in registers.

Where numbers of programs are known, so are the firsts if there is one configuration: to measure several means
copies of all that the launch updates. A search, which makes them, varies what the firsts do not depend on.
Where copies take little memory and the launch is a large one, there are several configurations, and each has
firsts of its own:

    first1 = tl.cdiv(4096, XBLOCK)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, add_all, as_expr, as_int, multiply_all, provably_le, substitute, symbol
from coilwork_ir.kernel_source import SearchSpace
from coilwork_ir.kernels import ComboKernel, Kernel, Member
from coilwork_ir.mapping import FlatGrid, Index, Mapping, Tile, find_all, verify_mapping
from coilwork_ir.mapping.directive import Open
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Do,
    Expression,
    Function,
    If,
    List,
    Name,
    Number,
    Statement,
    call,
)
from coilwork_ir.target import Target
from coilwork_triton.emit_kernel import EmittedKernel, emit_statements
from coilwork_triton.iteration.refusals import refuse
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.kernel_passes.table import MEMBER_PASSES, begin_draft
from coilwork_triton.launch.parameters import BLOCKS, UNKNOWN_EXTENT
from coilwork_triton.options import TritonOptions
from coilwork_triton.planning import open_versions
from coilwork_triton.proposals.mapping_proposal import (
    Planned,
    change_candidates,
    flatten_grid,
    plan_mapping,
    propose,
)
from coilwork_triton.proposals.proposal import Setting
from coilwork_triton.text.index_printer import IndexPrinter
from coilwork_triton.text.language import define_function, get_triton_type, tl

_INT32_MAX: Final = 2**31 - 1
# Bytes that may be copied to measure configurations; the memory of a model's parameters and their optimizer
# is not to double.
_COPIED: Final = 1 << 29
_AT, _FIRST, _OWN = "at", "first", "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """The body for a member, whose first program is `first`."""

    first: Expression
    statement: Statement


def write_combo_kernel(
    kernel: Kernel, combined: ComboKernel, planned: Planned, library: set[str]
) -> EmittedKernel:
    """`kernel`, which is `combined`, and whose body runs as `planned`. Device functions that it uses are
    added to `library`.

    Raises:
        EmitError: the body holds something Triton lacks, or the kernel's names are the body's.
    """
    body = planned.kernel
    formal = {a.name for a in body.args} | {s.name for s in body.sizes}
    taken = formal & ({a.name for a in kernel.args} | {s.name for s in kernel.sizes})
    if taken:
        raise EmitError("combined-names", f"{min(taken)} of {kernel.name} is a name of its body too")
    shape = planned.shape
    inside = emit_statements(body, shape, library)
    part = _define_part(kernel, body, shape, inside)
    lines: list[Statement] = [Assign((_AT,), tl("program_id", Number(0)))]
    printer = IndexPrinter({}, lambda s: Name(s.name), library)
    programs = [_count_programs(planned, member) for member in combined.members]
    if has_open_blocks(planned.mapping):
        firsts = _first_programs_by_block(shape, body, combined.members, lines)
    else:
        firsts = _first_programs(programs, printer, lines)
    calls = [
        _Call(first=first, statement=Do(_call_part(part, member, first, shape, printer)))
        for first, member in zip(firsts, combined.members, strict=True)
    ]
    return EmittedKernel(
        body=(*lines, *_branch_to_member(calls)),
        grid=(add_all(programs),),
        configs=planned.configs,
        versions=open_versions(planned),
        index_dtype=shape.index_dtype,
        narrow=frozenset(a.name for a in kernel.args) if shape.scalar_access else frozenset(),
        functions=(part,),
    )


def plan_member(kernel: Kernel, combined: ComboKernel, target: Target, options: TritonOptions) -> Planned:
    """Plan the body of `kernel`, a member of the combo kernel `combined`.

    Raises:
        EmitError: the body holds something Triton lacks.
    """
    body = replace(combined.body, numerics=kernel.numerics)
    draft = MEMBER_PASSES.run(begin_draft(body), target)
    narrow = options.index_dtype != "auto" or all(provably_le(s, _INT32_MAX) for s in kernel.sizes)
    points = sum(_points(draft.kernel, member) for member in combined.members)
    few = options.max_configs if _is_worth_measuring(kernel, draft.kernel, points, target) else 1
    own = replace(options, max_configs=few, index_dtype=options.index_dtype if narrow else "i64")
    planned = propose(Setting(draft=draft, target=target, options=own, points=points))
    several = len(tuple(find_all(planned.mapping.directives, Tile))) > 1
    mapping = flatten_grid(planned.mapping, flat=several)
    return _fix_blocks(replace(planned, mapping=mapping, program=_OWN))


def has_open_blocks(mapping: Mapping) -> bool:
    """Tell if blocks are chosen when a kernel is launched, so that its text holds no number of programs."""
    return any(isinstance(tile.by, Open) for tile in find_all(mapping.directives, Tile))


def check_member(kernel: Kernel, mapping: Mapping) -> None:
    """Refuse to run the body of `kernel`, which is combined, as `mapping` says, if its launch can't.

    Raises:
        EmitError: by the name of the directive.
    """
    tiles = tuple(find_all(mapping.directives, Tile))
    if len(tiles) > 1 and mapping.find(FlatGrid) is None:
        raise refuse(kernel, "flat", "programs of all members are counted along one axis")
    if has_open_blocks(mapping) and (len(tiles) > 1 or kernel.sizes):
        raise refuse(kernel, "tile", "how many programs a member has stands in the text: choose the block")
    index = mapping.find(Index)
    narrow = all(provably_le(s, _INT32_MAX) for s in kernel.sizes)
    if index is not None and index.dtype == "i32" and not index.promised and not narrow:
        raise refuse(kernel, "index", "sizes of members may not fit 32 bits")


def plan_member_mapping(kernel: Kernel, combined: ComboKernel, mapping: Mapping, target: Target) -> Planned:
    """Return how the body of `kernel`, which is `combined`, runs as `mapping` says.

    Raises:
        EmitError: there is no text for a directive, which the error names.
    """
    body = replace(combined.body, numerics=kernel.numerics)
    setting = Setting(draft=begin_draft(body), target=target, options=TritonOptions())

    def check(choice: Mapping) -> None:
        verify_mapping(body, choice)
        check_member(kernel, choice)

    return plan_mapping(setting, mapping, check=check, program=_OWN)


def _define_part(kernel: Kernel, body: Kernel, shape: Shape, inside: tuple[Statement, ...]) -> Function:
    runtime = [*(a.name for a in body.args), *(s.name for s in body.sizes), _OWN]
    return define_function(f"{kernel.name}_part", runtime, inside, constants=_blocks(shape), inline=False)


def _call_part(
    part: Function, member: Member, first: Expression, shape: Shape, printer: IndexPrinter
) -> Expression:
    sizes = (_scalar(printer.text(size), shape.index_dtype) for size in member.sizes)
    own: Expression = Name(_AT) if first == Number(0) else Binary("-", Name(_AT), first)
    return call(part.name, *map(Name, member.args), *sizes, own, *map(Name, _blocks(shape)))


def _blocks(shape: Shape) -> list[str]:
    return list(shape.parameters)


def _is_worth_measuring(kernel: Kernel, body: Kernel, points: int, target: Target) -> bool:
    """Tell if several configurations are tried: for many points in lines of known sizes, with few updated
    bytes.
    """
    grids = target.machine.grids
    updated = as_int(add_all(a.span * a.dtype.itemsize for a in kernel.args if a.role == "inout"))
    lines = [r.kind for r in body.ranges] == ["parallel"] and not kernel.sizes
    return (
        lines
        and updated is not None
        and updated <= _COPIED
        and points >= grids.busy_points * target.multiprocessors
    )


def _fix_blocks(planned: Planned) -> Planned:
    """`planned` without other blocks to try, if the text holds how many programs each member has."""
    if len(planned.configs) > 1:
        return planned
    free = tuple((name, values) for name, values in planned.space.values if name not in BLOCKS.values())
    return change_candidates(planned, planned.configs, SearchSpace(values=free, limits=planned.space.limits))


def _points(body: Kernel, member: Member) -> int:
    values = dict(zip(body.sizes, member.sizes, strict=True))
    count = 1
    for entry in body.ranges:
        if entry.symbol.extent is not None and entry.kind == "parallel":
            known = as_int(substitute(entry.symbol.extent, values))
            count *= UNKNOWN_EXTENT if known is None else known
    return count


def _count_programs(planned: Planned, member: Member) -> Expr:
    """Return the number of programs of `member`, in terms of the names of open blocks."""
    shape, single = planned.shape, not has_open_blocks(planned.mapping)
    blocks = {symbol(name, lo=1): as_expr(value) for name, value in planned.configs[0].meta if single}
    values = dict(zip(planned.kernel.sizes, member.sizes, strict=True))
    return substitute(multiply_all(shape.programs(tile) for tile in shape.parallel), {**blocks, **values})


def _first_programs(programs: list[Expr], printer: IndexPrinter, lines: list[Statement]) -> list[Expression]:
    """Return the first program of each member; what is not known is computed by `lines`."""
    found: list[Expression] = []
    known, before = 0, None
    for number, count in enumerate(programs):
        found.append(Number(known) if before is None else before)
        exact = as_int(count)
        if exact is not None and before is None:
            known += exact
        elif number + 1 < len(programs):
            name = f"{_FIRST}{number + 1}"
            # as wide as the number of a program
            first = _scalar(Binary("+", found[-1], printer.text(count)), DType.I32)
            lines.append(Assign((name,), first))
            before = Name(name)
    return found


def _first_programs_by_block(
    shape: Shape, body: Kernel, members: Sequence[Member], lines: list[Statement]
) -> list[Expression]:
    """Do as `_first_programs`, for members of known sizes in open blocks: `lines` compute constants of a
    launch.
    """
    (tile,) = shape.parallel
    found: list[Expression] = [Number(0)]
    for number, member in enumerate(members[:-1]):
        numel = as_int(substitute(tile.numel, dict(zip(body.sizes, member.sizes, strict=True))))
        assert numel is not None
        count = tl("cdiv", Number(numel), Name(tile.block))
        name = f"{_FIRST}{number + 1}"
        lines.append(Assign((name,), count if number == 0 else Binary("+", found[-1], count)))
        found.append(Name(name))
    return found


def _scalar(value: Expression, dtype: DType) -> Expression:
    """`value` as a `dtype`, and never as a constant, for each of which the function would be
    compiled anew.
    """
    return tl("full", List(()), value, get_triton_type(dtype))


def _branch_to_member(calls: Sequence[_Call]) -> list[Statement]:
    if len(calls) == 1:
        return [calls[0].statement]
    half = len(calls) // 2
    condition = Binary("<", Name(_AT), calls[half].first)
    return [If(condition, tuple(_branch_to_member(calls[:half])), tuple(_branch_to_member(calls[half:])))]
