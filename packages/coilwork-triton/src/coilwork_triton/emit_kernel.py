"""Write the parts of a kernel's text: its function's statements, and how to launch it."""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import Mapping, Version
from coilwork_ir.scalar import find_contraction
from coilwork_ir.syntax.python import Function, Statement
from coilwork_ir.target import Target
from coilwork_triton.contraction.body import emit_contraction
from coilwork_triton.contraction.shape import ContractionShape
from coilwork_triton.dispatch import dispatch
from coilwork_triton.facts.kernel_analysis import roots_of
from coilwork_triton.facts.levels import find_levels
from coilwork_triton.given_mappings import take_given, take_product
from coilwork_triton.iteration.mapped_shape import shape_of
from coilwork_triton.iteration.parameters import config_of
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.launch.options import TritonOptions
from coilwork_triton.mapping import open_versions
from coilwork_triton.open_sizes import Forms
from coilwork_triton.planning import plan_computation
from coilwork_triton.statements.body import emit_body


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
        neighbourly: no access is to be wide.
    """

    body: tuple[Statement, ...]
    grid: tuple[Expr, ...]
    configs: tuple[Config, ...]
    versions: tuple[Version, ...]
    index_dtype: DType
    neighbourly: bool
    functions: tuple[Function, ...] = ()


def write(kernel: Kernel, target: Target, options: TritonOptions, library: set[str]) -> Written:
    """`kernel`, which is one computation. Device functions that it uses are added to `library`.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    plan = take_given(kernel, plan_computation(kernel, target, options), target, options)
    if isinstance(plan, Forms):
        return _in_forms(plan, library)
    if isinstance(plan, ContractionShape):
        return _contracted(kernel, plan, library)
    shape = plan.shape
    return Written(
        body=statements(plan.setting.kernel, shape, library),
        grid=shape.grid,
        configs=plan.configs,
        versions=open_versions(kernel, plan),
        index_dtype=shape.index_dtype,
        neighbourly=shape.neighbourly,
    )


def write_mapping(kernel: Kernel, mapping: Mapping, target: Target, library: set[str]) -> Written:
    """`kernel`, run as the closed `mapping` says. Device functions that it uses are added to `library`.

    Raises:
        EmitError: there is no text for a directive, or the kernel holds something Triton lacks.
    """
    if find_contraction(roots_of(kernel)) is not None:
        options = TritonOptions()
        plan = plan_computation(kernel, target, options)
        assert isinstance(plan, ContractionShape)
        return _contracted(kernel, take_product(kernel, plan, mapping, target, options), library)
    shape = shape_of(kernel, mapping, target)
    return Written(
        body=statements(kernel, shape, library),
        grid=shape.grid,
        configs=(config_of(kernel, mapping),),
        versions=(Version(guard=None, mapping=mapping),),
        index_dtype=shape.index_dtype,
        neighbourly=shape.neighbourly,
    )


def _in_forms(forms: Forms, library: set[str]) -> Written:
    """A kernel for likely sizes and for others."""
    bodies = [statements(form.kernel, form.shape, library) for form in forms.forms]
    functions, body = dispatch(forms, bodies)
    return Written(
        body=body,
        grid=forms.grid,
        configs=forms.configs,
        versions=open_versions(forms.kernel, forms),
        index_dtype=forms.general_shape.index_dtype,
        neighbourly=forms.shape.neighbourly,
        functions=functions,
    )


def _contracted(kernel: Kernel, shape: ContractionShape, library: set[str]) -> Written:
    ranges = frozenset(r.symbol for r in kernel.ranges)
    levels = find_levels(roots_of(kernel), ranges)
    return Written(
        body=emit_contraction(kernel, shape, levels, library),
        grid=shape.grid,
        configs=shape.configs,
        versions=open_versions(kernel, shape),
        index_dtype=shape.index_dtype,
        neighbourly=False,
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
