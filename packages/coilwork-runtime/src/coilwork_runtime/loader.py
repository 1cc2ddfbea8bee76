"""From the text of a generated module to its callable."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from coilwork_runtime.builder import Builder
from coilwork_runtime.errors import ModuleTextError

Call = Callable[[list[Any]], Sequence[Any]]


def load_python(text: str, *, builder: Builder, constants: Mapping[str, torch.Tensor], name: str) -> Call:
    """Execute a generated module, build its kernels, and return its `call`.

    The text is registered with `linecache`, so that tracebacks through generated code show its lines. `name` appears in
    the pseudo file name there.

    Raises:
        ModuleTextError: the text is not a generated module.
        KernelBuildError: a kernel does not build.
    """
    file = f"<coilwork {name}>"
    scope: dict[str, Any] = {"__name__": f"coilwork_generated.{name}", "__file__": file}
    try:
        code = compile(text, file, "exec")
    except SyntaxError as error:
        raise ModuleTextError(
            "module-syntax", f"generated module {name} is damaged", reason=str(error)
        ) from error
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(code, scope)
    missing = [needed for needed in ("KERNELS", "make_call") if needed not in scope]
    if missing:
        raise ModuleTextError(
            "module-contents", f"generated module {name} does not define {', '.join(missing)}"
        )
    call: Call = scope["make_call"](builder.build(scope["KERNELS"]), constants)
    return call
