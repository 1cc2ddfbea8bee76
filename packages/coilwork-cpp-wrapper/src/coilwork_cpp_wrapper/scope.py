"""What the emission of one program's instructions needs to know, and how it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from coilwork_cpp_wrapper.arithmetic import braces_code, index_code
from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.program.nodes import Program
from coilwork_ir.syntax.cpp import Call, Code
from coilwork_runtime.manifest.kernel_manifest import KernelManifest

PYTHON_REMEDY = 'options={"wrapper": "python"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Lookups for one program.

    Attributes:
        name: identifier of a buffer or pool.
        buffer: declaration of a buffer.
        symbol: identifier of a size symbol.
        kernel: what launching a kernel takes.
        entry: name under which a kernel's entry is linked.
        function: identifier of the function that a nested program becomes.
        outer_symbols: size symbols that a nested program uses and its surroundings bind.
        constants: names of the buffers that are constants.
        number: a number no other instruction has, for the names of temporaries.
    """

    name: Callable[[str], str]
    buffer: Callable[[str], Buffer]
    symbol: Callable[[Expr], str]
    kernel: Callable[[str], KernelManifest]
    entry: Callable[[str], str]
    function: Callable[[Program], str]
    outer_symbols: Callable[[Program], tuple[Expr, ...]]
    constants: frozenset[str]
    number: int

    def index(self, expr: Expr) -> Code:
        """An index expression."""
        return index_code(expr, self.symbol)

    def braces(self, values: Iterable[Expr]) -> Code:
        """Sizes or strides."""
        return braces_code(values, self.symbol)

    def layout(self, buffer: Buffer) -> tuple[Code, Code]:
        """Shape and strides of `buffer`."""
        return self.braces(buffer.shape), self.braces(buffer.strides)


def dtype_code(dtype: DType) -> Code:
    """The number that torch gives an element type.

    Raises:
        EmitError: `cpp-unsupported`, torch's C interface does not name it.
    """
    if dtype.category in ("quantized", "bits") or dtype is DType.F4E2M1X2:
        refuse(f"element type {dtype.torch_name}", UNKNOWN, "torch's C interface has no name for it")
    return Call(f"aoti_torch_dtype_{dtype.torch_name}")


def refuse(what: str, origins: tuple[Origin, ...], reason: str, *, node: str = "") -> NoReturn:
    """Raise the error for what the C interface of torch cannot call yet."""
    raise EmitError("cpp-unsupported", what, node=node, origins=origins, reason=reason, remedy=PYTHON_REMEDY)
