"""From tree to text: the one place where Triton source is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from coilwork_triton.text.tree import (
    Assign,
    Attribute,
    Binary,
    Call,
    Comment,
    Do,
    Expression,
    For,
    Function,
    If,
    Index,
    Library,
    List,
    Module,
    Name,
    Number,
    Parameter,
    Return,
    Statement,
    Text,
    Tuple,
    Unary,
    While,
)

# Python's binding strength of the operators that occur. Comparisons do not chain here.
_PRECEDENCE: Final[Mapping[str, int]] = {
    "<": 1, "<=": 1, ">": 1, ">=": 1, "==": 1, "!=": 1,
    "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5,
    "+": 6, "-": 6, "*": 7, "/": 7, "//": 7, "%": 7,
}  # fmt: skip
_UNARY: Final = 8
_ATOM: Final = 10
_WIDTH: Final = 110
_INDENT: Final = "    "


def format_expression(expression: Expression) -> str:
    """`expression` as Python text, with the parentheses it needs and no others."""
    return _format(expression)[0]


def format_module(module: Module) -> str:
    """The whole file, ending in a newline."""
    lines = ['"""', *(line.replace("\\", "\\\\").replace('"""', "'''") for line in module.doc), '"""', ""]
    lines += ["import triton", "import triton.language as tl"]
    if module.notes:
        lines += ["", *(f"# {note}".rstrip() for note in module.notes)]
    for function in module.functions:
        lines += ["", ""]
        if isinstance(function, Library):
            lines += function.source.splitlines()
        else:
            lines += _function_lines(function)
    return "\n".join(lines) + "\n"


def _function_lines(function: Function) -> list[str]:
    parameters = [_parameter(p) for p in function.parameters]
    header = f"def {function.name}({', '.join(parameters)}):"
    lines = ["@triton.jit" if function.inline else "@triton.jit(noinline=True)"]
    if len(header) <= _WIDTH:
        lines.append(header)
    else:
        lines += [f"def {function.name}(", *(f"{_INDENT}{p}," for p in parameters), "):"]
    if function.doc:
        lines += [f'{_INDENT}"""{function.doc[0]}', *(f"{_INDENT}{d}" for d in function.doc[1:])]
        lines[-1] += '"""'
    for statement in function.body:
        lines += _statement_lines(statement, 1)
    if not function.body:
        lines.append(f"{_INDENT}pass")
    return lines


def _parameter(parameter: Parameter) -> str:
    return f"{parameter.name}: tl.constexpr" if parameter.constexpr else parameter.name


def _statement_lines(statement: Statement, depth: int) -> list[str]:
    indent = _INDENT * depth
    match statement:
        case Assign(targets, value):
            return [f"{indent}{', '.join(targets)} = {format_expression(value)}"]
        case Do(value):
            return [f"{indent}{format_expression(value)}"]
        case Return(values):
            return [f"{indent}return {', '.join(format_expression(value) for value in values)}"]
        case Comment(text):
            return [f"{indent}# {text}"]
        case While(condition, body):
            lines = [f"{indent}while {format_expression(condition)}:"]
            for inner in body:
                lines += _statement_lines(inner, depth + 1)
            return lines
        case For(variable, start, stop, step, body, stages):
            bounds = ", ".join(format_expression(e) for e in (start, stop, step))
            lines = [f"{indent}for {variable} in range({bounds}):"]
            if stages is not None:
                staged = f"num_stages={format_expression(stages)}"
                lines = [f"{indent}for {variable} in tl.range({bounds}, {staged}):"]
            for inner in body:
                lines += _statement_lines(inner, depth + 1)
            return lines
        case If(condition, then, otherwise):
            lines = [f"{indent}if {format_expression(condition)}:"]
            lines += [line for inner in then for line in _statement_lines(inner, depth + 1)]
            if len(otherwise) == 1 and isinstance(otherwise[0], If):
                first, *rest = _statement_lines(otherwise[0], depth)
                return [*lines, f"{indent}el{first.removeprefix(indent)}", *rest]
            if otherwise:
                lines.append(f"{indent}else:")
            return lines + [line for inner in otherwise for line in _statement_lines(inner, depth + 1)]
        case unreachable:
            assert_never(unreachable)


def _format(expression: Expression) -> tuple[str, int]:
    """Text and binding strength."""
    match expression:
        case Name(name):
            return name, _ATOM
        case Number(value):
            return repr(value), _UNARY if repr(value).startswith("-") else _ATOM
        case Text(value):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            return f'"{escaped}"', _ATOM
        case Unary(operator, operand):
            return operator + _wrapped(operand, _UNARY), _UNARY
        case Binary(operator, left, right):
            strength = _PRECEDENCE[operator]
            # a comparison beside a comparison would chain, so neither side may be one
            least = strength + 1 if strength == 1 else strength
            return f"{_wrapped(left, least)} {operator} {_wrapped(right, strength + 1)}", strength
        case Attribute(value, name):
            return f"{_wrapped(value, _ATOM)}.{name}", _ATOM
        case Call(function, args, kwargs):
            shown = [format_expression(a) for a in args] + [f"{k}={format_expression(v)}" for k, v in kwargs]
            return f"{_wrapped(function, _ATOM)}({', '.join(shown)})", _ATOM
        case Index(value, items):
            return f"{_wrapped(value, _ATOM)}[{', '.join(items)}]", _ATOM
        case List(items):
            return f"[{', '.join(format_expression(i) for i in items)}]", _ATOM
        case Tuple(items):
            comma = "," if len(items) == 1 else ""
            return f"({', '.join(format_expression(i) for i in items)}{comma})", _ATOM
        case unreachable:
            assert_never(unreachable)


def _wrapped(expression: Expression, least: int) -> str:
    text, strength = _format(expression)
    return text if strength >= least else f"({text})"
