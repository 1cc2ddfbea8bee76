"""Constants that an integer type does not hold are converted before a compiler sees them; nothing else
changes.
"""

from __future__ import annotations

import math

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.rewrite import convert_constants, wrap_integer
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.kernels.verify import verify_kernel

TEXT = """
kernel @converts fast {{
range x0: `64` parallel
{args}arg out0: {result} out span `64`
body {{
{loads}{lines}
store %out0[x0] = t9
}}
}}
"""


def kernel(lines: str, *, source: str = "f32", result: str = "i32") -> Kernel:
    """A kernel that stores `t9` of `lines`, in which `t0` is a `source` and `t1` a bool that are read, if
    need be.
    """
    words, args, loads = lines.replace("(", " ").replace(",", " ").replace(")", " ").split(), "", ""
    for number, dtype in enumerate((source, "bool")):
        buffer, name = f"in{number}", f"t{number}"
        if name in words:
            loads += f"{name} = load %{buffer}[x0] : {dtype}\n"
        if name in words or f"%{buffer}[x0]" in words:
            args += f"arg {buffer}: {dtype} in span `64`\n"
    made = parse_kernel(TEXT.format(args=args, result=result, loads=loads, lines=lines))
    verify_kernel(made)
    return made


def recorded(kernel: Kernel, answer: int = 7) -> tuple[Kernel, list[tuple[float, DType, DType]]]:
    """`kernel` with `answer` for all that is asked, and what is."""
    asked: list[tuple[float, DType, DType]] = []

    def conversion(value: float, source: DType, result: DType) -> int:
        asked.append((value, source, result))
        return answer

    found = convert_constants(kernel, conversion)
    verify_kernel(found)
    return found, asked


@pytest.mark.parametrize("value", [3e9, -3e9, math.inf, -math.inf])
def test_a_converted_constant_is_a_constant(value: float) -> None:
    found, asked = recorded(kernel(f"t2 = const {value} : f32\nt9 = cast(t2) : i32"))
    assert asked == [(value, DType.F32, DType.I32)]
    assert found == kernel("t9 = const 7 : i32")


def test_a_side_of_a_choice() -> None:
    choice = "t2 = const inf : f32\nt3 = where(t1, t0, t2)\nt9 = cast(t3) : i32"
    found, _ = recorded(kernel(choice))
    assert found == kernel("t2 = cast(t0) : i32\nt3 = const 7 : i32\nt9 = where(t1, t2, t3)")
    nested = "t2 = const inf : f32\nt3 = where(t1, t0, t2)\nt4 = where(t1, t3, t0)\nt9 = cast(t4) : i32"
    found, _ = recorded(kernel(nested))
    wanted = "t2 = cast(t0) : i32\nt3 = const 7 : i32\nt4 = where(t1, t2, t3)\nt9 = where(t1, t4, t2)"
    assert found == kernel(wanted)


def test_what_a_masked_load_gives_elsewhere() -> None:
    found, asked = recorded(kernel("t2 = load %in0[x0] : f32 mask t1 other inf\nt9 = cast(t2) : i32"))
    assert asked == [(math.inf, DType.F32, DType.I32)]
    wanted = (
        "t2 = load %in0[x0] : f32 mask t1 other 0.0\nt3 = cast(t2) : i32\nt4 = const 7 : i32\nt9 = "
        "where(t1, t3, t4)"
    )
    assert found == kernel(wanted)


def test_halves_by_way_of_f32_are_rounded_as_constants_are() -> None:
    lines = "t2 = const 3e9 : bf16\nt3 = where(t1, t0, t2)\nt4 = cast(t3) : f32\nt9 = cast(t4) : i64"
    found, asked = recorded(kernel(lines, source="bf16", result="i64"))
    assert asked == [(3003121664.0, DType.BF16, DType.I64)]
    wanted = "t2 = cast(t0) : i64\nt3 = const 7 : i64\nt9 = where(t1, t2, t3)"
    assert found == kernel(wanted, source="bf16", result="i64")


@pytest.mark.parametrize(
    "lines",
    [
        "t2 = const -300.0 : f32\nt9 = cast(t2) : i32",
        "t2 = const 2.5 : f32\nt3 = where(t1, t0, t2)\nt9 = cast(t3) : i32",
        "t9 = cast(t0) : i32",
        "t2 = load %in0[x0] : f32 mask t1 other 1.0\nt9 = cast(t2) : i32",
        "t2 = const inf : f32\nt3 = lt(t0, t2)\nt9 = cast(t3) : i32",
    ],
)
def test_all_else_stays(lines: str) -> None:
    before = kernel(lines)
    found, asked = recorded(before)
    assert not asked
    assert format_kernel(found) == format_kernel(before)


def test_a_negative_number_is_no_unsigned_one() -> None:
    _, asked = recorded(kernel("t2 = const -2.0 : f32\nt9 = cast(t2) : u32", result="u32"))
    assert asked == [(-2.0, DType.F32, DType.U32)]


def test_an_integer_wraps_to_its_low_bits() -> None:
    assert [wrap_integer(v, DType.I8) for v in (-129, 127, 128, 300)] == [127, 127, -128, 44]
    assert [wrap_integer(v, DType.U8) for v in (-1, 255, 256, -(1 << 63))] == [255, 255, 0, 0]
