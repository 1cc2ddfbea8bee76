"""The text of a kernel in several versions: a function for each, and the kernel that calls one of them.

See `coilwork_triton.shape_versions`.
"""

from __future__ import annotations

from collections.abc import Iterable

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import VERSION
from coilwork_ir.kernels import Kernel
from coilwork_ir.syntax.python import (
    Binary,
    Do,
    Expression,
    Function,
    If,
    Name,
    Number,
    Statement,
    call,
)
from coilwork_triton.shape_versions import PlannedVersions
from coilwork_triton.text.language import define_function, tl, tl_name


def dispatch(
    planned: PlannedVersions, bodies: Iterable[tuple[Statement, ...]]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """The functions of the versions, whose statements are `bodies`, and the body of a kernel that calls one
    of them.
    """
    kernel = planned.kernel
    tensors = [arg.name for arg in kernel.args]
    functions: list[Function] = []
    calls: list[Statement] = []
    for version, body in zip(planned.versions, bodies, strict=True):
        name = f"{kernel.name}_{version.name}"
        functions.append(_function(name, version.doc, tensors, version.kernel, planned, body))
        shorter = version.shorter and planned.general_shape.index_dtype is DType.I64
        sizes = [
            _part(Name(size.name), unit, shorter=shorter)
            for size, unit in zip(kernel.sizes, version.units, strict=True)
        ]
        calls.append(Do(call(name, *map(Name, tensors), *sizes, *map(Name, planned.blocks))))
    *particular, otherwise = calls
    for number, one in enumerate(reversed(particular), 1):
        otherwise = If(Binary("==", Name(VERSION), Number(number)), (one,), (otherwise,))
    return tuple(functions), (otherwise,)


def _function(
    name: str,
    doc: str,
    tensors: Iterable[str],
    kernel: Kernel,
    planned: PlannedVersions,
    body: tuple[Statement, ...],
) -> Function:
    run_time = [*tensors, *(size.name for size in kernel.sizes)]
    return define_function(name, run_time, body, constants=planned.blocks, doc=doc)


def _part(size: Expression, unit: int, *, shorter: bool) -> Expression:
    part = size if unit == 1 else Binary("//", size, Number(unit))
    return tl("cast", part, tl_name("int32")) if shorter else part
