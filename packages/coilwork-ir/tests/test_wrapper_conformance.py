"""The wrappers' kit shows every instruction, accepts a wrapper that keeps the contract, and names what one
breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from coilwork_ir.conformance import WRAPPER_CASES, check_wrapper, format_failures
from coilwork_ir.conformance.wrappers import list_uncovered
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.program.interpreter import Hooks, interpret_program
from coilwork_ir.program.nodes import ExternCall, Launch, Program
from coilwork_ir.program.text import format_program
from coilwork_ir.wrapper import WrapOptions, Wrapper

Change = Callable[[list[Any], list[Any]], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreted:
    """A wrapper that interprets, and that `change` makes wrong: it is told of inputs and results of each
    call."""

    name: str = "interpreted"
    change: Change = lambda inputs, results: results
    refused: str = ""
    late: str = ""
    empties: bool = True
    saves: bool = True

    def refuses(self, program: Program) -> str:
        return self.refused

    def emit(
        self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions
    ) -> InterpretedArtifact:
        if self.late:
            raise EmitError("no", self.late)
        return InterpretedArtifact(self, program, options)


@dataclass(frozen=True, slots=True)
class InterpretedArtifact:
    wrapper: Interpreted
    program: Program
    options: WrapOptions

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        values = list(args)
        if self.wrapper.empties:
            args.clear()
        launchers = self.options.build()

        def launch(step: Launch, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
            launchers[step.kernel](*tensors, *sizes)

        results = interpret_program(self.program, values, self.options.constants, Hooks(launch=launch))
        return self.wrapper.change(values, results)

    def save(self, folder: Path) -> None:
        folder.mkdir()
        if self.wrapper.saves:
            (folder / "program.txt").write_text(format_program(self.program))


def swallow(inputs: list[Any], results: list[Any]) -> list[Any]:
    return [
        value + 1 if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in results
    ]


def lay_out(inputs: list[Any], results: list[Any]) -> list[Any]:
    return [v.contiguous() if isinstance(v, torch.Tensor) else v for v in results]


def copy(inputs: list[Any], results: list[Any]) -> list[Any]:
    # with its strides
    return [
        torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).copy_(v) if isinstance(v, torch.Tensor) else v
        for v in results
    ]


def widen(inputs: list[Any], results: list[Any]) -> list[Any]:
    return [v.double() if isinstance(v, torch.Tensor) else v for v in results]


def misstate(inputs: list[Any], results: list[Any]) -> list[Any]:
    return [v + 1 if isinstance(v, int) else v for v in results]


def forget(inputs: list[Any], results: list[Any]) -> list[Any]:
    return results[:-1]


def write(inputs: list[Any], results: list[Any]) -> list[Any]:
    for value in inputs:
        if isinstance(value, torch.Tensor):
            value.zero_()
    return results


def test_every_instruction_is_in_some_case() -> None:
    assert list_uncovered(WRAPPER_CASES) == ()
    alone = [case for case in WRAPPER_CASES if not case.name.startswith("a loop")]
    assert "LoopCall" in list_uncovered(alone)


def test_a_wrapper_that_keeps_the_contract_passes() -> None:
    wrapper = Interpreted()
    assert isinstance(wrapper, Wrapper)
    results = check_wrapper(wrapper)
    assert format_failures(results) == ""
    assert {result.status for result in results} == {"passed"} and len(results) == len(WRAPPER_CASES)


@pytest.mark.parametrize(
    ("wrapper", "case", "reason"),
    [
        (Interpreted(change=swallow), "pools", "result 0 is"),
        (Interpreted(change=lay_out), "results with declared strides, at declared addresses", "has strides"),
        (Interpreted(change=copy), "inputs that are written and returned", "share memory otherwise"),
        (Interpreted(change=widen), "a loop", "torch.float64 of shape (3,), should be torch.float32"),
        (Interpreted(change=misstate), "sizes, and a check of them", "result 1 is"),
        (Interpreted(change=forget), "a loop", "1 results, should be 2"),
        (Interpreted(change=write), "strides of an input", "input 0, afterwards,"),
        (Interpreted(empties=False), "memory in flight", "was not emptied"),
        (Interpreted(saves=False), "memory in flight", "saving wrote nothing"),
        (Interpreted(refused="not today"), "a loop", "does not say what it refuses"),
        (Interpreted(late="no aten.exp.default"), "a loop", "refused late"),
    ],
)
def test_what_a_wrapper_breaks_is_named(wrapper: Interpreted, case: str, reason: str) -> None:
    (result,) = check_wrapper(wrapper, cases=[one for one in WRAPPER_CASES if one.name == case])
    assert result.status == "failed" and reason in result.reason, result


def test_a_check_that_does_not_raise_is_a_failure() -> None:
    class Lenient(InterpretedArtifact):
        def __call__(self, args: list[Any]) -> Sequence[Any]:
            try:
                return InterpretedArtifact.__call__(self, args)
            except RuntimeError:
                return [torch.zeros(7)]

    class LenientWrapper(Interpreted):
        def emit(self, program: Program, sources: Any, options: WrapOptions) -> InterpretedArtifact:
            return Lenient(self, program, options)

    cases = [one for one in WRAPPER_CASES if one.name == "a kernel that checks what it reads"]
    (result,) = check_wrapper(LenientWrapper(), cases=cases)
    assert "should end with RuntimeError('a root of a negative number" in result.reason


def test_a_refusal_that_names_an_operator_is_one() -> None:
    cases = [one for one in WRAPPER_CASES if one.name == "a loop"]
    targets = {step.target for step in cases[0].program().instructions if isinstance(step, ExternCall)}
    assert not targets, "the operators are in the nested programs"
    (result,) = check_wrapper(Interpreted(refused="aten.roll.default moves elements"), cases=cases)
    assert (result.status, result.reason) == ("refused", "aten.roll.default moves elements")
