"""What a kernel's text is made from: its function's statements, and how to launch it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Contraction, Reduce, contraction_in
from coilwork_ir.target import Target
from coilwork_triton.contraction.body import emit_contraction
from coilwork_triton.contraction.shape import shape_of
from coilwork_triton.dispatch import dispatch
from coilwork_triton.facts.levels import find_levels
from coilwork_triton.iteration.in_two_rows import in_two_rows
from coilwork_triton.iteration.shape import Shape, plan
from coilwork_triton.iteration.vectorized import in_whole_vectors, wants_a_loop
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, Draft
from coilwork_triton.launch.options import TritonOptions
from coilwork_triton.open_sizes import forms_of
from coilwork_triton.statements.actions import roots_of
from coilwork_triton.statements.body import emit_body
from coilwork_triton.text.tree import Function, Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Statements, and how to launch them.

    Attributes:
        body: of the entry function.
        functions: of the kernel's own that the body calls.
        grid: extents over sizes and block names.
        configs: candidates, best guess first.
        space: what else a search may try.
        index_dtype: type of sizes.
        neighbourly: no access is to be wide.
        departure: which of the values of `LIKELY`, counted from the highest on, is the first for a call's sizes; None where it has none.
    """

    body: tuple[Statement, ...]
    grid: tuple[Expr, ...]
    configs: tuple[Config, ...]
    space: SearchSpace
    index_dtype: DType
    neighbourly: bool
    departure: Expr | None = None
    functions: tuple[Function, ...] = ()


def write(kernel: Kernel, target: Target, options: TritonOptions, library: set[str]) -> Written:
    """`kernel`, which is one computation. Device functions that it uses are added to `library`.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    hinted = kernel.hints.reduction == "contracted"
    parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    contraction = contraction_in(roots_of(kernel), parallel) if hinted else None
    if contraction is not None:
        return _contracted(kernel, *contraction, target, options, library)
    draft = KERNEL_PASSES.run(Draft(kernel=kernel), target)
    kernel = draft.kernel
    if draft.topk is None and kernel.sizes:
        found = _in_forms(kernel, target, options, library, step=draft.coarsening, bins=draft.bins)
        if found is not None:
            return found
    roots = roots_of(kernel)
    shape = plan(kernel, roots, target, options, chosen=draft.topk, step=draft.coarsening, bins=draft.bins)
    if not options.batch_invariant:
        # which elements are added first depends on where a row begins
        if wants_a_loop(kernel, shape, roots):
            kernel = replace(kernel, hints=replace(kernel.hints, reduction="looped"))
            shape = plan(kernel, roots, target, options, chosen=draft.topk, step=draft.coarsening)
        shape = in_whole_vectors(kernel, shape, roots)
    shape = in_two_rows(kernel, shape, roots)
    return Written(
        body=statements(kernel, shape, library),
        grid=shape.grid,
        configs=shape.configs,
        space=shape.space,
        index_dtype=shape.index_dtype,
        neighbourly=shape.neighbourly,
    )


def _in_forms(
    kernel: Kernel, target: Target, options: TritonOptions, library: set[str], *, step: int, bins: int
) -> Written | None:
    """`kernel` for likely sizes and for others; None if one form will do."""
    found = forms_of(kernel, target, options, step=step, bins=bins)
    if found is None:
        return None
    bodies = [statements(form.kernel, form.shape, library) for form in found.forms]
    functions, body = dispatch(found, bodies)
    return Written(
        body=body,
        grid=found.grid,
        configs=found.configs,
        space=found.shape.space,
        departure=found.departure,
        index_dtype=found.general_shape.index_dtype,
        neighbourly=found.shape.neighbourly,
        functions=functions,
    )


def _contracted(
    kernel: Kernel,
    node: Reduce,
    parts: Contraction,
    target: Target,
    options: TritonOptions,
    library: set[str],
) -> Written:
    shape = shape_of(kernel, node, parts, target, options)
    ranges = frozenset(r.symbol for r in kernel.ranges)
    levels = find_levels((*roots_of(kernel), parts.left, parts.right), ranges)
    return Written(
        body=emit_contraction(kernel, shape, levels, library),
        grid=shape.grid,
        configs=shape.configs,
        space=shape.space,
        index_dtype=shape.index_dtype,
        neighbourly=False,
    )


def write_part(
    kernel: Kernel, target: Target, options: TritonOptions, library: set[str], *, points: int, program: str
) -> tuple[Shape, tuple[Statement, ...]]:
    """`kernel` as a part of a launch of `points` points in all, in which the variable `program` counts its programs.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    shape = plan(kernel, roots_of(kernel), target, options, points=points)
    shape = replace(shape, program=program, flat_grid=len(shape.parallel) > 1)
    return shape, statements(kernel, shape, library)


def statements(kernel: Kernel, shape: Shape, library: set[str]) -> tuple[Statement, ...]:
    """The statements of `kernel` in `shape`."""
    ranges = frozenset(r.symbol for r in kernel.ranges)
    if shape.chosen is None:
        levels = find_levels(roots_of(kernel), ranges)
    else:
        chosen = shape.chosen.index
        levels = find_levels(roots_of(kernel), ranges | {chosen}, chosen=chosen)
    return emit_body(kernel, shape, levels, library)
