"""Expressions over a kernel's sizes, such as the extents of its grid, as code for a stack machine.

The machine computes in 64-bit integers and refuses results that do not fit. Division rounds down, as in
Python. Comparisons give 1 or 0. `SELECT` computes both of its values first, so it guards neither. The
native executor runs the same code (`executor/native/program/arithmetic.hpp`); a test compares both on
random code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

SMALLEST: Final = -(1 << 63)
LARGEST: Final = (1 << 63) - 1
# Room on the stack, in every implementation.
MOST_DEPTH: Final = 32


class Op(IntEnum):
    """One step. `CONSTANT`, `SIZE` and `PARAMETER` push a value; the others take two, `SELECT` three."""

    CONSTANT = 0
    ADD = 1
    MULTIPLY = 2
    FLOOR_DIVIDE = 3
    MODULO = 4
    MINIMUM = 5
    MAXIMUM = 6
    SUBTRACT = 7
    CEIL_DIVIDE = 8
    EQUAL = 9
    NOT_EQUAL = 10
    LESS = 11
    LESS_EQUAL = 12
    SELECT = 13
    """condition, value, other: `value` unless the condition is 0"""
    SIZE = 16
    """the size argument of this number"""
    PARAMETER = 17
    """the compile-time parameter of this number"""


PUSHES: Final = frozenset({Op.CONSTANT, Op.SIZE, Op.PARAMETER})
_BINARY: Final[Mapping[Op, Callable[[int, int], int]]] = MappingProxyType(
    {
        Op.ADD: lambda a, b: a + b,
        Op.SUBTRACT: lambda a, b: a - b,
        Op.MULTIPLY: lambda a, b: a * b,
        Op.FLOOR_DIVIDE: lambda a, b: a // b,
        Op.MODULO: lambda a, b: a % b,
        Op.CEIL_DIVIDE: lambda a, b: -(-a // b),
        Op.MINIMUM: min,
        Op.MAXIMUM: max,
        Op.EQUAL: lambda a, b: int(a == b),
        Op.NOT_EQUAL: lambda a, b: int(a != b),
        Op.LESS: lambda a, b: int(a < b),
        Op.LESS_EQUAL: lambda a, b: int(a <= b),
    }
)
Step = tuple[Op, int]


@dataclass(frozen=True, slots=True)
class SizeBytecode:
    """Steps in the order in which the machine takes them; the operand of those that push nothing is 0.

    Raises:
        ValueError: they leave no single value, use too deep a stack, or have an operand that does not fit.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        depth = 0
        for op, operand in self.steps:
            depth += 1 if op in PUSHES else -2 if op is Op.SELECT else -1
            if depth < 1:
                raise ValueError("code for sizes takes more values than there are")
            if depth > MOST_DEPTH:
                raise ValueError("code for sizes is too deep")
            if not SMALLEST <= operand <= LARGEST or (operand < 0 and op is not Op.CONSTANT):
                raise ValueError(f"the operand {operand} of {op.name} is out of range")
        if depth != 1:
            raise ValueError("code for sizes leaves no single value")

    @property
    def constant(self) -> int | None:
        """The value, if it is one step that pushes a constant."""
        (op, value), *others = self.steps
        return value if op is Op.CONSTANT and not others else None

    def operands(self, op: Op) -> frozenset[int]:
        """Return the operands of all steps that are `op`."""
        return frozenset(operand for one, operand in self.steps if one is op)

    def evaluate(self, sizes: Sequence[int], parameters: Sequence[int] = ()) -> int:
        """Return the value for these size arguments and compile-time parameters.

        Raises:
            RuntimeError: a value on the way does not fit 64 bits. Eager raises one for sizes of tensors.
            ZeroDivisionError: something is divided by 0.
        """
        stack: list[int] = []
        for op, operand in self.steps:
            if op is Op.CONSTANT:
                stack.append(operand)
            elif op is Op.SIZE:
                stack.append(sizes[operand])
            elif op is Op.PARAMETER:
                stack.append(parameters[operand])
            elif op is Op.SELECT:
                other, value = stack.pop(), stack.pop()
                stack[-1] = value if stack[-1] else other
            else:
                right = stack.pop()
                stack[-1] = result = _BINARY[op](stack[-1], right)
                if not SMALLEST <= result <= LARGEST:
                    raise RuntimeError("a size does not fit 64 bits")
        return stack[0]

    def bind(self, parameters: Sequence[int]) -> SizeBytecode:
        """Return the code with values in the place of compile-time parameters; one step if that leaves no
        sizes.
        """
        steps = tuple(
            (Op.CONSTANT, parameters[operand]) if op is Op.PARAMETER else (op, operand)
            for op, operand in self.steps
        )
        bound = SizeBytecode(steps)
        if len(steps) == 1 or bound.operands(Op.SIZE):
            return bound
        return make_constant_code(bound.evaluate(()))

    def encode(self) -> bytes:
        """`u32` number of steps, then of each a byte, followed by an `i64` if it pushes a value."""
        parts = [len(self.steps).to_bytes(4, "little")]
        for op, operand in self.steps:
            parts.append(bytes((op,)))
            if op in PUSHES:
                parts.append(operand.to_bytes(8, "little", signed=True))
        return b"".join(parts)


def make_constant_code(value: int) -> SizeBytecode:
    """Return the code of a number."""
    return SizeBytecode(((Op.CONSTANT, value),))


def is_within(code: SizeBytecode, *, sizes: int, parameters: int) -> bool:
    """Tell if `code` uses no size or parameter beyond so many."""
    return all(number < sizes for number in code.operands(Op.SIZE)) and all(
        number < parameters for number in code.operands(Op.PARAMETER)
    )
