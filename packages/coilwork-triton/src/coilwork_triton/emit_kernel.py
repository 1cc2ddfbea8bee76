"""Write the parts of a kernel's text: its function's statements, and how to launch it."""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import Version
from coilwork_ir.syntax.python import Function, Statement
from coilwork_triton.contraction_plan import PlannedProduct
from coilwork_triton.dispatch import dispatch
from coilwork_triton.facts.kernel_analysis import find_levels, roots_of
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.mapping import open_versions
from coilwork_triton.planning import Plan
from coilwork_triton.proposals.refinements import Planned
from coilwork_triton.shape_versions import PlannedVersions
from coilwork_triton.statements.body import emit_body
from coilwork_triton.statements.contraction import emit_contraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Statements, and how to launch them.

    Attributes:
        body: of the entry function.
        functions: of the kernel's own that the body calls.
        grid: extents over sizes and block names.
        configs: candidates, best guess first.
        versions: the sizes that they are for, and what a search may choose.
        index_dtype: type of sizes.
        scalar_access: no access is to be wide.
    """

    body: tuple[Statement, ...]
    grid: tuple[Expr, ...]
    configs: tuple[Config, ...]
    versions: tuple[Version, ...]
    index_dtype: DType
    scalar_access: bool
    functions: tuple[Function, ...] = ()


def write(kernel: Kernel, plan: Plan, library: set[str]) -> Written:
    """`kernel`, which is one computation, run by `plan`. Device functions that it uses are added to
    `library`.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    match plan:
        case PlannedVersions():
            return _write_versions(plan, library)
        case PlannedProduct():
            return _write_product(plan, library)
        case Planned():
            shape = plan.shape
            return Written(
                body=statements(plan.kernel, shape, library),
                grid=shape.grid,
                configs=plan.configs,
                versions=open_versions(plan),
                index_dtype=shape.index_dtype,
                scalar_access=shape.scalar_access,
            )


def _write_versions(planned: PlannedVersions, library: set[str]) -> Written:
    """A kernel for likely sizes and for others."""
    bodies = [statements(version.kernel, version.shape, library) for version in planned.versions]
    functions, body = dispatch(planned, bodies)
    return Written(
        body=body,
        grid=planned.grid,
        configs=planned.configs,
        versions=open_versions(planned),
        index_dtype=planned.general_shape.index_dtype,
        scalar_access=planned.shape.scalar_access,
        functions=functions,
    )


def _write_product(planned: PlannedProduct, library: set[str]) -> Written:
    kernel, shape = planned.kernel, planned.shape
    ranges = frozenset(r.symbol for r in kernel.ranges)
    levels = find_levels(roots_of(kernel), ranges)
    return Written(
        body=emit_contraction(kernel, shape, levels, library),
        grid=shape.grid,
        configs=planned.configs,
        versions=open_versions(planned),
        index_dtype=shape.index_dtype,
        scalar_access=False,
    )


def statements(kernel: Kernel, shape: Shape, library: set[str]) -> tuple[Statement, ...]:
    """The statements of `kernel` in `shape`."""
    ranges = frozenset(r.symbol for r in kernel.ranges)
    if shape.chosen is None:
        levels = find_levels(roots_of(kernel), ranges)
    else:
        chosen = shape.chosen.index
        levels = find_levels(roots_of(kernel), ranges | {chosen}, chosen=chosen)
    return emit_body(kernel, shape, levels, library)
