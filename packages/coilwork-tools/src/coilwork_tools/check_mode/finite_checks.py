"""Refuse NaN and infinities: in the results of a call, or in what any of its kernels reads or writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coilwork_frontend.torch_compat.tensors import get_version
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.program.interpreter import Step
from coilwork_ir.program.nodes import Program, Return
from coilwork_tools.check_mode.stepper import Call, Stepper, describe, describe_culprits, list_writers
from coilwork_tools.errors import NotFiniteError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The values that are refused: NaN, infinities, or both."""

    nan: bool
    inf: bool

    def __bool__(self) -> bool:
        return self.nan or self.inf

    def fault(self, value: object) -> str:
        """Describe the first value in `value` that is refused; empty if there is none."""
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return ""
        if value.layout is not torch.strided:
            value = value.to_dense()
        if value.is_floating_point() and value.element_size() == 1:
            value = value.float()
        for kind, wanted, found in (
            ("NaN", self.nan, value.isnan),
            ("an infinity", self.inf, value.isinf),
        ):
            if wanted and (where := found()).any():
                first = where.nonzero()[0].tolist()
                return f"{kind} in {int(where.sum())} of {value.numel()} elements, the first at {first}"
        return ""

    def first_fault(self, values: Iterable[tuple[int, object]]) -> tuple[int, str] | None:
        """Return the position of the first of `values` that is at fault, and its fault."""
        return next(((position, fault) for position, value in values if (fault := self.fault(value))), None)


def add_result_checks(call: Call, stepped: Stepper, wanted: Wanted, name: str) -> Call:
    """`call`, which raises `NotFiniteError` when a result, or an input that the program writes, holds what is
    not wanted.
    """
    program = stepped.program
    returned = program.instructions[-1]
    assert isinstance(returned, Return)
    names = [value.name if isinstance(value, Ref) else "" for value in returned.values]
    inputs = [entry.name if isinstance(entry, Buffer) else "" for entry in program.inputs]
    overwritten = [
        position for position, buffer in enumerate(inputs) if list_writers(stepped, program, buffer)
    ]

    def refuse(what: str, buffer: str, fault: str) -> None:
        names = map(describe, list_writers(stepped, program, buffer))
        raise NotFiniteError(
            "not-finite",
            f"graph {name}: {what} holds {fault}",
            reason="it is written by " + ("\n  and by   ".join(names) or "no kernel"),
            remedy='"kernels" instead of "results" to find the first kernel at fault',
        )

    def call_and_check(args: list[Any]) -> Sequence[Any]:
        kept = {position: args[position] for position in overwritten}
        results = call(args)
        if fault := wanted.first_fault(enumerate(results)):
            refuse(f"result {fault[0]}", names[fault[0]], fault[1])
        if fault := wanted.first_fault(kept.items()):
            refuse(f"input {fault[0]}, which is written,", inputs[fault[0]], fault[1])
        return results

    return call_and_check


def add_eager_result_checks(call: Callable[..., Any], wanted: Wanted, name: str) -> Callable[..., Any]:
    """`call`, which runs a graph in eager mode, with its results and the inputs that it writes checked
    likewise.
    """

    def refuse(what: str, fault: str, why: str) -> None:
        raise NotFiniteError("not-finite", f"{name}: {what} holds {fault}", reason=why)

    def call_and_check(*args: Any) -> Any:
        given = [*args[0]] if len(args) == 1 and isinstance(args[0], list) else [*args]
        before = [_version(value) for value in given]
        results = call(*args)
        why = "the graph runs in eager mode: no kernel is known of"
        if fault := wanted.first_fault(enumerate(results)):
            refuse(f"result {fault[0]}", fault[1], why)
        written = [k for k, number in enumerate(before) if _version(given[k]) != number]
        if fault := wanted.first_fault((k, given[k]) for k in written):
            refuse(f"input {fault[0]}, which is written,", fault[1], why)
        return results

    return call_and_check


def _version(value: object) -> int:
    return get_version(value) if isinstance(value, Tensor) else 0


def add_kernel_checks(stepped: Stepper, wanted: Wanted, name: str) -> Call:
    """Return a call that runs the program one launch at a time and raises `NotFiniteError` at the first
    kernel at fault.
    """

    def refuse(who: str, buffer: str, fault: str, *, read: bool) -> None:
        verb, whose = ("reads", "the caller's") if read else ("writes", "that kernel's")
        raise NotFiniteError(
            "not-finite",
            f"graph {name}: {who.partition(',')[0]} {verb} %{buffer}, which holds {fault}",
            reason=f"it is {whose}: no kernel before wrote such a value\n  kernel  {who}",
        )

    def check_reads(program: Program, step: Step, tensors: Mapping[str, Tensor]) -> None:
        for buffer in stepped.read(step):
            if fault := wanted.fault(tensors[buffer]):
                refuse(describe_culprits(stepped, program, step, buffer), buffer, fault, read=True)

    def check_writes(program: Program, step: Step, tensors: Mapping[str, Tensor]) -> None:
        for buffer in stepped.list_written(step):
            if buffer in tensors and (fault := wanted.fault(tensors[buffer])):
                refuse(describe_culprits(stepped, program, step, buffer), buffer, fault, read=False)

    def call_and_check(args: list[Any]) -> Sequence[Any]:
        given = list(args)
        args.clear()
        results = stepped.run(given, before=check_reads, after=check_writes)
        if found := wanted.first_fault(enumerate(results)):
            position, fault = found
            raise NotFiniteError(
                "not-finite",
                f"graph {name}: result {position} holds {fault}",
                reason="no kernel touched it",
            )
        return results

    return call_and_check
