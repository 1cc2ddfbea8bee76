"""The conformance kit accepts a generator that keeps the contract and names the cases of one that
does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from coilwork_ir.conformance import CASES, check_codegen, format_failures, make_op_case, measure_coverage
from coilwork_ir.conformance.case import Case, count_edge_values, make_edge_values
from coilwork_ir.conformance.op_cases import KIT_DTYPES, OPERANDS, list_reduce_types, list_scan_types
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource, SourceArg
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS, SCAN_KINDS, STORE_MODES
from coilwork_ir.target import LEAST, Capabilities, Target, get_target

CPU = get_target("x86-64-avx2")


class TextCodegen:
    """A generator for the interpreter itself: its source is the kernel's own text."""

    name = "text"

    def __init__(
        self, replaced: tuple[str, str] = ("", ""), refuses: str = "", drop_arg: bool = False
    ) -> None:
        self.replaced = replaced
        self.refuses = refuses
        self.drop_arg = drop_arg

    def supports(self, target: Target) -> bool:
        return target.kind == "cpu"

    def capabilities(self, target: Target) -> Capabilities:
        return LEAST

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        if kernel.name == self.refuses:
            raise EmitError("no", "not expressible")
        args = tuple(SourceArg(name=a.name, role=a.role, dtype=a.dtype) for a in kernel.args)
        text = format_kernel(kernel).replace(*self.replaced) if self.replaced[0] else format_kernel(kernel)
        return KernelSource(
            name=kernel.name,
            language="cpp",
            text=text,
            entry=kernel.name,
            args=args[1:] if self.drop_arg else args,
            target=target.name,
        )


def run(source: KernelSource, args: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
    interpret_kernel(parse_kernel(source.text), args, sizes)


def test_a_right_generator_passes_every_case() -> None:
    results = check_codegen(TextCodegen(), CPU, run)
    assert format_failures(results) == ""
    assert {r.case for r in results} == {case.name for case in CASES}
    assert all(r.status == "passed" for r in results)
    assert len(results) == sum(len(case.sizes) for case in CASES)


def test_a_wrong_generator_fails_the_cases_that_show_it() -> None:
    results = check_codegen(TextCodegen(("reduce sum", "reduce max")), CPU, run)
    wrong = {r.case for r in results if r.status == "failed"}
    assert {"row-sum", "softmax"} <= wrong
    assert "transpose" not in wrong
    assert "out0 differs" in format_failures(results)


def test_a_missing_check_is_a_failure() -> None:
    results = check_codegen(TextCodegen(('check t2 RuntimeError "value out of range"', "")), CPU, run)
    assert [r.case for r in results if r.status == "failed"] == ["failing-check"]


def test_a_kernel_that_does_not_build_is_a_failure_of_its_case_alone() -> None:
    class BuildError(Exception):
        """A compiler's own."""

    def build(source: KernelSource, args: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        if source.name == CASES[1].name.replace("-", "_"):
            raise BuildError("mismatched types")
        run(source, args, sizes)

    results = check_codegen(TextCodegen(), CPU, build, cases=CASES[:3])
    failed = {result.case: result.reason for result in results if result.status == "failed"}
    assert set(failed) == {CASES[1].name} and "mismatched types" in failed[CASES[1].name]


def test_what_a_generator_cannot_express_is_refused_not_failed() -> None:
    results = check_codegen(TextCodegen(refuses="scan"), CPU, run)
    assert [(r.case, r.status) for r in results if r.status != "passed"] == [("scan", "refused")]


def test_arguments_are_compared() -> None:
    results = check_codegen(TextCodegen(drop_arg=True), CPU, run)
    assert all(r.status == "failed" and "tensor arguments" in r.reason for r in results)


def test_an_unsupported_target_is_refused() -> None:
    (result,) = check_codegen(TextCodegen(), get_target("sm_90"), run)
    assert result.status == "refused"


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_cases_are_canonical_and_their_inputs_repeat(case: Case) -> None:
    kernel = parse_kernel(case.text)
    assert parse_kernel(format_kernel(kernel)) == kernel
    for sizes in case.sizes:
        first, second = case.make(sizes), case.make(sizes)
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=0, atol=0, equal_nan=True)


def test_no_scalar_op_is_without_a_case() -> None:
    visited = measure_coverage()
    missing = [
        f"{name} {dtype.text}"
        for name, row in SCALAR_OPS.items()
        for dtype in KIT_DTYPES
        if row.takes(dtype) and (name, dtype) not in visited.ops and (name, dtype) != ("bitcast", DType.BOOL)
    ]
    assert not missing, f"add rows to coilwork_ir.conformance.op_cases.OPERANDS: {missing}"


def test_an_op_without_a_row_of_operands_is_noticed() -> None:
    fewer = [make_op_case(dtype, [name for name in OPERANDS if name != "tanh"]) for dtype in KIT_DTYPES]
    assert ("tanh", DType.F32) not in measure_coverage(fewer).ops
    assert ("erf", DType.F32) in measure_coverage(fewer).ops
    assert set(OPERANDS) | {"cast", "bitcast"} == set(SCALAR_OPS)


def test_every_reduction_scan_sort_and_store_mode_has_cases_on_its_types() -> None:
    visited = measure_coverage()
    for row in REDUCE_OPS.values():
        assert {(row.name, dtype) for dtype in list_reduce_types(row.name)} <= visited.reductions
    for kind in SCAN_KINDS:
        assert {(kind, dtype) for dtype in list_scan_types(kind)} <= visited.scans
    assert {("function", dtype) for dtype in KIT_DTYPES if not dtype.is_bool} <= visited.scans
    assert {(down, dtype) for down in (False, True) for dtype in KIT_DTYPES} <= visited.sorts
    for mode in STORE_MODES:
        assert {(mode, dtype) for dtype in KIT_DTYPES} <= visited.stores


@pytest.mark.parametrize("dtype", KIT_DTYPES)
def test_edges_hold_what_goes_wrong(dtype: DType) -> None:
    count = count_edge_values(dtype)
    left, divisor = make_edge_values("left", dtype, count), make_edge_values("divisor", dtype, count)
    if dtype.is_float:
        assert left.isnan().any() and left.isposinf().any() and left.isneginf().any()
        assert (torch.signbit(left) & (left == 0)).any() and (divisor == 0).any()
        assert ((left != 0) & (left.abs() < torch.finfo(left.dtype).tiny)).any()
    elif dtype.is_integer:
        info = torch.iinfo(left.dtype)
        assert {info.min, info.max} <= set(left.tolist())
        assert 0 not in divisor.tolist()
        assert not ((left == info.min) & (divisor == -1)).any() or not dtype.is_signed_integer


def test_a_wrong_op_is_named_and_may_be_excused() -> None:
    case = make_op_case(DType.I32, ["add", "sub"])
    wrong = TextCodegen(("add(", "sub("))
    results = check_codegen(wrong, CPU, run, cases=[case])
    assert "out0 (add i32) differs at" in format_failures(results) and "sub i32" not in format_failures(
        results
    )
    assert not format_failures(
        check_codegen(wrong, CPU, run, cases=[case], excused={"add i32": "for a test"})
    )
    with pytest.raises(ValueError, match="labelled ad i32"):
        check_codegen(wrong, CPU, run, cases=[case], excused={"ad i32": "a slip"})


def test_kernels_ask_for_the_numerics_wanted() -> None:
    asked: list[str] = []

    class Asking(TextCodegen):
        def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
            asked.append(kernel.numerics)
            return super().emit(kernel, target, options)

    check_codegen(Asking(), CPU, run, cases=CASES[:1], numerics="strict")
    assert set(asked) == {"strict"}
