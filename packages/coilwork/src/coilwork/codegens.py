"""Which code generator serves a target: ours first, then those that other packages register."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from coilwork.compile_options import CompileOptions
from coilwork.errors import CompileError
from coilwork_ir.codegen import Codegen
from coilwork_ir.target import Target

ENTRY_POINT_GROUP = "coilwork.codegens"


def codegen_for(target: Target, options: CompileOptions) -> Codegen:
    """The generator for `target`.

    Raises:
        CompileError: none supports it.
    """
    own = _own(target)
    if own.supports(target):
        return own
    for point in plugged_codegens():
        plugin = point.load()()
        if isinstance(plugin, Codegen) and plugin.supports(target):
            return plugin
    raise CompileError(
        "no-codegen",
        f"no code generator supports target {target.name}",
        remedy=f"install a package that registers one under the entry point group {ENTRY_POINT_GROUP!r}",
    )


def _own(target: Target) -> Codegen:
    """The one of ours that `target` may need. The other one is not imported."""
    if target.kind == "cpu":
        from coilwork_cpp import CppCodegen

        return CppCodegen()
    from coilwork_triton import TritonCodegen

    return TritonCodegen()


def plugged_codegens() -> tuple[EntryPoint, ...]:
    """What other packages register, in the order of their names."""
    return tuple(sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)))
