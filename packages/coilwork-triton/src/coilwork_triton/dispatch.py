"""The text of a kernel in several forms: a function for each, and the kernel that calls one of them. See `coilwork_triton.open_sizes`."""

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
from coilwork_triton.open_sizes import Forms
from coilwork_triton.text.language import define_function, tl, tl_name


def dispatch(
    forms: Forms, bodies: Iterable[tuple[Statement, ...]]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """The functions of the forms, whose statements are `bodies`, and the body of a kernel that calls one of them."""
    kernel = forms.kernel
    tensors = [arg.name for arg in kernel.args]
    functions: list[Function] = []
    calls: list[Statement] = []
    for form, body in zip(forms.forms, bodies, strict=True):
        name = f"{kernel.name}_{form.name}"
        functions.append(_function(name, form.doc, tensors, form.kernel, forms, body))
        shorter = form.shorter and forms.general_shape.index_dtype is DType.I64
        sizes = [
            _part(Name(size.name), unit, shorter=shorter)
            for size, unit in zip(kernel.sizes, form.units, strict=True)
        ]
        calls.append(Do(call(name, *map(Name, tensors), *sizes, *map(Name, forms.blocks))))
    *particular, otherwise = calls
    for number, one in enumerate(reversed(particular), 1):
        otherwise = If(Binary("==", Name(VERSION), Number(number)), (one,), (otherwise,))
    return tuple(functions), (otherwise,)


def _function(
    name: str, doc: str, tensors: Iterable[str], kernel: Kernel, forms: Forms, body: tuple[Statement, ...]
) -> Function:
    run_time = [*tensors, *(size.name for size in kernel.sizes)]
    return define_function(name, run_time, body, constants=forms.blocks, doc=doc)


def _part(size: Expression, unit: int, *, shorter: bool) -> Expression:
    part = size if unit == 1 else Binary("//", size, Number(unit))
    return tl("cast", part, tl_name("int32")) if shorter else part
