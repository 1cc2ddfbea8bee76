"""Code for sizes: what it computes, in Python and in the native executor, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from coilwork_cache import MemoryStore
from coilwork_runtime.executor.native_program import find_executor_extension
from coilwork_runtime.manifest.readable import Names, format_code
from coilwork_runtime.manifest.size_bytecode import (
    LARGEST,
    MOST_DEPTH,
    PUSHES,
    SMALLEST,
    Op,
    SizeBytecode,
    Step,
    make_constant_code,
)

VALUES = (
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    -7,
    16,
    1 << 31,
    -(1 << 31),
    1 << 32,
    LARGEST,
    LARGEST - 1,
    SMALLEST,
    SMALLEST + 1,
)
OTHERS = [op for op in Op if op not in PUSHES]


@pytest.fixture(scope="module")
def extension() -> Any:
    return find_executor_extension(MemoryStore())


def random_code(draw: random.Random, length: int, sizes: int, parameters: int) -> SizeBytecode:
    steps: list[Step] = []
    depth = 0
    while len(steps) < length or depth != 1:
        fitting = [op for op in OTHERS if depth >= (3 if op is Op.SELECT else 2)]
        if fitting and (depth == MOST_DEPTH or len(steps) >= length or draw.random() < 0.5):
            steps.append((draw.choice(fitting), 0))
            depth -= 2 if steps[-1][0] is Op.SELECT else 1
        else:
            op = draw.choice((Op.CONSTANT, Op.SIZE, Op.PARAMETER))
            limit = {Op.SIZE: sizes, Op.PARAMETER: parameters}
            steps.append((op, draw.randrange(limit[op]) if op in limit else draw_value(draw)))
            depth += 1
    return SizeBytecode(tuple(steps))


def draw_value(draw: random.Random) -> int:
    return draw.choice((draw.choice(VALUES), draw.randrange(-20, 20), draw.randrange(SMALLEST, LARGEST)))


def outcome(compute: Any, *args: Any) -> object:
    try:
        return compute(*args)
    except (RuntimeError, ZeroDivisionError) as error:
        return type(error), str(error).replace("by zero", "").replace("integer division or modulo ", "")


def test_both_machines_compute_the_same(extension: Any) -> None:
    draw = random.Random(7)
    seen: set[object] = set()
    for _ in range(6000):
        code = random_code(draw, draw.randrange(1, 12), 3, 2)
        sizes = tuple(draw_value(draw) for _ in range(3))
        parameters = tuple(draw_value(draw) for _ in range(2))
        expected = kind_of(outcome(code.evaluate, sizes, parameters))
        found = kind_of(outcome(extension.evaluate_code, code.encode(), sizes, parameters))
        assert found == expected, (code, sizes, parameters)
        bound = kind_of(outcome(lambda code=code, p=parameters, s=sizes: code.bind(p).evaluate(s)))
        assert bound == expected, (code, sizes, parameters)
        seen.add(expected if isinstance(expected, type) else "value")
    assert seen == {RuntimeError, ZeroDivisionError, "value"}


def test_text_of_code_reads_back_to_the_same_values() -> None:
    draw = random.Random(11)
    for _ in range(400):
        code = random_code(draw, draw.randrange(1, 9), 2, 1)
        names = Names(("size:i64", "size:i64"), ("n", "m"), ("B",))
        again = names.code(format_code(code, ("n", "m"), ("B",)))
        for _ in range(3):
            sizes, block = (draw.randrange(-40, 40), draw.randrange(1, 40)), (draw.randrange(1, 9),)
            expected = kind_of(outcome(code.evaluate, sizes, block))
            found = kind_of(outcome(again.evaluate, sizes, block))
            # the ceiling of a quotient is written with two subtractions, which may not fit where it does
            assert found in (expected, RuntimeError), (code, sizes)


def kind_of(found: object) -> object:
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("op", [op for op in OTHERS if op is not Op.SELECT])
def test_every_operation_at_the_edges(op: Op, extension: Any) -> None:
    code = SizeBytecode(((Op.SIZE, 0), (Op.SIZE, 1), (op, 0)))
    for left in VALUES:
        for right in VALUES:
            expected = kind_of(outcome(code.evaluate, (left, right)))
            assert kind_of(outcome(extension.evaluate_code, code.encode(), (left, right), ())) == expected


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
        "n if m > 2 else B",
        "(n == m) + (n != 3) * (n <= m) - (n >= m) + (m < 2)",
    ],
)
def test_code_computes_what_the_text_says(text: str) -> None:
    names = Names(("size:i64", "size:i32"), ("n", "m"), ("B",))
    code = names.code(text)
    for n in range(5):
        for m in (1, 4):
            expected = eval(text, {"n": n, "m": m, "B": 4, "min": min, "max": max})
            assert code.evaluate((n, m), (4,) * len(names.parameters)) == expected


@pytest.mark.parametrize("text", ["other + 1", "n ** 2", "min()", "n.bit_length()", "1.5", "n < m < 3"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no expression over sizes"):
        Names(("size:i64", "size:i64"), ("n", "m")).code(text)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((), "no single value"),
        (((Op.ADD, 0),), "more values"),
        (((Op.CONSTANT, 1), (Op.CONSTANT, 1)), "no single value"),
        (((Op.CONSTANT, 1), (Op.CONSTANT, 1), (Op.SELECT, 0)), "more values"),
        (((Op.SIZE, -1),), "out of range"),
        (((Op.CONSTANT, LARGEST + 1),), "out of range"),
        (((Op.CONSTANT, 1),) * (MOST_DEPTH + 1) + ((Op.ADD, 0),) * MOST_DEPTH, "too deep"),
    ],
)
def test_malformed_code_is_refused_by_both(steps: tuple[Step, ...], reason: str, extension: Any) -> None:
    with pytest.raises(ValueError, match=reason):
        SizeBytecode(steps)
    if any(not SMALLEST <= operand <= LARGEST for _, operand in steps):
        return
    parts = [
        bytes((op,)) + (v.to_bytes(8, "little", signed=True) if op in PUSHES else b"") for op, v in steps
    ]
    with pytest.raises(ValueError, match="formula"):
        extension.evaluate_code(len(steps).to_bytes(4, "little") + b"".join(parts), (), ())


def test_code_uses_only_what_there_is(extension: Any) -> None:
    for op in (Op.SIZE, Op.PARAMETER):
        with pytest.raises(ValueError, match="no such size"):
            extension.evaluate_code(SizeBytecode(((op, 1),)).encode(), (5,), (5,))


def test_a_bound_code_without_sizes_is_a_number() -> None:
    code = SizeBytecode(((Op.PARAMETER, 0), (Op.CONSTANT, 3), (Op.MULTIPLY, 0)))
    assert code.constant is None and code.bind((5,)) == make_constant_code(15)
