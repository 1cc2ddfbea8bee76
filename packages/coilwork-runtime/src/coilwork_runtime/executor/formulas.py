"""Expressions over a kernel's sizes, such as the extents of its grid, as postfix code for the native executor."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Final

ADD, MULTIPLY, FLOOR_DIVIDE, MODULO, MINIMUM, MAXIMUM, SUBTRACT = range(1, 8)
CONSTANT: Final = 0
SIZE: Final = 16
_OPERATIONS: Final[Mapping[type[ast.operator], int]] = {
    ast.Add: ADD,
    ast.Sub: SUBTRACT,
    ast.Mult: MULTIPLY,
    ast.FloorDiv: FLOOR_DIVIDE,
    ast.Mod: MODULO,
}
_FUNCTIONS: Final[Mapping[str, int]] = {"min": MINIMUM, "max": MAXIMUM}


def formula(text: str, sizes: Sequence[str], constants: Mapping[str, int]) -> bytes:
    """The Python expression `text` over the names `sizes` and `constants`; native/program/arithmetic.hpp describes the form.

    Raises:
        ValueError: it holds something else.
    """
    steps = _steps(ast.parse(text, mode="eval").body, sizes, constants)
    return len(steps).to_bytes(4, "little") + b"".join(
        bytes((kind,)) + value.to_bytes(8, "little", signed=True) for kind, value in steps
    )


def _steps(node: ast.expr, sizes: Sequence[str], constants: Mapping[str, int]) -> list[tuple[int, int]]:
    match node:
        case ast.Constant(value=int(value)):
            return [(CONSTANT, value)]
        case ast.Name(id=name) if name in constants:
            return [(CONSTANT, constants[name])]
        case ast.Name(id=name) if name in sizes:
            return [(SIZE, sizes.index(name))]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return [(CONSTANT, 0), *_steps(operand, sizes, constants), (SUBTRACT, 0)]
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATIONS:
            first, second = _steps(left, sizes, constants), _steps(right, sizes, constants)
            return [*first, *second, (_OPERATIONS[type(operator)], 0)]
        case ast.Call(func=ast.Name(id=name), args=[first_argument, *others]) if name in _FUNCTIONS:
            found = _steps(first_argument, sizes, constants)
            for other in others:
                found += [*_steps(other, sizes, constants), (_FUNCTIONS[name], 0)]
            return found
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is no expression over sizes")
