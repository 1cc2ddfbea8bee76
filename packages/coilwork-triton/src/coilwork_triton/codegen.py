"""The entry point: a kernel of the kernel IR in, Triton source out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, add_all, provably_divisible
from coilwork_ir.kernel_source import KernelSource, Role, SourceArg
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.attention import find_core
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.kernels.verify_template_kernels import check_core_taken
from coilwork_ir.mapping import Mapped, Versions, format_mapped, verify_mapping
from coilwork_ir.mapping import Mapping as Directives
from coilwork_ir.scalar import find_contraction
from coilwork_ir.syntax.python import Function, Verbatim
from coilwork_ir.target import Capabilities, Target
from coilwork_triton.attention_plan import plan_attention_mapping
from coilwork_triton.capabilities import get_capabilities
from coilwork_triton.combo_kernel import plan_member, plan_member_mapping, write_combo_kernel
from coilwork_triton.contraction_plan import plan_product_mapping
from coilwork_triton.emit_kernel import EmittedKernel, emit_kernel
from coilwork_triton.facts.kernel_analysis import list_roots
from coilwork_triton.kernel_passes.table import LEGALIZATION, begin_draft
from coilwork_triton.options import TritonOptions, parse_options
from coilwork_triton.planning import Plan, map_plan, plan_computation
from coilwork_triton.proposals.mapping_proposal import Planned, plan_mapping
from coilwork_triton.proposals.proposal import Setting
from coilwork_triton.statements.combine_functions import define_combine_functions
from coilwork_triton.text.device_library import collect_functions
from coilwork_triton.text.language import define_function, get_triton_type, print_kernels
from coilwork_triton.user_mappings import apply_member_mapping, apply_user_mapping


class TritonCodegen:
    """Writes Triton for NVIDIA and AMD GPUs. Stateless; see `coilwork_ir.backend.Codegen`."""

    @property
    def name(self) -> str:
        """Registry name."""
        return "triton"

    def supports(self, target: Target) -> bool:
        """True for GPUs: kernels are grids of blocks."""
        return target.is_gpu

    def capabilities(self, target: Target) -> Capabilities:
        """Return what its kernels can do on `target`, and how they go through rows."""
        return get_capabilities(target)

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        """Return the Triton source of `kernel` for `target`; `options` are the fields of `TritonOptions` by
        name.

        Raises:
            EmitError: `target` is no GPU, an option is unknown, or the kernel holds something Triton lacks.
        """
        if not self.supports(target):
            raise EmitError("target", f"target {target.name} is not a GPU", remedy="use the C++ generator")
        check_core_taken(kernel, self.capabilities(target), self.name)
        settings = parse_options(options)
        kernel = LEGALIZATION.run(kernel, target)
        for arg in kernel.args:
            get_triton_type(arg.dtype)
        return _write(kernel, _plan(kernel, target, settings), target)

    def emit_mapping(self, kernel: Kernel, mapping: Directives, target: Target) -> KernelSource:
        """Return the Triton source of `kernel`, as passes leave it, run as `mapping` says, whoever chose
        that: in the one way that it says, or, if it is open, in one of these.

        Raises:
            VerifyError: a directive is not legal.
            EmitError: there is no text for a directive, or the kernel holds something Triton lacks; the code
                names the directive.
        """
        check_core_taken(kernel, self.capabilities(target), self.name)
        for arg in kernel.args:
            get_triton_type(arg.dtype)
        check, options = partial(verify_mapping, kernel), TritonOptions()
        plan: Plan
        if kernel.combined is not None:
            plan = plan_member_mapping(kernel, kernel.combined, mapping, target)
        elif find_core(kernel) is not None:
            limit = options.max_configs
            plan = plan_attention_mapping(kernel, mapping, target, check=check, max_configs=limit)
        elif find_contraction(list_roots(kernel)) is not None:
            plan = plan_product_mapping(kernel, mapping, target, check=check, max_configs=options.max_configs)
        else:
            setting = Setting(draft=begin_draft(kernel), target=target, options=options)
            plan = plan_mapping(setting, mapping, check=check)
        return _write(kernel, plan, target)

    def describe(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> str:
        """Return how `kernel` runs as `emit` writes it, for people to read: its mappings, and the kernel if
        passes rewrite it.

        Raises:
            EmitError: as `emit`.
        """
        check_core_taken(kernel, self.capabilities(target), self.name)
        return format_mapped(kernel, [find_mapping(kernel, target, parse_options(options))])


def find_mapping(kernel: Kernel, target: Target, options: TritonOptions) -> Mapped:
    """Return first-choice mappings of `kernel`, one for each kind of sizes, and the kernel behind all passes.

    Raises:
        EmitError: the kernel holds something Triton lacks.
    """
    kernel = LEGALIZATION.run(kernel, target)
    return map_plan(kernel, _plan(kernel, target, options), target)


def _plan(kernel: Kernel, target: Target, options: TritonOptions) -> Plan:
    """Plan `kernel`, which is legalized, by the mapping that `options` give it, or else by a proposal."""
    if kernel.combined is not None:
        member = plan_member(kernel, kernel.combined, target, options)
        return apply_member_mapping(kernel, member, target, options)
    return apply_user_mapping(kernel, plan_computation(kernel, target, options), target, options)


def _write(kernel: Kernel, plan: Plan, target: Target) -> KernelSource:
    library: set[str] = set()
    if kernel.combined is None:
        written = emit_kernel(kernel, plan, library)
    else:
        assert isinstance(plan, Planned)
        written = write_combo_kernel(kernel, kernel.combined, plan, library)
    return _source(kernel, written, target, library)


def _source(kernel: Kernel, written: EmittedKernel, target: Target, library: set[str]) -> KernelSource:
    """Return the emitted `kernel` as one text, with the functions of `library` that it calls."""
    names = [a.name for a in kernel.args] + [s.name for s in kernel.sizes]
    blocks = [name for name, _ in written.configs[0].meta]
    gluon = written.gluon
    function = define_function(kernel.name, names, written.body, constants=blocks, gluon=gluon)
    computed = kernel if kernel.combined is None else kernel.combined.body
    own = define_combine_functions(list_roots(computed), kernel.numerics, library)
    functions: list[Function | Verbatim] = [
        *collect_functions(library, gluon=gluon),
        *own,
        *written.functions,
        function,
    ]
    return KernelSource(
        name=kernel.name,
        language="triton",
        suffix="py",
        text=print_kernels(_header(kernel), format_kernel(kernel, origins=False), functions, gluon=gluon),
        entry=kernel.name,
        args=_arguments(kernel, written),
        grid=written.grid,
        configs=written.configs,
        versions=Versions(kernel=kernel.name, target=target.kind, versions=written.versions),
        checks=tuple(check.text for check in kernel.checks),
        target=target.name,
        read_bytes=_traffic(kernel, ("in", "inout")),
        write_bytes=_traffic(kernel, ("out", "inout")),
    )


def _header(kernel: Kernel) -> str:
    lines = [f"{kernel.name}: one kernel for"]
    for origin in kernel.origins:
        where = f"{origin.file}:{origin.line}" if origin.file else "unknown line"
        code = f"   {origin.code}" if origin.code else ""
        lines.append(f"  {origin.op:<32} {where}{code}".rstrip())
    if not kernel.origins:
        lines[0] = f"{kernel.name}."
    return "\n".join(lines)


def _arguments(kernel: Kernel, written: EmittedKernel) -> tuple[SourceArg, ...]:
    tensors = tuple(
        # what is not known to be aligned is not accessed wide
        SourceArg(name=a.name, role=a.role, dtype=a.dtype, aligned=a.aligned and a.name not in written.narrow)
        for a in kernel.args
    )
    sizes = tuple(
        SourceArg(name=s.name, role="size", dtype=written.index_dtype, aligned=provably_divisible(s, 16))
        for s in kernel.sizes
    )
    return tensors + sizes


def _traffic(kernel: Kernel, roles: tuple[Role, ...]) -> Expr:
    return add_all(a.span * a.dtype.itemsize for a in kernel.args if a.role in roles)
