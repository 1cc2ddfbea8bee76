"""Runs a code generator's output on all cases and compares it with the reference interpreter.

`CASES` lists the cases of every file beside this one, and `measure_coverage` what of the op tables they
visit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.backend import Codegen
from coilwork_ir.conformance.case import Case
from coilwork_ir.conformance.dataflow_cases import WRITTEN_CASES
from coilwork_ir.conformance.op_cases import COMBINING_CASES, OP_CASES
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import CoilworkIRError, EmitError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.nodes import Kernel, Numerics
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.scalar import Combine, Op, Reduce, Scalar, Scan, Sort, iterate_postorder
from coilwork_ir.target import Target

# ---- Cases ----


CASES: Final[tuple[Case, ...]] = (*WRITTEN_CASES, *OP_CASES, *COMBINING_CASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Names with the types of their operands: of scalar ops, of reductions and scans (`"function"` for those
    that have none), of sorts (whether descending), and of stores by mode.

    A value that was widened from a 16 bit float counts as one of that type.
    """

    ops: frozenset[tuple[str, DType]]
    reductions: frozenset[tuple[str, DType]]
    scans: frozenset[tuple[str, DType]]
    sorts: frozenset[tuple[bool, DType]]
    stores: frozenset[tuple[str, DType]]


def measure_coverage(cases: Iterable[Case] = CASES) -> Coverage:
    """Return the ops, types and modes that `cases` visit."""
    kernels = [parse_kernel(case.text) for case in cases]
    nodes = [node for kernel in kernels for node in iterate_postorder(_roots(kernel))]
    return Coverage(
        ops=frozenset((n.op, _memory_type(n.operands[-1])) for n in nodes if isinstance(n, Op)),
        reductions=frozenset((n.kind, _memory_type(n.operands[0])) for n in nodes if isinstance(n, Reduce)),
        scans=frozenset(
            ("function" if isinstance(n.kind, Combine) else n.kind, _memory_type(n.operands[0]))
            for n in nodes
            if isinstance(n, Scan)
        ),
        sorts=frozenset((n.descending, _memory_type(n.operands[0])) for n in nodes if isinstance(n, Sort)),
        stores=frozenset((s.mode, s.value.dtype) for kernel in kernels for s in kernel.stores),
    )


def _roots(kernel: Kernel) -> tuple[Scalar, ...]:
    return (*(s.value for s in kernel.stores), *(check.condition for check in kernel.checks))


def _memory_type(value: Scalar) -> DType:
    if isinstance(value, Op) and value.op == "cast" and value.operands[0].dtype.is_low_precision:
        return value.operands[0].dtype
    return value.dtype


# ---- Check ----


Runner: TypeAlias = Callable[[KernelSource, Mapping[str, Tensor], Mapping[str, int]], None]
"""Builds a kernel's source and runs it on CPU tensors of one dimension, by argument name, which it
overwrites, with sizes by name. A kernel check that fails is raised as the IndexError or RuntimeError that it
asks for; where a target cannot say which, as a RuntimeError. Whatever else it raises is a fault of the case.
"""

Status = Literal["passed", "failed", "refused"]

TOLERANCES: Final[Mapping[torch.dtype, float]] = MappingProxyType(
    {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
)
"""By how much floats may differ, relatively and absolutely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one case.

    Attributes:
        case: its name.
        sizes: values of the kernel's size symbols.
        status: `refused` if the generator raised EmitError, which a generator may for what its target cannot
            do.
        reason: why it failed or was refused, or `""`.
    """

    case: str
    sizes: tuple[tuple[str, int], ...]
    status: Status
    reason: str = ""


def check_codegen(
    codegen: Codegen,
    target: Target,
    run: Runner,
    *,
    options: Mapping[str, object] | None = None,
    cases: Iterable[Case] = CASES,
    numerics: Numerics = "fast",
    excused: Mapping[str, str] = MappingProxyType({}),
) -> list[Result]:
    """Emit, run and compare every case at every set of sizes.

    Also required: equal text for equal arguments; arguments of the source are those of the kernel, in order.
    Floats compare with a relative and absolute tolerance that depends on their type; other types exactly.

    `numerics` is what the kernels ask for. `excused` are labels of outputs (`"fma f32"`) that `run` cannot
    show right, for the reason given; they are computed, and not compared.

    Raises:
        ValueError: no output has a label that is excused.
    """
    cases = tuple(cases)
    unknown = set(excused) - {label for case in cases for _, label in case.labels}
    if unknown:
        raise ValueError(f"no case has an output labelled {', '.join(sorted(unknown))}")
    if not codegen.supports(target):
        return [Result(case="*", sizes=(), status="refused", reason=f"no support for {target.name}")]
    results: list[Result] = []
    for case in cases:
        kernel = replace(parse_kernel(case.text), numerics=numerics)
        verify_kernel(kernel)
        try:
            source = codegen.emit(kernel, target, options or {})
            again = codegen.emit(replace(parse_kernel(case.text), numerics=numerics), target, options or {})
        except EmitError as error:
            results.append(Result(case=case.name, sizes=(), status="refused", reason=str(error)))
            continue
        reason = _source_fault(kernel, source, again)
        for sizes in case.sizes:
            fault = reason or _run_case(case, kernel, source, sizes, run, excused)
            results.append(
                Result(
                    case=case.name,
                    sizes=tuple(sizes.items()),
                    status="failed" if fault else "passed",
                    reason=fault,
                )
            )
    return results


def format_failures(results: Iterable[Result]) -> str:
    """Lines for the results that failed; `""` if none did."""
    return "\n".join(f"{r.case} {dict(r.sizes)}: {r.reason}" for r in results if r.status == "failed")


def _source_fault(kernel: Kernel, source: KernelSource, again: KernelSource) -> str:
    if source != again:
        return "emitting the same kernel twice gave different sources"
    wanted = [arg.name for arg in kernel.args]
    given = [arg.name for arg in source.args if arg.role in ("in", "out", "inout")]
    if wanted != given:
        return f"tensor arguments are {given}, the kernel's are {wanted}"
    if source.grid and not source.configs:
        return "a source with a grid needs at least one configuration"
    return ""


def _run_case(
    case: Case,
    kernel: Kernel,
    source: KernelSource,
    sizes: Mapping[str, int],
    run: Runner,
    excused: Mapping[str, str],
) -> str:
    expected = case.make(sizes)
    given = {name: value.clone() for name, value in expected.items()}
    wanted = _outcome(lambda: interpret_kernel(kernel, expected, sizes), _ASKED_FOR)
    # whatever a compiler or a device raises is a finding
    raised = _outcome(lambda: run(source, given, sizes), Exception)
    if wanted is not None or raised is not None:
        # a target that can only say that a check failed says so with a RuntimeError
        same = wanted is not None and type(raised) in (type(wanted), RuntimeError)
        return "" if same else f"ended with {raised!r}, should end with {wanted!r}"
    labels = dict(case.labels)
    faults = [
        _difference(case, arg.name, given[arg.name], expected[arg.name])
        for arg in kernel.args
        # what is left in a workspace is nobody's business
        if labels.get(arg.name) not in excused and arg.name != kernel.workspace
    ]
    return "; ".join(fault for fault in faults if fault)


# What the interpreter raises because a kernel says so.
_ASKED_FOR: Final = (IndexError, RuntimeError, CoilworkIRError)


def _outcome(
    action: Callable[[], None], errors: type[Exception] | tuple[type[Exception], ...]
) -> Exception | None:
    try:
        action()
    except errors as error:
        return error
    return None


def _difference(case: Case, name: str, result: Tensor, wanted: Tensor) -> str:
    tolerance = TOLERANCES.get(wanted.dtype, 0.0)
    absolute = tolerance
    if case.relative and wanted.dtype.is_floating_point and name not in case.cancelling:
        info = torch.finfo(wanted.dtype)
        # a few times the least subnormal number
        absolute = 4 * info.tiny * info.eps
    close = torch.isclose(result, wanted, rtol=tolerance, atol=absolute, equal_nan=True)
    if bool(close.all()):
        return ""
    label = dict(case.labels).get(name)
    what = name if label is None else f"{name} ({label})"
    where = torch.nonzero(~close).flatten()
    shown = [f"[{at}] is {result[at].item()!r}, should be {wanted[at].item()!r}" for at in where[:3].tolist()]
    return f"{what} differs at {len(where)} of {len(wanted)} places: {', '.join(shown)}"
