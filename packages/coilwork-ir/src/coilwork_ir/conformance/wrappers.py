"""Running what a wrapper makes of programs, and comparing with the programs' interpreter."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.backend import Codegen
from coilwork_ir.conformance.check import TOLERANCES, Result
from coilwork_ir.conformance.wrapper_cases import WRAPPER_CASES, Inputs, WrapperCase
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import CoilworkIRError, EmitError, InterpretError
from coilwork_ir.interpretation.memory import flat
from coilwork_ir.kernel_source import KernelSource, SourceArg
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import ExternCall, Program
from coilwork_ir.program.verify import verify_program
from coilwork_ir.program.walk import all_kernels, buffers, walk
from coilwork_ir.target import Target
from coilwork_ir.wrapper import Artifact, Launcher, WrapOptions, Wrapper

Build: TypeAlias = Callable[[Mapping[str, KernelSource]], Mapping[str, Launcher]]
"""Builds kernels, by name."""

# What a call ends with that the program refuses.
_REFUSALS: Final = (CoilworkIRError, RuntimeError, LookupError, ArithmeticError, TypeError, ValueError)


def interpret_sources(sources: Mapping[str, KernelSource]) -> Mapping[str, Launcher]:
    """Launchers of kernels whose texts are kernel IR, which the reference interpreter runs."""
    return {name: _make_interpreter(source.text) for name, source in sources.items()}


def check_wrapper(
    wrapper: Wrapper,
    *,
    codegen: Codegen | None = None,
    target: Target | None = None,
    build: Build = interpret_sources,
    cases: Iterable[WrapperCase] = WRAPPER_CASES,
) -> list[Result]:
    """Emit, call and save every case.

    Also required: results have the interpreter's strides and share memory as its do, inputs are written
    alike, the list of inputs is emptied, and a second call does the same; what the interpreter refuses is
    refused. A refusal names something of the program: an operator, a buffer (`%x`), a kernel, an instruction
    (`WhileCall`), or a size. Errors of calls are of the built-in kinds, or `CoilworkIRError`.

    Without `codegen`, kernels' texts are kernel IR, and launchers interpret it. A wrapper that builds
    sources itself is given one, with its `target`; where launchers come from then is `build`'s affair.
    """
    return [_check_case(wrapper, case, codegen, target, build) for case in cases]


def _check_case(
    wrapper: Wrapper, case: WrapperCase, codegen: Codegen | None, target: Target | None, build: Build
) -> Result:
    program = case.program()
    verify_program(program)
    refused = wrapper.refuses(program)
    if refused:
        unnamed = not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", refused) for word in _words(program))
        reason = f"it does not say what it refuses: {refused!r}" if unnamed else refused
        return Result(case=case.name, sizes=(), status="failed" if unnamed else "refused", reason=reason)
    sources = {kernel.name: _source(kernel, codegen, target) for kernel in all_kernels(program)}
    constants = {key: make() for key, make in case.constants.items()}
    options = WrapOptions(
        target="" if target is None else target.name,
        constants=constants,
        build=lambda: build(sources),
        workers=1,
    )
    try:
        artifact = wrapper.emit(program, sources, options)
    except EmitError as error:
        return Result(case=case.name, sizes=(), status="failed", reason=f"refused late: {error}")
    faults = [_call_fault(artifact, program, make, constants) for make in case.calls for _ in range(2)]
    faults.append(_save_fault(artifact))
    found = next((fault for fault in faults if fault), "")
    return Result(case=case.name, sizes=(), status="failed" if found else "passed", reason=found)


def _words(program: Program) -> set[str]:
    """Return what a refusal may name."""
    words: set[str] = {symbol.name for symbol in program.symbols}
    for part in walk(program):
        words |= {f"@{part.name}", *(f"%{name}" for name in buffers(part))}
        for step in part.instructions:
            words |= {type(step).__name__, *((step.target,) if isinstance(step, ExternCall) else ())}
    return words | {kernel.name for kernel in all_kernels(program)}


def _source(kernel: Kernel, codegen: Codegen | None, target: Target | None) -> KernelSource:
    if codegen is not None:
        if target is None:
            raise ValueError("a code generator needs a target")
        return codegen.emit(kernel, target, {})
    sizes = tuple(SourceArg(name=size.name, role="size", dtype=DType.I64) for size in kernel.sizes)
    args = tuple(SourceArg(name=a.name, role=a.role, dtype=a.dtype) for a in kernel.args)
    text = format_kernel(kernel)
    return KernelSource(name=kernel.name, language="cpp", text=text, entry=kernel.name, args=(*args, *sizes))


def _make_interpreter(text: str) -> Launcher:
    kernel = parse_kernel(text)

    def launch(*values: Any) -> None:
        count = len(kernel.args)
        lines = [flat(value) for value in values[:count]]
        sizes = {size.name: int(value) for size, value in zip(kernel.sizes, values[count:], strict=True)}
        interpret_kernel(kernel, dict(zip((a.name for a in kernel.args), lines, strict=True)), sizes)

    return launch


def _call_fault(
    artifact: Artifact, program: Program, make: Callable[[], Inputs], constants: Mapping[str, Tensor]
) -> str:
    mine, theirs = _copy_inputs(make()), _copy_inputs(make())
    kept = {key: value.clone() for key, value in constants.items()}
    wanted, expected = _outcome(lambda: interpret_program(program, theirs, kept))
    boxed = list(mine)
    error, results = _outcome(lambda: artifact(boxed))
    if wanted is not None or error is not None:
        # in which words an input is refused is the wrapper's affair
        is_same = error is not None and isinstance(error, _kind(wanted))
        return "" if is_same else f"ended with {error!r}, should end with {wanted!r}"
    if boxed:
        return "the list of inputs was not emptied"
    return _difference((*results, *mine), (*expected, *theirs), len(expected))


def _kind(wanted: Exception | None) -> tuple[type[Exception], ...]:
    """Return what may be raised where the interpreter raises `wanted`."""
    if wanted is None:
        return ()
    return _REFUSALS if isinstance(wanted, InterpretError) else (type(wanted),)


def _outcome(run: Callable[[], Sequence[Any]]) -> tuple[Exception | None, Sequence[Any]]:
    try:
        return None, run()
    except _REFUSALS as error:
        return error, ()


def _difference(found: Sequence[Any], wanted: Sequence[Any], results: int) -> str:
    if len(found) != len(wanted):
        return f"{len(found) - len(wanted) + results} results, should be {results}"
    for position, (one, other) in enumerate(zip(found, wanted, strict=True)):
        what = f"result {position}" if position < results else f"input {position - results}, afterwards,"
        if not isinstance(other, Tensor):
            if one != other or isinstance(one, Tensor):
                return f"{what} is {one!r}, should be {other!r}"
            continue
        if not isinstance(one, Tensor) or (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{what} is {_describe_value(one)}, should be {_describe_value(other)}"
        if _meaningful_strides(one) != _meaningful_strides(other):
            return f"{what} has strides {one.stride()}, should have {other.stride()}"
        tolerance = TOLERANCES.get(other.dtype, 0.0)
        if not torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"{what} is {one!r}, should be {other!r}"
    if _find_shared_memory(found) != _find_shared_memory(wanted):
        return "results share memory otherwise with each other, or with inputs"
    return ""


def _describe_value(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _save_fault(artifact: Artifact) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "saved"
        artifact.save(folder)
        return "" if folder.is_dir() and any(folder.iterdir()) else "saving wrote nothing"


def _copy_inputs(inputs: Inputs) -> list[Any]:
    """Inputs of their own, which lie in memory as they did."""
    return [_copy(value) if isinstance(value, Tensor) else value for value in inputs]


def _copy(value: Tensor) -> Tensor:
    base = value.untyped_storage().clone()
    fresh = torch.empty(0, dtype=value.dtype)
    return fresh.set_(base, value.storage_offset(), value.shape, value.stride())


def _meaningful_strides(tensor: Tensor) -> list[int]:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [] if tensor.numel() == 0 else [stride for extent, stride in pairs if extent > 1]


def _find_shared_memory(values: Sequence[Any]) -> list[int]:
    """For each value the first position that has the same memory; its own if none or no tensor."""
    seen: dict[int, int] = {}
    return [
        seen.setdefault(value.untyped_storage().data_ptr(), position)
        if isinstance(value, Tensor) and value.numel()
        else position
        for position, value in enumerate(values)
    ]
