"""Calls that end when a NaN or an infinity turns up: in what they return, or in what any kernel reads or writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coilwork.checking.stepping import Stepper, culprits, describe, writers
from coilwork.errors import NotFiniteError
from coilwork.executors import Call
from coilwork_ir.buffers import Ref
from coilwork_ir.program.interpret import Step
from coilwork_ir.program.nodes import Program, Return


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which values are refused: NaN, infinities, or both."""

    nan: bool
    inf: bool

    def __bool__(self) -> bool:
        return self.nan or self.inf

    def fault(self, value: object) -> str:
        """What `value` holds that it must not, and where first; empty if nothing."""
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


def with_results_checked(call: Call, stepped: Stepper, wanted: Wanted, name: str) -> Call:
    """`call`, which raises `NotFiniteError` when a result holds what is not wanted."""
    returned = stepped.program.instructions[-1]
    assert isinstance(returned, Return)
    names = [value.name if isinstance(value, Ref) else "" for value in returned.values]

    def checked(args: list[Any]) -> Sequence[Any]:
        results = call(args)
        for position, value in enumerate(results):
            if fault := wanted.fault(value):
                found = map(describe, writers(stepped, stepped.program, names[position]))
                raise NotFiniteError(
                    "not-finite",
                    f"graph {name}: result {position} holds {fault}",
                    reason="it is written by " + ("\n  and by   ".join(found) or "no kernel"),
                    remedy='"kernels" instead of "results" to find the first kernel at fault',
                )
        return results

    return checked


def with_eager_results_checked(call: Callable[..., Any], wanted: Wanted, name: str) -> Callable[..., Any]:
    """`call`, which runs a graph in eager mode, with its results checked likewise."""

    def checked(*args: Any) -> Any:
        results = call(*args)
        for position, value in enumerate(results):
            if fault := wanted.fault(value):
                raise NotFiniteError(
                    "not-finite",
                    f"{name}: result {position} holds {fault}",
                    reason="the graph runs in eager mode: no kernel is known of",
                )
        return results

    return checked


def with_kernels_checked(stepped: Stepper, wanted: Wanted, name: str) -> Call:
    """A call that runs the program one launch at a time and raises `NotFiniteError` at the first kernel at fault."""

    def refuse(who: str, buffer: str, fault: str, *, read: bool) -> None:
        verb, whose = ("reads", "the caller's") if read else ("writes", "that kernel's")
        raise NotFiniteError(
            "not-finite",
            f"graph {name}: {who.partition(',')[0]} {verb} %{buffer}, which holds {fault}",
            reason=f"it is {whose}: no kernel before wrote such a value\n  kernel  {who}",
        )

    def before(program: Program, step: Step, tensors: Mapping[str, Tensor]) -> None:
        for buffer in stepped.read(step):
            if fault := wanted.fault(tensors[buffer]):
                refuse(culprits(stepped, program, step, buffer), buffer, fault, read=True)

    def after(program: Program, step: Step, tensors: Mapping[str, Tensor]) -> None:
        for buffer in stepped.written(step):
            if buffer in tensors and (fault := wanted.fault(tensors[buffer])):
                refuse(culprits(stepped, program, step, buffer), buffer, fault, read=False)

    def checked(args: list[Any]) -> Sequence[Any]:
        given = list(args)
        args.clear()
        results = stepped.run(given, before=before, after=after)
        for position, value in enumerate(results):
            if fault := wanted.fault(value):
                raise NotFiniteError(
                    "not-finite",
                    f"graph {name}: result {position} holds {fault}",
                    reason="no kernel touched it",
                )
        return results

    return checked
