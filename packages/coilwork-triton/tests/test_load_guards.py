"""Loads at addresses that a check refuses do not happen: an assertion ends the kernel, however
far they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, compile_source, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Scalar, const, contract, index_value, list_loads, load, op, placeholder, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

I64, F32 = DType.I64, DType.F32
ROWS, WIDTH, SPAN = 16, 128, 1 << 15
AT, AND = placeholder(0), placeholder(1)
# past every mapping of a process, also of rows in 32 bits: an interpreter that loads from there dies
FAR = 0x2AAA_AAAA
MESSAGE = "index out of range"


def is_within(number: Scalar, end: int) -> Scalar:
    least, last = const(0, I64), const(end, I64)
    return op("bitwise_and", op("ge", number, least), op("lt", number, last))


def buffers_of(values: list[Scalar]) -> set[str]:
    return {node.buffer for node in list_loads(values)}


def counted_from_the_end(number: Scalar, end: int) -> Scalar:
    return op("where", op("lt", number, const(0, I64)), op("add", number, const(end, I64)), number)


def kernel_of(*ranges: Range, value: Scalar, checks: list[Scalar], checked: bool = True) -> Kernel:
    """`value`, stored at each point of the parallel and sequential `ranges`, with `checks` if `checked`."""
    used = checks if checked else []
    place, size = index_value(ranges[0].symbol).expr * 0, 1
    for r in ranges:
        if r.kind != "reduction":
            place, size = place * r.extent + r.symbol, size * int(str(r.extent))
    found = Kernel(
        name="rows",
        ranges=ranges,
        args=(
            *(arg(name, F32 if name == "in0" else I64, SPAN) for name in sorted(buffers_of([value, *used]))),
            arg("out0", value.dtype, size),
        ),
        stores=(Store(buffer="out0", index=place, value=value),),
        checks=tuple(Check(condition=c, message=MESSAGE, error="IndexError") for c in used),
    )
    verify_kernel(found)
    return found


def looked_up(checked: bool = True) -> Kernel:
    """A row of a table per position."""
    y, x = along("x0", ROWS), along("x1", WIDTH)
    at = counted_from_the_end(load("in1", [y.symbol], I64), 200)
    value = load("in0", [AT * WIDTH + x.symbol], F32, indirect=[at])
    return kernel_of(y, x, value=value, checks=[is_within(at, 200)], checked=checked)


def looked_up_twice(checked: bool = True) -> Kernel:
    """A row at a position at a position: the first check is of the address of what the second asks."""
    y, x = along("x0", ROWS), along("x1", WIDTH)
    first = load("in1", [y.symbol], I64)
    second = load("in2", [AT], I64, indirect=[first])
    value = load("in0", [AT * WIDTH + x.symbol], F32, indirect=[second])
    return kernel_of(
        y, x, value=value, checks=[is_within(first, 200), is_within(second, 200)], checked=checked
    )


def elements(checked: bool = True) -> Kernel:
    """An element at a row and a column from data, under a mask of its own."""
    x = along("x0", ROWS * WIDTH)
    row, column = load("in1", [x.symbol], I64), load("in2", [x.symbol], I64)
    inside = op("lt", index_value(x.symbol), const(2000, I64))
    value = load("in0", [AT * WIDTH + AND], F32, indirect=[row, column], mask=inside)
    return kernel_of(x, value=value, checks=[is_within(row, 200), is_within(column, WIDTH)], checked=checked)


def shifted(checked: bool = True) -> Kernel:
    """An element at a distance from each point, which is asked of the point and of the distance."""
    x = along("x0", ROWS * WIDTH)
    at = op("add", index_value(x.symbol), load("in1", [x.symbol], I64))
    value = load("in0", [AT], F32, indirect=[at])
    return kernel_of(x, value=value, checks=[is_within(at, SPAN)], checked=checked)


def row_sums(width: int, *, checked: bool = True) -> Kernel:
    """Sums of rows that are looked up, short ones in registers and long ones in a loop."""
    y, r = along("x0", ROWS), along("r0", width, "reduction")
    at = load("in1", [y.symbol], I64)
    value = reduce("sum", [load("in0", [AT * width + r.symbol], F32, indirect=[at])], [r.symbol])
    return kernel_of(y, r, value=value, checks=[is_within(at, 8)], checked=checked)


def sums_of_elements(width: int = 4000, *, checked: bool = True) -> Kernel:
    """Sums of elements that are looked up one by one."""
    y, r = along("x0", 4), along("r0", width, "reduction")
    at = load("in1", [y.symbol * width + r.symbol], I64)
    value = reduce("sum", [load("in0", [AT], F32, indirect=[at])], [r.symbol])
    return kernel_of(y, r, value=value, checks=[is_within(at, 200)], checked=checked)


def products(checked: bool = True) -> Kernel:
    """A product whose left rows are looked up."""
    y, x, r = along("x0", ROWS), along("x1", WIDTH), along("r0", 64, "reduction")
    at = load("in1", [y.symbol], I64)
    left = load("in0", [AT * 64 + r.symbol], F32, indirect=[at])
    right = load("in0", [r.symbol * WIDTH + x.symbol], F32)
    value = contract(left, right, [r.symbol], F32)
    return kernel_of(y, x, r, value=value, checks=[is_within(at, 200)], checked=checked)


KERNELS: dict[str, Callable[..., Kernel]] = {
    "looked up": looked_up,
    "looked up twice": looked_up_twice,
    "elements": elements,
    "shifted": shifted,
    "row sums": lambda checked=True: row_sums(256, checked=checked),
    "sums of long rows": lambda checked=True: row_sums(3000, checked=checked),
    "sums of elements": sums_of_elements,
    "products": products,
}


def emitted(kernel: Kernel, **options: object) -> KernelSource:
    return TritonCodegen().emit(kernel, get_target("sm_90"), options)


def tensors(kernel: Kernel, **given: torch.Tensor) -> list[torch.Tensor]:
    """The arguments of `kernel`: as `given`, numbers to load, and room for the result."""
    made = {"in0": torch.arange(SPAN).float() % 7 + 1, **given}
    return [made.get(a.name, torch.zeros(int(str(a.span)))) for a in kernel.args]


def positions(end: int) -> torch.Tensor:
    return torch.randint(0, end, (SPAN,), generator=torch.Generator().manual_seed(end))


@pytest.mark.parametrize("name", KERNELS)
def test_results_are_those_without_checks(name: str, engine: TritonProcess) -> None:
    got, want = (
        run_source(engine, emitted(kernel), tensors(kernel, in1=positions(8), in2=positions(7)))[-1]
        for kernel in (KERNELS[name](), KERNELS[name](checked=False))
    )
    torch.testing.assert_close(got, want)
    assert got.any()


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """Triton's interpreter alone: an assertion on a device ends what its process can do there."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    process = TritonProcess(interpret=True, cache=tmp_path_factory.mktemp("triton"))
    yield process
    process.close()


@pytest.mark.interpreter
@pytest.mark.parametrize("name", KERNELS)
def test_an_assertion_is_what_ends_a_kernel(name: str, interpreter: TritonProcess) -> None:
    kernel = KERNELS[name]()
    source = emitted(kernel)
    for argument in sorted(buffers_of([kernel.stores[0].value]) - {"in0"}):
        for off in (FAR, -FAR):
            given = {"in1": positions(8), "in2": positions(7)}
            given[argument][3] = off
            with pytest.raises(RuntimeError, match=MESSAGE):
                run_source(interpreter, source, tensors(kernel, **given), debug=True)


def body_of(kernel: Kernel) -> str:
    """The statements of the function."""
    return emitted(kernel).text.split("):\n")[-1]


@pytest.mark.parametrize("name", KERNELS)
def test_accesses_stay_as_wide(name: str, compiler: TritonProcess) -> None:
    """A row's loads are as wide as without the checks, and as many."""
    checked, plain = (
        accesses(compile_source(compiler, emitted(KERNELS[name](checked=is_checked)), "sm_90"))
        for is_checked in (True, False)
    )
    assert checked == plain


def accesses(text: str) -> list[str]:
    return sorted(re.findall(r"\b(?:ld|st)\.global[.\w]*|cp\.async[.\w]*", text))


def test_what_a_check_does_not_judge_is_loaded_at_once() -> None:
    y, x = along("x0", ROWS), along("x1", WIDTH)
    judged, other = load("in1", [y.symbol], I64), load("in2", [y.symbol], I64)
    rows = [load("in0", [AT * WIDTH + x.symbol], F32, indirect=[at]) for at in (other, judged)]
    lines = body_of(kernel_of(y, x, value=op("add", *rows), checks=[is_within(judged, 200)])).splitlines()
    words = ("in0 + (in2", "device_assert", "in0 + (in1")
    places = [k for word in words for k, line in enumerate(lines) if word in line]
    assert len(places) == 3 and places == sorted(places)


def test_a_check_is_asserted_once_and_in_front_of_the_loops_that_it_does_not_hang_on() -> None:
    before, inside = (
        emitted(kernel).text.split("@triton.jit")[-1]
        for kernel in (row_sums(1 << 15), sums_of_elements(1 << 15))
    )
    assert before.count("device_assert") == inside.count("device_assert") == 1
    assert before.index("device_assert") < before.index("for r0_offset")
    assert inside.index("for r0_offset") < inside.index("device_assert") < inside.index("in0 +")
