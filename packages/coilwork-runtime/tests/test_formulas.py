"""Expressions over sizes as postfix code."""

from __future__ import annotations

import struct

import pytest

from coilwork_runtime.executor.formulas import formula


def run(code: bytes, sizes: list[int]) -> int:
    """What native/program/arithmetic.hpp does with the code."""
    stack: list[int] = []
    (count,) = struct.unpack_from("<I", code)
    for step in range(count):
        kind, value = struct.unpack_from("<Bq", code, 4 + 9 * step)
        if kind in (0, 16):
            stack.append(sizes[value] if kind else value)
            continue
        right, left = stack.pop(), stack.pop()
        operations = (left + right, left * right, left // right if right else 0, left % right if right else 0)
        stack.append((*operations, min(left, right), max(left, right), left - right)[kind - 1])
    (result,) = stack
    return result


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "n",
        "-n",
        "(n + B - 1) // B",
        "min(n, m, 3) * max(2, m)",
        "n % B - m // B",
        "2*n*m - (n + 1) // 2 + 5",
    ],
)
def test_code_computes_what_python_does(text: str) -> None:
    for n in range(5):
        for m in (1, 4):
            code = formula(text, ["n", "m"], {"B": 4})
            assert run(code, [n, m]) == eval(text, {"n": n, "m": m, "B": 4, "min": min, "max": max})


@pytest.mark.parametrize("text", ["n if m else 1", "other + 1", "n ** 2", "min()", "n.bit_length()", "1.5"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no expression over sizes"):
        formula(text, ["n", "m"], {})
