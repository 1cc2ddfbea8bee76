"""From bytes to kernels, and from the text of a generated module to its callable."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coilwork_runtime.builder import Builder
from coilwork_runtime.errors import ModuleTextError, ProgramBytesError
from coilwork_runtime.launch_forms import Launcher
from coilwork_runtime.manifest.encoding import decode_kernels
from coilwork_runtime.manifest.kernel_manifest import KernelSpec

Call = Callable[[list[Any]], Sequence[Any]]
MakeCall = Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedModule:
    """What a generated module defines: its kernels, and what makes its `call` of launchers and constants."""

    specs: tuple[KernelSpec, ...]
    make_call: MakeCall


def load_kernels(data: bytes) -> tuple[KernelSpec, ...]:
    """The kernels in `data`, as `coilwork_ir.kernel_source` writes them; nothing is built.

    Raises:
        ProgramBytesError: the bytes are damaged, or of another schema.
    """
    try:
        return decode_kernels(data)
    except ValueError as error:
        raise ProgramBytesError(
            "damaged-kernels",
            "the kernels of a program cannot be read",
            reason=str(error),
            remedy="clear the cache that they came from, or compile again",
        ) from error


def load_python(text: str, *, builder: Builder, constants: Mapping[str, torch.Tensor], name: str) -> Call:
    """Execute a generated module, build its kernels, and return its `call`.

    The text is registered with `linecache`, so that tracebacks through generated code show its lines. `name`
    appears in the pseudo file name there.

    Raises:
        ModuleTextError: the text is not a generated module.
        KernelBuildError: a kernel does not build.
    """
    module = execute_module(text, name)
    return module.make_call(builder.build(module.specs), constants)


def execute_module(text: str, name: str) -> GeneratedModule:
    """Execute the text of a generated module; nothing is built.

    Raises:
        ModuleTextError: the text is not a generated module.
    """
    file = f"<coilwork {name}>"
    scope: dict[str, Any] = {"__name__": f"coilwork_generated.{name}", "__file__": file}
    try:
        code = compile(text, file, "exec")
    except (SyntaxError, ValueError) as error:
        raise ModuleTextError(
            "module-syntax",
            f"generated module {name} is damaged",
            reason=str(error),
            remedy="clear the cache that it came from, or generate it again",
        ) from error
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(code, scope)
    specs, make_call = scope.get("KERNELS"), scope.get("make_call")
    if not isinstance(specs, tuple) or not all(isinstance(spec, KernelSpec) for spec in specs):
        raise _incomplete(name, "KERNELS, a tuple of kernels")
    if not callable(make_call):
        raise _incomplete(name, "the function make_call")
    return GeneratedModule(
        specs=specs, make_call=lambda launchers, given: make_call(_calls(launchers), given)
    )


def _calls(launchers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the module calls by name: the launches themselves, which spares it a call in between."""
    return {name: one.call if isinstance(one, Launcher) else one for name, one in launchers.items()}


def _incomplete(name: str, what: str) -> ModuleTextError:
    return ModuleTextError(
        "module-contents",
        f"generated module {name} does not define {what}",
        remedy="clear the cache that it came from, or generate it again",
    )
