"""The entry point: a kernel of the kernel IR in, Triton source out."""

from __future__ import annotations

from collections.abc import Mapping

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, provably_divisible, total
from coilwork_ir.kernel_source import KernelSource, Role, SourceArg
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.strict import with_strict_functions
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.target import Target
from coilwork_triton.actions import action_roots, actions_of
from coilwork_triton.body import emit_body
from coilwork_triton.device_library import with_dependencies
from coilwork_triton.levels import find_levels
from coilwork_triton.options import parse_options
from coilwork_triton.printer import format_module
from coilwork_triton.shape import Shape, plan
from coilwork_triton.tree import Function, Module, Parameter
from coilwork_triton.types import triton_type


class TritonCodegen:
    """Writes Triton for NVIDIA and AMD GPUs. Stateless; see `coilwork_ir.codegen.Codegen`."""

    @property
    def name(self) -> str:
        """Registry name."""
        return "triton"

    def supports(self, target: Target) -> bool:
        """True for GPUs that Triton compiles for."""
        return target.kind in ("cuda", "hip")

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        """The Triton source of `kernel` for `target`; `options` are the fields of `TritonOptions` by name.

        Raises:
            EmitError: `target` is no GPU, an option is unknown, or the kernel holds something Triton lacks.
        """
        if not self.supports(target):
            raise EmitError("target", f"target {target.name} is not a GPU", remedy="use the C++ generator")
        settings = parse_options(options)
        for arg in kernel.args:
            triton_type(arg.dtype)
        kernel = with_strict_functions(kernel)
        roots = tuple(root for what in actions_of(kernel) for root in action_roots(what))
        if not roots:
            raise EmitError("empty-kernel", f"kernel {kernel.name} stores nothing")
        levels = find_levels(roots, frozenset(r.symbol for r in kernel.ranges))
        shape = plan(kernel, roots, target, settings)
        library: set[str] = set()
        body = emit_body(kernel, shape, levels, library)
        names = [a.name for a in kernel.args] + [s.name for s in kernel.sizes]
        blocks = [name for name, _ in shape.configs[0].meta]
        function = Function(
            name=kernel.name,
            parameters=(*(Parameter(n) for n in names), *(Parameter(b, constexpr=True) for b in blocks)),
            body=body,
        )
        notes = tuple(format_kernel(kernel, origins=False).splitlines())
        module = Module(doc=_header(kernel), notes=notes, functions=(*with_dependencies(library), function))
        return KernelSource(
            name=kernel.name,
            language="triton",
            text=format_module(module),
            entry=kernel.name,
            args=_arguments(kernel, shape),
            grid=shape.grid,
            configs=shape.configs,
            checks=tuple(check.message for check in kernel.checks),
            target=target.name,
            read_bytes=_traffic(kernel, ("in", "inout")),
            write_bytes=_traffic(kernel, ("out", "inout")),
        )


def _header(kernel: Kernel) -> tuple[str, ...]:
    lines = [f"{kernel.name}: one kernel for"]
    for origin in kernel.origins:
        where = f"{origin.file}:{origin.line}" if origin.file else "unknown line"
        code = f"   {origin.code}" if origin.code else ""
        lines.append(f"  {origin.op:<32} {where}{code}".rstrip())
    if not kernel.origins:
        lines[0] = f"{kernel.name}."
    return tuple(lines)


def _arguments(kernel: Kernel, shape: Shape) -> tuple[SourceArg, ...]:
    tensors = tuple(
        # what is not known to be aligned is not accessed wide
        SourceArg(name=a.name, role=a.role, dtype=a.dtype, aligned=a.aligned and not shape.neighbourly)
        for a in kernel.args
    )
    sizes = tuple(
        SourceArg(name=s.name, role="size", dtype=shape.index_dtype, aligned=provably_divisible(s, 16))
        for s in kernel.sizes
    )
    return tensors + sizes


def _traffic(kernel: Kernel, roles: tuple[Role, ...]) -> Expr:
    return total(a.span * a.dtype.itemsize for a in kernel.args if a.role in roles)
