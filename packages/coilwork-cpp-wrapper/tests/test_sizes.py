"""Index expressions as C++: floor semantics, checked by compiling them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from coilwork_cpp_wrapper.module import read_preamble
from coilwork_cpp_wrapper.scope import index_code, read_size_code
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, evaluate, maximum, minimum, symbol
from coilwork_ir.syntax.cpp import CppPrinter
from coilwork_runtime.cpp.toolchain import find_toolchain, make_stub
from coilwork_runtime.manifest.size_bytecode import Op, SizeBytecode

PRINTER = CppPrinter()
N = symbol("n", lo=0)
I = symbol("i")
J = symbol("j")
EXPRESSIONS = (
    N // 4,
    N % 4,
    (N - 7) // 3,
    (N - 7) % 3,
    I // 5,
    I % 5,
    I // -3,
    I % -3,
    2 * N - 3 * I * J + 4,
    minimum(I, J, N) - maximum(I, 3),
    (I + J) // 2 * (I - J) - 1,
    -I,
)


def name_of(expr: Expr) -> str:
    """The symbol's own name."""
    return expr.name


def test_only_what_may_be_negative_goes_through_functions() -> None:
    assert PRINTER.code(index_code(N // 4, name_of)) == "n / 4"
    assert PRINTER.code(index_code(I // 4, name_of)) == "rt::floordiv(i, 4)"
    assert PRINTER.code(index_code(N - I, name_of)) in ("n - i", "-1 * i + n")


def test_values_are_those_of_the_index_arithmetic(tmp_path: Path) -> None:
    cases = "".join(
        f"    case {number}: return {PRINTER.code(index_code(e, name_of))};\n"
        for number, e in enumerate(EXPRESSIONS)
    )
    source = tmp_path / "arithmetic.cpp"
    source.write_text(
        read_preamble("shim.hpp")
        + read_preamble("support.hpp")
        + 'extern "C" int64_t value(int which, int64_t n, int64_t i, int64_t j) {\n'
        + f"  switch (which) {{\n{cases}  }}\n  return 0;\n}}\n",
        encoding="utf-8",
    )
    toolchain = find_toolchain()
    make_stub(toolchain, tmp_path)
    library = tmp_path / "arithmetic.so"
    command = [*toolchain.words, "-std=c++17", "-shared", "-fPIC", "-w", str(source), "-o", str(library)]
    subprocess.run(
        [*command, f"-L{tmp_path}", "-Wl,--no-as-needed", "-ltorch_cpu"], check=True, capture_output=True
    )
    value = ctypes.CDLL(str(library)).value
    value.argtypes = [ctypes.c_int, *[ctypes.c_int64] * 3]
    value.restype = ctypes.c_int64
    for n in (0, 1, 7, 8):
        for i in (-11, -1, 0, 5):
            for j in (-4, 2):
                for number, expr in enumerate(EXPRESSIONS):
                    assert value(number, n, i, j) == evaluate(expr, {"n": n, "i": i, "j": j}), expr


def test_refusals_of_names_pass_through() -> None:
    def refuse(expr: Expr) -> str:
        raise EmitError("unbound-symbol", expr.name)

    with pytest.raises(EmitError, match="unbound-symbol"):
        index_code(N + 1, refuse)


def test_sizes_of_a_manifest_become_expressions_of_what_a_launch_passes() -> None:
    """Compared with the machine that the runtime computes them with."""
    binary = (
        Op.ADD,
        Op.SUBTRACT,
        Op.MULTIPLY,
        Op.FLOOR_DIVIDE,
        Op.MODULO,
        Op.CEIL_DIVIDE,
        Op.MINIMUM,
        Op.MAXIMUM,
    )
    for op in binary:
        code = SizeBytecode(((Op.SIZE, 1), (Op.CONSTANT, 3), (op, 0), (Op.SIZE, 0), (Op.ADD, 0)))
        read = read_size_code(code, (N + 1, 2 * I))
        for n, i in ((0, -5), (7, 11), (12, 6)):
            assert evaluate(read, {"n": n, "i": i}) == code.evaluate((n + 1, 2 * i)), op


def test_what_cpp_kernels_need_no_size_code_for_is_refused_by_name() -> None:
    code = SizeBytecode(((Op.SIZE, 0), (Op.CONSTANT, 3), (Op.LESS, 0)))
    with pytest.raises(EmitError, match="computed by less"):
        read_size_code(code, (N,))
