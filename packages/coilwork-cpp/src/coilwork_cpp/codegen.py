"""The code generator as other packages see it."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf

from coilwork_cpp.capabilities import capabilities_of
from coilwork_cpp.emission import describe_kernel, emit_kernel
from coilwork_cpp.options import options_from
from coilwork_ir.capabilities import Capabilities
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.cores.verify import check_core_taken
from coilwork_ir.target import Target


class CppCodegen:
    """C++ for CPUs; implements `coilwork_ir.codegen.Codegen`. It has no state: one object serves
    all threads.
    """

    @property
    def name(self) -> str:
        """`"cpp"`."""
        return "cpp"

    def supports(self, target: Target) -> bool:
        """True for CPUs."""
        return target.kind == "cpu"

    def capabilities(self, target: Target) -> Capabilities:
        """Return what its kernels can do on `target`, and how they go through rows."""
        return capabilities_of(target)

    def emit(self, kernel: Kernel, target: Target, options: MappingOf[str, object]) -> KernelSource:
        """Source text of `kernel` for `target`; `options` are the fields of `CppOptions`.

        Raises:
            EmitError: the kernel holds something that has no C++ form, or an option is wrong.
        """
        check_core_taken(kernel, self.capabilities(target), self.name)
        return emit_kernel(kernel, target, options_from(options))

    def describe(self, kernel: Kernel, target: Target, options: MappingOf[str, object]) -> str:
        """How `kernel` runs as `emit` writes it, for people to read: its mapping, or each piece of it and
        that piece's.

        Raises:
            EmitError: as `emit`.
        """
        check_core_taken(kernel, self.capabilities(target), self.name)
        return describe_kernel(kernel, target, options_from(options))
