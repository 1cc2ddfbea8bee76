"""Emit one kernel from its plan: the statements of its function, and how to launch it.

A kernel in several versions (`coilwork_triton.shape_versions`) has a function per version, and a body that
calls one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, find_stride
from coilwork_ir.kernel_source import VERSION, Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import Version
from coilwork_ir.scalar import Load, iterate_postorder
from coilwork_ir.syntax.python import (
    Binary,
    Do,
    Expression,
    Function,
    If,
    Name,
    Number,
    Statement,
    call,
)
from coilwork_triton.attention_plan import PlannedAttention
from coilwork_triton.contraction_plan import PlannedProduct
from coilwork_triton.facts.kernel_analysis import find_levels, list_roots
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.planning import Plan, open_versions
from coilwork_triton.proposals.mapping_proposal import Planned
from coilwork_triton.shape_versions import PlannedVersions
from coilwork_triton.statements.attention import emit_attention, grid_of_attention
from coilwork_triton.statements.body import emit_body
from coilwork_triton.statements.contraction import emit_contraction
from coilwork_triton.statements.specialised_contraction import emit_specialised_contraction
from coilwork_triton.text.language import define_function, tl, tl_name

# Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedKernel:
    """Statements, and how to launch them.

    Attributes:
        body: of the entry function.
        functions: of the kernel's own that the body calls.
        gluon: both are in Triton's dialect Gluon.
        grid: extents over sizes and block names.
        configs: candidates, best guess first.
        versions: the sizes that they are for, and what a search may choose.
        index_dtype: type of sizes.
        narrow: arguments none of whose accesses is to be wide.
    """

    body: tuple[Statement, ...]
    grid: tuple[Expr, ...]
    configs: tuple[Config, ...]
    versions: tuple[Version, ...]
    index_dtype: DType
    functions: tuple[Function, ...] = ()
    narrow: frozenset[str] = frozenset()
    gluon: bool = False


def emit_kernel(kernel: Kernel, plan: Plan, library: set[str]) -> EmittedKernel:
    """`kernel`, which is one computation, run by `plan`. Device functions that it uses are added to
    `library`.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    match plan:
        case PlannedVersions():
            return _emit_versions(plan, library)
        case PlannedAttention():
            functions, body = emit_attention(plan, library)
            return EmittedKernel(
                body=body,
                functions=functions,
                gluon=plan.consumers > 0,
                grid=grid_of_attention(plan),
                configs=plan.configs,
                versions=open_versions(plan),
                index_dtype=plan.index_dtype,
            )
        case PlannedProduct():
            return _emit_product(plan, library)
        case Planned():
            shape = plan.shape
            return EmittedKernel(
                body=emit_statements(plan.kernel, shape, library),
                grid=shape.grid,
                configs=plan.configs,
                versions=open_versions(plan),
                index_dtype=shape.index_dtype,
                narrow=find_narrow_arguments(plan.kernel, shape),
            )


def _emit_versions(planned: PlannedVersions, library: set[str]) -> EmittedKernel:
    """Return a kernel for likely sizes and for others."""
    bodies = [emit_statements(version.kernel, version.shape, library) for version in planned.versions]
    functions, body = dispatch_versions(planned, bodies)
    return EmittedKernel(
        body=body,
        grid=planned.grid,
        configs=planned.configs,
        versions=open_versions(planned),
        index_dtype=planned.general_shape.index_dtype,
        narrow=find_narrow_arguments(planned.versions[0].kernel, planned.shape),
        functions=functions,
    )


def find_narrow_arguments(kernel: Kernel, shape: Shape) -> frozenset[str]:
    """Return the arguments of `kernel` whose accesses are not to be wide.

    Where threads have no neighbours along the innermost range, those are all but what has its neighbours
    along the inner range of another tile of points.
    """
    if not shape.scalar_access:
        return frozenset()
    names = frozenset(a.name for a in kernel.args)
    if shape.walk != "pointwise" or len(shape.tiles) == 1:
        return names
    *others, last = (tile.inner for tile in shape.tiles)
    strides: dict[str, set[Expr]] = {name: set() for name in names}
    loads = [v for v in iterate_postorder(list_roots(kernel)) if isinstance(v, Load)]
    accesses = [(load.buffer, load.index[0], load.indirect) for load in loads]
    for buffer, index, indirect in (*accesses, *((s.buffer, s.index, s.indirect) for s in kernel.stores)):
        found = {along for along in (*others, last) if find_stride(index, along) is as_expr(1)}
        strides[buffer] |= {last} if indirect else found
    return frozenset(name for name, along in strides.items() if last in along or not along)


def _emit_product(planned: PlannedProduct, library: set[str]) -> EmittedKernel:
    kernel, shape = planned.kernel, planned.shape
    ranges = frozenset(r.symbol for r in kernel.ranges)
    levels = find_levels(list_roots(kernel), ranges)
    functions: tuple[Function, ...] = ()
    if shape.roles is None:
        body = emit_contraction(kernel, shape, levels, library)
    else:
        functions, body = emit_specialised_contraction(kernel, shape, levels, library)
    return EmittedKernel(
        body=body,
        functions=functions,
        gluon=shape.roles is not None,
        grid=shape.grid,
        configs=planned.configs,
        versions=open_versions(planned),
        index_dtype=shape.index_dtype,
    )


def emit_statements(kernel: Kernel, shape: Shape, library: set[str]) -> tuple[Statement, ...]:
    """Return the statements of `kernel` in `shape`."""
    ranges = frozenset(r.symbol for r in kernel.ranges)
    if shape.topk is None:
        levels = find_levels(list_roots(kernel), ranges)
    else:
        topk = shape.topk.index
        levels = find_levels(list_roots(kernel), ranges | {topk}, topk=topk)
    return emit_body(kernel, shape, levels, library)


# Versions


def dispatch_versions(
    planned: PlannedVersions, bodies: Iterable[tuple[Statement, ...]]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """Return the functions of the versions, whose statements are `bodies`, and the body of a kernel that
    calls one of them.
    """
    kernel = planned.kernel
    tensors = [arg.name for arg in kernel.args]
    functions: list[Function] = []
    calls: list[Statement] = []
    for version, body in zip(planned.versions, bodies, strict=True):
        name = f"{kernel.name}_{version.name}"
        functions.append(_function(name, version.doc, tensors, version.kernel, planned, body))
        shorter = version.shorter and planned.general_shape.index_dtype is DType.I64
        sizes = [
            _pass_size(Name(size.name), unit, shorter=shorter)
            for size, unit in zip(kernel.sizes, version.units, strict=True)
        ]
        calls.append(Do(call(name, *map(Name, tensors), *sizes, *map(Name, planned.blocks))))
    *particular, otherwise = calls
    for number, one in enumerate(reversed(particular), 1):
        otherwise = If(Binary("==", Name(VERSION), Number(number)), (one,), (otherwise,))
    return tuple(functions), (otherwise,)


def _function(
    name: str,
    doc: str,
    tensors: Iterable[str],
    kernel: Kernel,
    planned: PlannedVersions,
    body: tuple[Statement, ...],
) -> Function:
    run_time = [*tensors, *(size.name for size in kernel.sizes)]
    return define_function(name, run_time, body, constants=planned.blocks, doc=doc)


def _pass_size(size: Expression, unit: int, *, shorter: bool) -> Expression:
    part = size if unit == 1 else Binary("//", size, Number(unit))
    return tl("cast", part, tl_name("int32")) if shorter else part
